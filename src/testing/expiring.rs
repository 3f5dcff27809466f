//! Cases about the end of a record: retention, the unsettled term, and the purge.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::*;
use crate::store::{Claim, Fenced, Lease, RecordId, State, Store, Token};

/// "The record lives for `retention` from now", and "a record whose time is over is absent".
pub async fn a_completed_record_ends_with_its_retention(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    let retention = Duration::from_millis(50);
    assert_eq!(store.complete(&id, claim.token, &response("old"), retention).await.expect("complete"), Fenced::Applied);
    absent_to_everything(store, &id, claim.token).await;
}

/// "The record lives for the lease's term plus `unsettled`", and "a record whose time is over is absent".
pub async fn an_abandoned_record_ends_with_its_unsettled_term(store: &dyn Store) {
    let lease = Lease { term: Duration::from_millis(20), unsettled: Duration::from_millis(30) };
    let (id, claim) = (fresh_id(), new_claim(lease));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    absent_to_everything(store, &id, claim.token).await;
}

async fn absent_to_everything(store: &dyn Store, id: &RecordId, token: Token) {
    until(store, id, "absent", |record| record.is_none()).await;
    assert_eq!(store.renew(id, token, LONG).await.expect("renew"), Fenced::Lost, "renew");
    let completed = store.complete(id, token, &response("too late"), RETENTION).await.expect("complete");
    assert_eq!(completed, Fenced::Lost, "complete");
    assert_eq!(store.release(id, token).await.expect("release"), Fenced::Lost, "release");
    assert_eq!(store.lookup(id).await.expect("lookup"), None);
    let next = new_claim(LONG);
    acquired(store.claim(id, &next.clone().replacing(token)).await.expect("claim"), 1);
    let record = present(store, id).await;
    assert_eq!((record.token, record.fingerprint, record.attempt), (next.token, next.fingerprint, 1));
    assert!(is_in_flight(Some(&record)), "{record:?}");
}

/// "Atomic": of concurrent claims of a record whose time is over, exactly one acquires it.
pub async fn of_concurrent_claims_of_an_expired_record_exactly_one_is_acquired(store: &dyn Store) {
    for _ in 0..5 {
        let (id, claim) = (fresh_id(), new_claim(LONG));
        acquired(store.claim(&id, &claim).await.expect("claim"), 1);
        let retention = Duration::from_millis(1);
        let completed = store.complete(&id, claim.token, &response("old"), retention).await.expect("complete");
        assert_eq!(completed, Fenced::Applied);
        until(store, &id, "absent", |record| record.is_none()).await;
        let outcomes = at_once(8, || async { store.claim(&id, &new_claim(LONG)).await.expect("claim") }).await;
        let won = outcomes.iter().filter(|outcome| matches!(outcome, Claim::Acquired { attempt: 1 }));
        assert_eq!(won.count(), 1, "not exactly one of {} claims was acquired", outcomes.len());
    }
}

/// "The record lives for `retention` from now": longer than the lease and its unsettled term would have let it.
pub async fn a_completed_record_outlives_its_lease(store: &dyn Store) {
    let lease = Lease { term: Duration::from_millis(600), unsettled: Duration::from_millis(1) };
    // A machine so slow that the record is over before it can be completed is asked again.
    for _ in 0..20 {
        let (id, claim) = (fresh_id(), new_claim(lease));
        acquired(store.claim(&id, &claim).await.expect("claim"), 1);
        let claimed = Instant::now();
        if store.complete(&id, claim.token, &response("kept"), RETENTION).await.expect("complete") == Fenced::Lost {
            continue;
        }
        while claimed.elapsed() < Duration::from_millis(700) {
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(present(store, &id).await.state, State::Completed(response("kept")));
        return;
    }
    panic!("no record could be completed within 600 ms");
}

/// "Reads a record without changing it", and a claim that meets a record "changes nothing": neither keeps it alive.
pub async fn reading_a_record_does_not_prolong_it(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    let retention = Duration::from_millis(200);
    assert_eq!(store.complete(&id, token, &response("old"), retention).await.expect("complete"), Fenced::Applied);
    // Polls much more often than the retention is long, so that a record that each of them prolonged would never end.
    let waiting = Waiting::start();
    while let Claim::Existing(_) = store.claim(&id, &new_claim(LONG)).await.expect("claim") {
        let _read = store.lookup(&id).await.expect("lookup");
        let _again = store.complete(&id, token, &response("again"), RETENTION).await.expect("complete");
        waiting.for_what("absent, as reading keeps it alive").await;
    }
}

/// "In-flight records are never removed", nor is any other record before its time.
pub async fn a_purge_leaves_every_record_whose_time_is_not_over(store: &dyn Store) {
    let (live, left, done, for_ever) = (fresh_id(), fresh_id(), fresh_id(), fresh_id());
    in_flight(store, &live).await;
    abandoned(store, &left).await;
    let token = in_flight(store, &done).await;
    assert_eq!(store.complete(&done, token, &response("kept"), RETENTION).await.expect("complete"), Fenced::Applied);
    let endless = Lease { term: Duration::MAX, unsettled: Duration::MAX };
    let endless = new_claim(endless);
    acquired(store.claim(&for_ever, &endless).await.expect("claim"), 1);
    purge_everything(store).await;
    assert!(is_in_flight(Some(&present(store, &live).await)));
    assert!(is_abandoned(Some(&present(store, &left).await)));
    assert_eq!(present(store, &done).await.state, State::Completed(response("kept")));
    assert!(is_in_flight(Some(&present(store, &for_ever).await)));
    assert_eq!(store.release(&for_ever, endless.token).await.expect("release"), Fenced::Applied);
}

/// "Removes at most `limit` records whose time is over": never more, and they stay absent.
pub async fn a_purge_removes_at_most_its_limit(store: &dyn Store) {
    let mut over = Vec::new();
    for _ in 0..5 {
        let id = fresh_id();
        let token = in_flight(store, &id).await;
        let retention = Duration::from_millis(1);
        assert_eq!(store.complete(&id, token, &response("old"), retention).await.expect("complete"), Fenced::Applied);
        until(store, &id, "absent", |record| record.is_none()).await;
        over.push(id);
    }
    assert_eq!(store.purge(0).await.expect("purge"), 0);
    assert!(store.purge(2).await.expect("purge") <= 2, "a purge with a limit of 2 removed more");
    purge_everything(store).await;
    for id in over {
        assert_eq!(store.lookup(&id).await.expect("lookup"), None);
    }
}

/// "A result below `limit` means that nothing more is due now."
async fn purge_everything(store: &dyn Store) {
    const LIMIT: usize = 1000;
    let waiting = Waiting::start();
    while store.purge(LIMIT).await.expect("purge") == LIMIT {
        waiting.for_what("purged").await;
    }
}
