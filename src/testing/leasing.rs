//! Cases about leases: how long they hold, how they are renewed, what is left when they end.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::support::*;
use crate::store::{Fenced, Lease, RecordId, State, Store};

/// "Exact": a lease of 1500 ms holds at 1.4 s and is over at 1.6 s; nothing rounds to seconds.
pub async fn a_lease_is_not_rounded_to_seconds(store: &dyn Store) {
    // What the store's clock read lies between the moments before and after a call. A machine that is too slow to
    // tell is asked again.
    for _ in 0..10 {
        if lease_of_1500_ms_was_seen_on_both_sides(store, &fresh_id()).await {
            return;
        }
    }
    panic!("this machine is too slow to see a lease of 1500 ms between 1.1 s and 1.4 s and between 1.6 s and 1.9 s");
}

async fn lease_of_1500_ms_was_seen_on_both_sides(store: &dyn Store, id: &RecordId) -> bool {
    let lease = Lease { term: Duration::from_millis(1500), unsettled: LONG.unsettled };
    let before = Instant::now();
    acquired(store.claim(id, &new_claim(lease)).await.expect("claim"), 1);
    let after = Instant::now();
    let (mut seen_live, mut seen_over) = (false, false);
    while !seen_over && after.elapsed() < Duration::from_millis(1900) {
        let at_least = after.elapsed();
        let record = store.lookup(id).await.expect("lookup");
        let at_most = before.elapsed();
        if at_most <= Duration::from_millis(1400) {
            assert!(
                is_in_flight(record.as_ref()),
                "after at most {at_most:?} the lease of 1500 ms is over: {record:?}"
            );
            seen_live |= at_least >= Duration::from_millis(1100);
        }
        if at_least >= Duration::from_millis(1600) {
            assert!(
                is_abandoned(record.as_ref()),
                "after at least {at_least:?} the lease of 1500 ms holds: {record:?}"
            );
            seen_over |= at_most <= Duration::from_millis(1900);
        }
        sleep(Duration::from_millis(20)).await;
    }
    seen_live && seen_over
}

/// "Abandoned (claimed, the lease ended without a completion)": the record stays, and the time since then grows.
pub async fn an_ended_lease_leaves_an_abandoned_record(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(SHORT));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    until(store, &id, "abandoned", is_abandoned).await;
    let record = present(store, &id).await;
    assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, 1));
    let State::Abandoned { since: first } = record.state else { panic!("not abandoned: {record:?}") };
    until(
        store,
        &id,
        "abandoned for longer",
        |record| matches!(record.map(|record| &record.state), Some(State::Abandoned { since }) if *since > first),
    )
    .await;
}

/// "Existing": an abandoned record is reported to a claim that may not take it over.
pub async fn an_abandoned_record_is_reported_to_a_claim(store: &dyn Store) {
    let id = fresh_id();
    let token = abandoned(store, &id).await;
    let record = existing(store.claim(&id, &new_claim(LONG)).await.expect("claim"));
    assert_eq!(record.token, token);
    assert!(is_abandoned(Some(&record)), "{record:?}");
    assert_unchanged(&record, &present(store, &id).await);
}

/// "Makes the lease run for `lease.term` from now": longer than it would have, with the same owner and attempt.
pub async fn renewing_extends_the_lease(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    let longer = Lease { term: LONG.term * 2, unsettled: LONG.unsettled };
    assert_eq!(store.renew(&id, claim.token, longer).await.expect("renew"), Fenced::Applied);
    let record = present(store, &id).await;
    assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, 1));
    let State::InFlight { lease_left } = record.state else { panic!("not in flight: {record:?}") };
    assert!(lease_left > LONG.term && lease_left <= longer.term, "{lease_left:?} of the lease are left");
}

/// "Makes the lease run for `lease.term` from now": also when that is shorter.
pub async fn renewing_may_shorten_the_lease(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    assert_eq!(store.renew(&id, token, SHORT).await.expect("renew"), Fenced::Applied);
    until(store, &id, "abandoned", is_abandoned).await;
}

