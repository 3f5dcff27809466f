//! Cases about calls that are dropped before they are done.

use std::time::Duration;

use super::support::*;
use crate::store::{Claim, Fenced, Lease, State, Store};

/// Polls after which a call that is still not done is dropped for the last time.
const MOST_POLLS: usize = 40;

/// "Cancel safe": a dropped claim blocks its key for its lease at most, and the store stays usable.
pub async fn a_dropped_claim_blocks_its_key_for_its_lease_at_most(store: &dyn Store) {
    for polls in 0..MOST_POLLS {
        let id = fresh_id();
        let lease = Lease { term: Duration::from_millis(100), unsettled: LONG.unsettled };
        let finished = dropped_after(polls, store.claim(&id, &new_claim(lease))).await;
        let mut next = new_claim(LONG);
        // It has happened or it has not: the next claim is the first, or takes it over.
        until(store, &id, "free or abandoned", |record| record.is_none() || is_abandoned(record)).await;
        if let Some(record) = store.lookup(&id).await.expect("lookup") {
            next = next.replacing(record.token);
        }
        let waiting = Waiting::start();
        // A dropped call may reach the server after the lookup.
        while let Claim::Existing(record) = store.claim(&id, &next).await.expect("claim") {
            next = next.replacing(record.token);
            waiting.for_what("free").await;
        }
        if finished.is_some() {
            return;
        }
    }
}

/// "Cancel safe": a dropped completion has happened or it has not, and can be repeated.
pub async fn a_dropped_completion_can_be_repeated(store: &dyn Store) {
    for polls in 0..MOST_POLLS {
        let id = fresh_id();
        let token = in_flight(store, &id).await;
        let answer = response("x".repeat(100_000));
        let finished = dropped_after(polls, store.complete(&id, token, &answer, RETENTION)).await;
        let record = present(store, &id).await;
        assert_eq!(record.token, token);
        assert!(
            is_in_flight(Some(&record)) || record.state == State::Completed(answer.clone()),
            "a dropped completion left something half done: {record:?}"
        );
        assert_eq!(store.complete(&id, token, &answer, RETENTION).await.expect("complete"), Fenced::Applied);
        assert_eq!(present(store, &id).await.state, State::Completed(answer));
        if finished.is_some() {
            return;
        }
    }
}

/// "Cancel safe": dropped renewals, releases, lookups and purges leave a store that works.
pub async fn a_store_stays_usable_when_its_calls_are_dropped(store: &dyn Store) {
    for polls in 0..MOST_POLLS {
        let (kept, freed) = (fresh_id(), fresh_id());
        let (holder, other) = (in_flight(store, &kept).await, in_flight(store, &freed).await);
        let finished = [
            dropped_after(polls, store.renew(&kept, holder, LONG)).await.is_some(),
            dropped_after(polls, store.release(&freed, other)).await.is_some(),
            dropped_after(polls, store.lookup(&kept)).await.is_some(),
            dropped_after(polls, store.purge(10)).await.is_some(),
        ];
        assert_eq!(store.renew(&kept, holder, LONG).await.expect("renew"), Fenced::Applied);
        assert_eq!(present(store, &kept).await.token, holder);
        let _either = store.release(&freed, other).await.expect("release");
        assert_eq!(store.lookup(&freed).await.expect("lookup"), None);
        if finished == [true; 4] {
            return;
        }
    }
}
