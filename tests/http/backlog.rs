//! Answers that the store does not take: the client is answered all the same, and nothing runs again.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use http::StatusCode;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, StoreError, Token},
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Answer, Charges, PATIENCE, charge};

/// How many answers may wait in full for a store that is down.
const IN_FULL: usize = 1024;

#[track_caller]
fn assert_done_but_not_replayable(retry: &Answer) {
    assert_eq!((retry.status, retry.problem().as_str()), (StatusCode::CONFLICT, "not-replayable"));
    assert!(!retry.headers.contains_key("retry-after"));
    let document: serde_json::Value = serde_json::from_slice(&retry.body).unwrap();
    assert!(document.as_object().unwrap().values().any(|member| *member == 201), "the first status: {document}");
}

#[tokio::test(start_paused = true)]
async fn any_number_of_clients_are_answered_while_the_store_takes_no_answer_and_nothing_runs_again() {
    const BEYOND: usize = 10;
    let charges = Charges::free();
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    store.fail_all(Operation::Complete, Fault::BeforeEffect);

    let keys: Vec<_> = (0..IN_FULL + BEYOND).map(|number| format!("k-{number}")).collect();
    for key in &keys {
        let first = charge(&layer, key, &charges).await;
        assert_eq!(first.status, StatusCode::CREATED, "{key}");
    }
    // For longer than the lease.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(charge(&layer, &keys[IN_FULL + 1], &charges).await.problem(), "in-flight");
    store.heal();
    assert_eq!(layer.drain(PATIENCE).await, 0);

    let retries = join_all(keys.iter().map(|key| charge(&layer, key, &charges))).await;
    let (replayed, others): (Vec<_>, Vec<_>) = retries.iter().partition(|retry| retry.is_replay());
    assert_eq!((replayed.len(), others.len()), (IN_FULL, BEYOND));
    others.into_iter().for_each(assert_done_but_not_replayable);
    assert_eq!(charges.runs.total(), keys.len());
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_answers_in_full_again_after_the_store_was_back() {
    let charges = Charges::free();
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    for outage in 0..2 {
        store.fail_all(Operation::Complete, Fault::BeforeEffect);
        for number in 0..IN_FULL {
            charge(&layer, &format!("k-{outage}-{number}"), &charges).await;
        }
        store.heal();
        assert_eq!(layer.drain(PATIENCE).await, 0);
        for number in 0..IN_FULL {
            assert!(charge(&layer, &format!("k-{outage}-{number}"), &charges).await.is_replay());
        }
    }
}

/// A store that keeps only so many bytes of an answer.
#[derive(Debug)]
struct Narrow(Faulty<MemoryStore>, usize);

#[async_trait]
impl Store for Narrow {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.0.claim(id, claim).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        self.0.renew(id, token, lease).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        if response.as_encoded().len() > self.1 {
            return Err(StoreError::rejected("too long"));
        }
        self.0.complete(id, token, response, retention).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.0.release(id, token).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.0.lookup(id).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.0.purge(limit).await
    }
}

/// A store that takes no answer in full, but the fact that there was one.
fn narrow() -> (Arc<Narrow>, IdempotencyLayer<Arc<Narrow>>) {
    let done = StoredResponse::not_replayable(StatusCode::CREATED).as_encoded().len();
    let store = Arc::new(Narrow(Faulty::new(MemoryStore::new()), done));
    (Arc::clone(&store), IdempotencyLayer::new(store))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_store_rejects_for_good_is_given_and_kept_as_done() {
    let (charges, (_, layer)) = (Charges::free(), narrow());

    let first = charge(&layer, "k", &charges).await;
    assert_eq!((first.status, &first.body[..]), (StatusCode::CREATED, &b"charge 1"[..]));

    assert_eq!(layer.drain(PATIENCE).await, 0);
    assert_done_but_not_replayable(&charge(&layer, "k", &charges).await);
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_store_rejects_after_an_outage_is_kept_as_done() {
    let (charges, (store, layer)) = (Charges::free(), narrow());
    // The store is down for the second try, which is the first one to write less.
    store.0.fail_next(Operation::Complete, Fault::BeforeEffect);
    store.0.fail_next(Operation::Complete, Fault::BeforeEffect);

    assert_eq!(charge(&layer, "k", &charges).await.body, "charge 1");

    assert_eq!(layer.drain(PATIENCE).await, 0);
    assert_done_but_not_replayable(&charge(&layer, "k", &charges).await);
    assert_eq!(store.0.calls(Operation::Complete), 3);
}
