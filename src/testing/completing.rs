//! Cases about the two ends of a claim: the stored response, and the freed key.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};

use super::support::*;
use crate::{
    StoredResponse,
    store::{Fenced, RecordId, State, Store, Token},
};

/// "Stores the response": every byte of it, whatever it is made of, up to 1 MiB at least.
pub async fn a_stored_response_is_byte_identical(store: &dyn Store) {
    let every_byte: Bytes = (0..=255).collect();
    let mut with_headers = Response::builder().status(StatusCode::CREATED).body(every_byte.clone()).expect("valid");
    let headers = with_headers.headers_mut();
    for value in ["1", "2", "", "2"] {
        headers.append("x-repeated", HeaderValue::from_static(value));
    }
    let high: Vec<u8> = (0x80..=0xFF).collect();
    headers.append("x-high", HeaderValue::from_bytes(&high).expect("bytes above 0x7F are valid in a header value"));
    let json = Bytes::from_static(b"{ \"a\" : 1.0,\"a\":1.00 ,\n\"b\":\"\\u0000\" }");
    let large: Bytes = every_byte.iter().cycle().take(1 << 20).copied().collect();
    let responses = [
        StoredResponse::of(&with_headers),
        response(Bytes::new()),
        response(json),
        response(large),
        StoredResponse::not_replayable(StatusCode::ACCEPTED),
    ];
    for response in responses {
        let id = fresh_id();
        let token = in_flight(store, &id).await;
        complete(store, &id, token, &response, Fenced::Applied).await;
        let record = present(store, &id).await;
        assert_eq!((record.token, record.attempt), (token, 1));
        let State::Completed(stored) = record.state else { panic!("not completed: {record:?}") };
        assert!(stored.as_encoded() == response.as_encoded(), "{response:?} was stored, {stored:?} came back");
    }
}

/// "Existing": a completed record is reported to a claim with its response, and stays as it is.
pub async fn a_completed_record_is_reported_to_a_claim(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    complete(store, &id, claim.token, &response("answer"), Fenced::Applied).await;
    let record = existing(store.claim(&id, &new_claim(LONG)).await.expect("claim"));
    assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, 1));
    assert_eq!(record.state, State::Completed(response("answer")));
    assert_eq!(present(store, &id).await, record);
}

/// "If it is already completed under this token, nothing changes and the answer is `Applied` too."
pub async fn a_repeated_completion_is_applied_and_changes_nothing(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    complete(store, &id, token, &response("first"), Fenced::Applied).await;
    let before = present(store, &id).await;
    for repeated in ["first", "second", ""] {
        complete(store, &id, token, &response(repeated), Fenced::Applied).await;
        assert_eq!(present(store, &id).await, before, "a repeated completion changed the record");
    }
}

/// "In flight or abandoned under this token": the lease may have ended.
pub async fn the_holder_of_an_abandoned_record_may_complete_it(store: &dyn Store) {
    let id = fresh_id();
    let token = abandoned(store, &id).await;
    complete(store, &id, token, &response("late"), Fenced::Applied).await;
    assert_eq!(present(store, &id).await.state, State::Completed(response("late")));
}

/// "Complete", after a takeover: the response is the new owner's, and the attempt stays.
pub async fn a_taken_over_record_is_completed_by_its_new_owner(store: &dyn Store) {
    let id = fresh_id();
    let old = abandoned(store, &id).await;
    let claim = new_claim(LONG).replacing(old);
    acquired(store.claim(&id, &claim).await.expect("claim"), 2);
    complete(store, &id, claim.token, &response("second attempt"), Fenced::Applied).await;
    let record = present(store, &id).await;
    assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, 2));
    assert_eq!(record.state, State::Completed(response("second attempt")));
}

