//! The list of all cases, and the macro that makes tests of them.

use std::{fmt, future::Future, pin::Pin};

use crate::Store;

/// Every case of the kit, in the order of its files.
pub const CASES: &[Case] = crate::store_tests!(@all table());

/// One case of the kit: a check of one clause of the contract.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    check: Check,
}

/// A case as a function that can be kept in a list.
type Check = for<'a> fn(&'a dyn Store) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Case {
    /// Returns the name of the function, which is a sentence.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks a store.
    ///
    /// # Panics
    ///
    /// Panics if the store breaks the clause, or fails.
    pub async fn run(&self, store: &dyn Store) {
        (self.check)(store).await;
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// Makes one test of every case of the conformance kit, each on a store of its own or on a shared one.
///
/// The expression is evaluated in each test; it may use `await`. See [`testing`](crate::testing) for what it needs.
///
/// ```
/// mod memory {
///     tower_idempotency::store_tests!(tower_idempotency::MemoryStore::new());
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_tests {
    (@all $form:ident($($store:expr)?)) => {
        $crate::store_tests! { @$form($($store)?)
            a_record_nobody_claimed_is_absent
            a_first_claim_is_acquired_as_attempt_one
            a_claim_that_may_take_over_acquires_an_absent_record_as_attempt_one
            of_concurrent_claims_exactly_one_is_acquired
            a_second_claim_reports_the_record_and_changes_nothing
            a_repeated_claim_reports_the_record_that_it_made
            scope_and_key_are_never_mixed_up
            any_text_is_a_scope
            scopes_and_keys_are_compared_byte_exactly
            a_lease_is_not_rounded_to_seconds
            an_ended_lease_leaves_an_abandoned_record
            an_abandoned_record_is_reported_to_a_claim
            renewing_extends_the_lease
            renewing_may_shorten_the_lease
            renewing_for_no_time_abandons_the_record_at_once
            the_holder_of_an_abandoned_record_may_renew_it
            renewing_an_absent_record_is_lost
            renewing_a_completed_record_is_lost
            a_lease_of_a_nanosecond_ends
            durations_too_long_for_a_clock_mean_for_ever
            an_abandoned_record_can_be_taken_over
            a_record_in_flight_cannot_be_taken_over
            a_completed_record_cannot_be_taken_over
            a_takeover_must_name_the_current_token
            of_concurrent_takeovers_exactly_one_is_acquired
            a_lost_holder_cannot_touch_a_record_in_flight
            a_lost_holder_cannot_touch_an_abandoned_record
            a_lost_holder_cannot_touch_a_completed_record
            a_strangers_token_cannot_touch_a_record
            a_stored_response_is_byte_identical
            a_completed_record_is_reported_to_a_claim
            a_repeated_completion_is_applied_and_changes_nothing
            the_holder_of_an_abandoned_record_may_complete_it
            a_taken_over_record_is_completed_by_its_new_owner
            completing_an_absent_record_is_lost
            a_completion_and_a_release_never_both_apply
            a_released_key_is_claimed_as_new
            the_holder_of_an_abandoned_record_may_release_it
            a_completed_record_cannot_be_released
            releasing_an_absent_record_is_lost
            a_released_token_cannot_touch_the_next_record
            a_completed_record_ends_with_its_retention
            an_abandoned_record_ends_with_its_unsettled_term
            of_concurrent_claims_of_an_expired_record_exactly_one_is_acquired
            a_completed_record_outlives_its_lease
            reading_a_record_does_not_prolong_it
            a_purge_leaves_every_record_whose_time_is_not_over
            a_purge_removes_at_most_its_limit
            a_dropped_claim_blocks_its_key_for_its_lease_at_most
            a_dropped_completion_can_be_repeated
            a_store_stays_usable_when_its_calls_are_dropped
        }
    };
    (@tests($store:expr) $($case:ident)*) => {$(
        #[::tokio::test(flavor = "multi_thread")]
        async fn $case() {
            let store = $store;
            $crate::testing::$case(&store).await;
        }
    )*};
    (@table() $($case:ident)*) => {
        &[$($crate::testing::Case {
            name: ::core::stringify!($case),
            check: |store| ::std::boxed::Box::pin($crate::testing::$case(store)),
        }),*]
    };
    ($store:expr) => {
        $crate::store_tests! { @all tests($store) }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_public_case() {
        let files = [
            include_str!("claiming.rs"),
            include_str!("leasing.rs"),
            include_str!("fencing.rs"),
            include_str!("completing.rs"),
            include_str!("expiring.rs"),
            include_str!("cancelling.rs"),
        ];
        let lines = files.iter().flat_map(|file| file.lines());
        let written: Vec<_> = lines.filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next()).collect();
        let listed: Vec<_> = CASES.iter().map(Case::name).collect();
        assert_eq!(listed, written);
    }
}
