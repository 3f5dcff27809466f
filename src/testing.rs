//! For authors of a [`Store`](crate::Store): a conformance kit, and a wrapper that injects faults.
//!
//! # Checking a store
//!
//! [`store_tests!`](crate::store_tests) makes one named test of every case of the kit:
//!
//! ```
//! # use tower_idempotency::MemoryStore;
//! # async fn make_store() -> MemoryStore { MemoryStore::new() }
//! tower_idempotency::store_tests!(make_store().await);
//! # fn main() {}
//! ```
//!
//! The tests need `tokio` with the features `macros` and `rt-multi-thread` among your dev-dependencies. The expression is
//! evaluated once in each test, and gives a [`Store`](crate::Store) or a pointer to one. If it needs a server that is not there, let
//! it panic: a test that passes without its server says nothing.
//!
//! Each case uses scopes and keys of its own, made at random, and wipes nothing, so that all of them can run in parallel and
//! against a database that others use. They leave records behind that expire within the hour, a few that never do, and
//! at most some megabytes. The cases run in real time, for the clock that counts is the store's, and a busy machine
//! makes them slower, not wrong. (A store that keeps Tokio's time can be checked in paused time too.)
//!
//! Each case is a plain function as well, which panics where the store breaks the contract or fails, and [`CASES`] lists them all, for a runner of your own:
//!
//! ```
//! # use tower_idempotency::{MemoryStore, testing};
//! # #[tokio::main] async fn main() {
//! let store = MemoryStore::new();
//! testing::a_first_claim_is_acquired_as_attempt_one(&store).await;
//! # }
//! ```
//!
//! # A complete store
//!
//! The example `custom_store`, which runs the kit on the store it defines:
//!
//! ```
#![doc = include_str!("../examples/custom_store.rs")]
//! ```
//!
//! # Injecting faults
//!
//! [`Faulty`] wraps a store and makes chosen calls fail, hang or take long, to see what an application does then.

#![allow(clippy::missing_panics_doc, reason = "panicking is what a case of the kit is for")]

mod cancelling;
mod case;
mod claiming;
mod completing;
mod expiring;
mod faulty;
mod fencing;
mod leasing;
mod support;

pub use self::{
    cancelling::{
        a_dropped_claim_blocks_its_key_for_its_lease_at_most, a_dropped_completion_can_be_repeated,
        a_store_stays_usable_when_its_calls_are_dropped,
    },
    case::{CASES, Case},
    claiming::{
        a_claim_that_may_take_over_acquires_an_absent_record_as_attempt_one, a_first_claim_is_acquired_as_attempt_one,
        a_record_nobody_claimed_is_absent, a_repeated_claim_reports_the_record_that_it_made,
        a_second_claim_reports_the_record_and_changes_nothing, any_text_is_a_scope,
        of_concurrent_claims_exactly_one_is_acquired, scope_and_key_are_never_mixed_up,
        scopes_and_keys_are_compared_byte_exactly,
    },
    completing::{
        a_completed_record_cannot_be_released, a_completed_record_is_reported_to_a_claim,
        a_completion_and_a_release_never_both_apply, a_released_key_is_claimed_as_new,
        a_released_token_cannot_touch_the_next_record, a_repeated_completion_is_applied_and_changes_nothing,
        a_stored_response_is_byte_identical, a_taken_over_record_is_completed_by_its_new_owner,
        completing_an_absent_record_is_lost, releasing_an_absent_record_is_lost,
        the_holder_of_an_abandoned_record_may_complete_it, the_holder_of_an_abandoned_record_may_release_it,
    },
    expiring::{
        a_completed_record_ends_with_its_retention, a_completed_record_outlives_its_lease,
        a_purge_leaves_every_record_whose_time_is_not_over, a_purge_removes_at_most_its_limit,
        an_abandoned_record_ends_with_its_unsettled_term,
        of_concurrent_claims_of_an_expired_record_exactly_one_is_acquired, reading_a_record_does_not_prolong_it,
    },
    faulty::{Fault, Faulty, Operation},
    fencing::{
        a_completed_record_cannot_be_taken_over, a_lost_holder_cannot_touch_a_completed_record,
        a_lost_holder_cannot_touch_a_record_in_flight, a_lost_holder_cannot_touch_an_abandoned_record,
        a_record_in_flight_cannot_be_taken_over, a_strangers_token_cannot_touch_a_record,
        a_takeover_must_name_the_current_token, an_abandoned_record_can_be_taken_over,
        of_concurrent_takeovers_exactly_one_is_acquired,
    },
    leasing::{
        a_lease_is_not_rounded_to_seconds, a_lease_of_a_nanosecond_ends, an_abandoned_record_is_reported_to_a_claim,
        an_ended_lease_leaves_an_abandoned_record, durations_too_long_for_a_clock_mean_for_ever,
        renewing_a_completed_record_is_lost, renewing_an_absent_record_is_lost, renewing_extends_the_lease,
        renewing_for_no_time_abandons_the_record_at_once, renewing_may_shorten_the_lease,
        the_holder_of_an_abandoned_record_may_renew_it,
    },
};