/// "A term of zero ends it at once, and the record is abandoned."
pub async fn renewing_for_no_time_abandons_the_record_at_once(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    let ended = Lease { term: Duration::ZERO, unsettled: LONG.unsettled };
    assert_eq!(store.renew(&id, token, ended).await.expect("renew"), Fenced::Applied);
    let record = present(store, &id).await;
    assert!(is_abandoned(Some(&record)), "{record:?}");
    assert_eq!(record.token, token);
}

/// "An ended lease alone fences nobody": the holder of an abandoned record may renew it.
pub async fn the_holder_of_an_abandoned_record_may_renew_it(store: &dyn Store) {
    let id = fresh_id();
    let token = abandoned(store, &id).await;
    assert_eq!(store.renew(&id, token, LONG).await.expect("renew"), Fenced::Applied);
    let record = present(store, &id).await;
    assert!(is_in_flight(Some(&record)), "{record:?}");
    assert_eq!((record.token, record.attempt), (token, 1));
}

/// "Otherwise (absent, completed, another token) `Lost`": absent, and it stays absent.
pub async fn renewing_an_absent_record_is_lost(store: &dyn Store) {
    let id = fresh_id();
    assert_eq!(store.renew(&id, new_claim(LONG).token, LONG).await.expect("renew"), Fenced::Lost);
    assert_eq!(store.lookup(&id).await.expect("lookup"), None);
}

/// "Otherwise (absent, completed, another token) `Lost`": completed, and the response stays.
pub async fn renewing_a_completed_record_is_lost(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    assert_eq!(store.complete(&id, token, &response("done"), RETENTION).await.expect("complete"), Fenced::Applied);
    let before = present(store, &id).await;
    assert_eq!(store.renew(&id, token, SHORT).await.expect("renew"), Fenced::Lost);
    assert_eq!(present(store, &id).await, before);
}

/// "One clock": a lease of one nanosecond is a lease that ends, not one for ever and not an error.
pub async fn a_lease_of_a_nanosecond_ends(store: &dyn Store) {
    let id = fresh_id();
    let lease = Lease { term: Duration::from_nanos(1), unsettled: LONG.unsettled };
    acquired(store.claim(&id, &new_claim(lease)).await.expect("claim"), 1);
    until(store, &id, "abandoned", is_abandoned).await;
}

/// "A duration too long for the store's clock means 'for ever' and must neither overflow nor wrap."
pub async fn durations_too_long_for_a_clock_mean_for_ever(store: &dyn Store) {
    let year = Duration::from_secs(365 * 86_400);
    let long = [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(i64::MAX as u64)];
    for for_ever in long.into_iter().chain([Duration::from_millis(i64::MAX as u64), Duration::from_millis(u64::MAX)]) {
        let (id, claim) = (fresh_id(), new_claim(Lease { term: for_ever, unsettled: for_ever }));
        acquired(store.claim(&id, &claim).await.expect("claim"), 1);
        still_in_flight_in(year, store, &id).await;
        let renewed = store.renew(&id, claim.token, claim.lease).await.expect("renew");
        assert_eq!(renewed, Fenced::Applied);
        still_in_flight_in(year, store, &id).await;
        let ended = Lease { term: Duration::ZERO, unsettled: for_ever };
        assert_eq!(store.renew(&id, claim.token, ended).await.expect("renew"), Fenced::Applied);
        assert!(is_abandoned(Some(&present(store, &id).await)), "an unsettled term of {for_ever:?} wrapped");
        let completed = store.complete(&id, claim.token, &response("kept"), for_ever).await.expect("complete");
        assert_eq!(completed, Fenced::Applied);
        assert_eq!(present(store, &id).await.state, State::Completed(response("kept")));
    }
}

async fn still_in_flight_in(time: Duration, store: &dyn Store, id: &RecordId) {
    let record = present(store, id).await;
    let State::InFlight { lease_left } = record.state else { panic!("not in flight: {record:?}") };
    assert!(lease_left > time, "only {lease_left:?} of an endless lease are left");
}