/// "Otherwise `Lost`": an absent record is not made by a completion.
pub async fn completing_an_absent_record_is_lost(store: &dyn Store) {
    let id = fresh_id();
    complete(store, &id, new_claim(LONG).token, &response("nobody's"), Fenced::Lost).await;
    assert_eq!(store.lookup(&id).await.expect("lookup"), None);
}

/// "Atomic": of concurrent completions and releases with one token, either the response stays or the key is free.
pub async fn a_completion_and_a_release_never_both_apply(store: &dyn Store) {
    for _ in 0..5 {
        let id = fresh_id();
        let token = in_flight(store, &id).await;
        let turn = AtomicUsize::new(0);
        let outcomes = at_once(2, || async {
            if turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                (true, store.complete(&id, token, &response("kept"), RETENTION).await.expect("complete"))
            } else {
                (false, store.release(&id, token).await.expect("release"))
            }
        })
        .await;
        let completed = outcomes.contains(&(true, Fenced::Applied));
        let released = outcomes.contains(&(false, Fenced::Applied));
        assert!(completed != released, "completed: {completed}, released: {released}");
        assert_eq!(store.lookup(&id).await.expect("lookup").is_some(), completed);
    }
}

/// "Removes the record, so that the next claim acquires it as new."
pub async fn a_released_key_is_claimed_as_new(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    assert_eq!(store.release(&id, token).await.expect("release"), Fenced::Applied);
    assert_eq!(store.lookup(&id).await.expect("lookup"), None);
    acquired(store.claim(&id, &new_claim(LONG)).await.expect("claim"), 1);
}

/// "In flight or abandoned under this token": an abandoned record is released too, whatever its attempt was.
pub async fn the_holder_of_an_abandoned_record_may_release_it(store: &dyn Store) {
    let id = fresh_id();
    let old = abandoned(store, &id).await;
    let claim = new_claim(SHORT).replacing(old);
    acquired(store.claim(&id, &claim).await.expect("claim"), 2);
    until(store, &id, "abandoned", is_abandoned).await;
    assert_eq!(store.release(&id, claim.token).await.expect("release"), Fenced::Applied);
    acquired(store.claim(&id, &new_claim(LONG)).await.expect("claim"), 1);
}

/// "A completed record is never released."
pub async fn a_completed_record_cannot_be_released(store: &dyn Store) {
    let id = fresh_id();
    let token = in_flight(store, &id).await;
    complete(store, &id, token, &response("kept"), Fenced::Applied).await;
    let before = present(store, &id).await;
    assert_eq!(store.release(&id, token).await.expect("release"), Fenced::Lost);
    assert_eq!(present(store, &id).await, before);
}

/// "Otherwise `Lost`": an absent record, also one released before.
pub async fn releasing_an_absent_record_is_lost(store: &dyn Store) {
    let id = fresh_id();
    assert_eq!(store.release(&id, new_claim(LONG).token).await.expect("release"), Fenced::Lost);
    let token = in_flight(store, &id).await;
    assert_eq!(store.release(&id, token).await.expect("release"), Fenced::Applied);
    assert_eq!(store.release(&id, token).await.expect("release"), Fenced::Lost);
}

/// "Fenced": a token released once means nothing to the claim that came after.
pub async fn a_released_token_cannot_touch_the_next_record(store: &dyn Store) {
    let id = fresh_id();
    let old = in_flight(store, &id).await;
    assert_eq!(store.release(&id, old).await.expect("release"), Fenced::Applied);
    let new = in_flight(store, &id).await;
    complete(store, &id, old, &response("too late"), Fenced::Lost).await;
    assert_eq!(store.release(&id, old).await.expect("release"), Fenced::Lost);
    assert_eq!(present(store, &id).await.token, new);
}

async fn complete(store: &dyn Store, id: &RecordId, token: Token, response: &StoredResponse, expected: Fenced) {
    let outcome = store.complete(id, token, response, RETENTION).await.expect("complete");
    assert_eq!(outcome, expected, "complete with {response:?}");
}
