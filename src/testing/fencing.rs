//! Cases about takeovers, and about holders that were taken over.

use super::support::*;
use crate::store::{Claim, Fenced, RecordId, Store, Token};

/// "Abandoned, and `claim.replaces` is the record's token": in flight again, new token and fingerprint, attempt 2.
pub async fn an_abandoned_record_can_be_taken_over(store: &dyn Store) {
    let id = fresh_id();
    let mut previous = abandoned(store, &id).await;
    for attempt in 2..5 {
        let claim = new_claim(SHORT).replacing(previous);
        acquired(store.claim(&id, &claim).await.expect("claim"), attempt);
        let record = present(store, &id).await;
        assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, attempt));
        until(store, &id, "abandoned", is_abandoned).await;
        previous = claim.token;
    }
    acquired(store.claim(&id, &new_claim(LONG).replacing(previous)).await.expect("claim"), 5);
    assert!(is_in_flight(Some(&present(store, &id).await)));
}

/// "Otherwise nothing changes": a record in flight is not taken over, even by a claim that names its token.
pub async fn a_record_in_flight_cannot_be_taken_over(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    let before = present(store, &id).await;
    let reported = existing(store.claim(&id, &new_claim(LONG).replacing(token)).await.expect("claim"));
    assert_unchanged(&before, &reported);
    assert_unchanged(&before, &present(store, &id).await);
}

/// "Otherwise nothing changes": a completed record is not taken over, even by a claim that names its token.
pub async fn a_completed_record_cannot_be_taken_over(store: &dyn Store) {
    let id = fresh_id();
    let token = abandoned(store, &id).await;
    assert_eq!(store.complete(&id, token, &response("kept"), RETENTION).await.expect("complete"), Fenced::Applied);
    let before = present(store, &id).await;
    assert_eq!(existing(store.claim(&id, &new_claim(LONG).replacing(token)).await.expect("claim")), before);
    assert_eq!(present(store, &id).await, before);
}

/// "Abandoned, and `claim.replaces` is the record's token": any other token takes nothing over.
pub async fn a_takeover_must_name_the_current_token(store: &dyn Store) {
    let id = fresh_id();
    let first = abandoned(store, &id).await;
    let stranger = new_claim(LONG).token;
    let second = new_claim(SHORT).replacing(first);
    existing(store.claim(&id, &new_claim(LONG).replacing(stranger)).await.expect("claim"));
    acquired(store.claim(&id, &second).await.expect("claim"), 2);
    until(store, &id, "abandoned", is_abandoned).await;
    let before = present(store, &id).await;
    for wrong in [first, stranger] {
        let reported = existing(store.claim(&id, &new_claim(LONG).replacing(wrong)).await.expect("claim"));
        assert_unchanged(&before, &reported);
    }
    assert_unchanged(&before, &present(store, &id).await);
}

/// "Atomic": of any number of concurrent takeovers exactly one acquires the record.
pub async fn of_concurrent_takeovers_exactly_one_is_acquired(store: &dyn Store) {
    for _ in 0..5 {
        let id = fresh_id();
        let previous = abandoned(store, &id).await;
        let outcomes = at_once(8, || async {
            let claim = new_claim(LONG).replacing(previous);
            (claim.token, store.claim(&id, &claim).await.expect("claim"))
        })
        .await;
        let won = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Claim::Acquired { attempt: 2 }));
        let winners: Vec<Token> = won.map(|(token, _)| *token).collect();
        assert_eq!(winners.len(), 1, "{} of {} takeovers were acquired", winners.len(), outcomes.len());
        assert_eq!(present(store, &id).await.token, winners[0]);
    }
}

/// "Fenced": a holder that was taken over can do nothing to a record in flight.
pub async fn a_lost_holder_cannot_touch_a_record_in_flight(store: &dyn Store) {
    let id = fresh_id();
    let old = abandoned(store, &id).await;
    acquired(store.claim(&id, &new_claim(LONG).replacing(old)).await.expect("claim"), 2);
    every_write_is_lost(store, &id, old).await;
}

/// "Fenced": a holder that was taken over can do nothing to an abandoned record.
pub async fn a_lost_holder_cannot_touch_an_abandoned_record(store: &dyn Store) {
    let id = fresh_id();
    let old = abandoned(store, &id).await;
    acquired(store.claim(&id, &new_claim(SHORT).replacing(old)).await.expect("claim"), 2);
    until(store, &id, "abandoned", is_abandoned).await;
    every_write_is_lost(store, &id, old).await;
}

/// "Fenced": a holder that was taken over can do nothing to a completed record, which stays byte-identical.
pub async fn a_lost_holder_cannot_touch_a_completed_record(store: &dyn Store) {
    let id = fresh_id();
    let old = abandoned(store, &id).await;
    let claim = new_claim(LONG).replacing(old);
    acquired(store.claim(&id, &claim).await.expect("claim"), 2);
    let completed = store.complete(&id, claim.token, &response("the new owner's"), RETENTION).await.expect("complete");
    assert_eq!(completed, Fenced::Applied);
    every_write_is_lost(store, &id, old).await;
}

/// "Fenced": a token that never held anything can do nothing.
pub async fn a_strangers_token_cannot_touch_a_record(store: &dyn Store) {
    let id = fresh_id();
    let _holder = in_flight(store, &id).await;
    every_write_is_lost(store, &id, new_claim(LONG).token).await;
}

async fn every_write_is_lost(store: &dyn Store, id: &RecordId, token: Token) {
    let before = present(store, id).await;
    let completed = store.complete(id, token, &response("too late"), RETENTION).await.expect("complete");
    assert_eq!(completed, Fenced::Lost, "complete");
    assert_unchanged(&before, &present(store, id).await);
    for lease in [LONG, SHORT] {
        assert_eq!(store.renew(id, token, lease).await.expect("renew"), Fenced::Lost, "renew");
    }
    assert_unchanged(&before, &present(store, id).await);
    assert_eq!(store.release(id, token).await.expect("release"), Fenced::Lost, "release");
    assert_unchanged(&before, &present(store, id).await);
}
