//! A store that panics counts as one that is unavailable.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use http::{Response, StatusCode};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Store, StoreOutage, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, State, StoreError, Token},
    testing::Operation,
};

use crate::support::{Answer, Charges, PATIENCE, call, charge, eventually, record};

const SHORT: Duration = Duration::from_millis(300);

/// A memory store some of whose calls panic, before or after their effect.
#[derive(Debug, Default)]
struct Panicking {
    inner: MemoryStore,
    next: Mutex<Vec<(Operation, Moment)>>,
    renewals: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeEffect,
    AfterEffect,
}

impl Panicking {
    /// Makes the next call of an operation panic, once for each time this is called.
    fn plan(&self, operation: Operation, moment: Moment) {
        self.next.lock().unwrap().push((operation, moment));
    }

    /// Tells whether everything that was planned has happened.
    fn is_through(&self) -> bool {
        self.next.lock().unwrap().is_empty()
    }

    async fn pass<T>(&self, operation: Operation, effect: impl Future<Output = T>) -> T {
        let moment = {
            let mut next = self.next.lock().unwrap();
            let planned = next.iter().position(|(planned, _)| *planned == operation);
            planned.map(|planned| next.remove(planned).1)
        };
        assert_ne!(moment, Some(Moment::BeforeEffect), "the store panics, as the test asks for");
        let outcome = effect.await;
        assert_ne!(moment, Some(Moment::AfterEffect), "the store panics, as the test asks for");
        outcome
    }
}

#[async_trait]
impl Store for Panicking {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.pass(Operation::Claim, self.inner.claim(id, claim)).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        let outcome = self.pass(Operation::Renew, self.inner.renew(id, token, lease)).await;
        self.renewals.fetch_add(1, Ordering::SeqCst);
        outcome
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.pass(Operation::Complete, self.inner.complete(id, token, response, retention)).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.pass(Operation::Release, self.inner.release(id, token)).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.pass(Operation::Lookup, self.inner.lookup(id)).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.pass(Operation::Purge, self.inner.purge(limit)).await
    }
}

type Layer = IdempotencyLayer<Arc<Panicking>>;

/// A layer whose lease is so long that a key blocked for it would stay blocked.
fn panicking() -> (Arc<Panicking>, Layer) {
    let store = Arc::<Panicking>::default();
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(20 * PATIENCE);
    (store, layer)
}

/// Repeats a charge until its answer is not "in flight" any more.
async fn retry(layer: &Layer, charges: &Charges) -> Answer {
    for _ in 0..PATIENCE.as_millis() / 5 {
        let answer = charge(layer, "k", charges).await;
        if answer.status != StatusCode::CONFLICT {
            return answer;
        }
        assert_eq!(answer.problem(), "in-flight");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the key stays blocked");
}

#[tokio::test]
async fn a_panic_in_a_claim_is_answered_with_503_and_leaves_the_key_free() {
    for moment in [Moment::BeforeEffect, Moment::AfterEffect] {
        let (charges, (store, layer)) = (Charges::free(), panicking());
        store.plan(Operation::Claim, moment);

        let refused = charge(&layer, "k", &charges).await;
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (503, "store-unavailable"));
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(charges.runs.total(), 0);

        assert_eq!(retry(&layer, &charges).await.headers["x-attempt"], "1");
    }
}

#[tokio::test]
async fn where_requests_proceed_without_a_store_they_do_so_after_a_panic_too() {
    let (charges, (store, layer)) = (Charges::free(), panicking());
    store.plan(Operation::Claim, Moment::BeforeEffect);
    assert_eq!(charge(&layer.on_outage(StoreOutage::Proceed), "k", &charges).await.status, StatusCode::CREATED);
    assert!(store.is_through());
}

#[tokio::test]
async fn a_panic_in_a_renewal_ends_neither_the_renewals_nor_the_run() {
    let (charges, (store, layer)) = (Charges::held(), panicking());
    let layer = layer.lease(SHORT);
    for _ in 0..3 {
        store.plan(Operation::Renew, Moment::BeforeEffect);
    }
    let first = tokio::spawn(charge(&layer, "k", &charges));

    eventually(|| store.renewals.load(Ordering::SeqCst) >= 3).await;
    assert!(store.is_through());

    assert_eq!(charge(&layer, "k", &charges).await.problem(), "in-flight");
    charges.let_go(1);
    assert_eq!(first.await.unwrap().body, "charge 1");
    assert!(charge(&layer, "k", &charges).await.is_replay());
}

#[tokio::test]
async fn a_panic_in_a_completion_does_not_reach_the_client_and_the_answer_is_stored_later() {
    for moment in [Moment::BeforeEffect, Moment::AfterEffect] {
        let (charges, (store, layer)) = (Charges::free(), panicking());
        for _ in 0..3 {
            store.plan(Operation::Complete, moment);
        }

        let first = charge(&layer, "k", &charges).await;
        assert_eq!((first.status, &first.body[..]), (StatusCode::CREATED, &b"charge 1"[..]));
        assert!(!first.is_replay());

        assert_eq!(layer.drain(PATIENCE).await, 0);
        assert!(store.is_through());
        let replay = charge(&layer, "k", &charges).await;
        assert!(replay.is_replay());
        assert_eq!(replay.body, first.body);
    }
}

#[tokio::test]
async fn a_panic_in_a_release_does_not_reach_the_client_and_the_key_is_freed_later() {
    for moment in [Moment::BeforeEffect, Moment::AfterEffect] {
        let (charges, (store, layer)) = (Charges::free(), panicking());
        store.plan(Operation::Release, moment);
        store.plan(Operation::Release, moment);
        let busy = call(&layer, "k", async |_| {
            Ok(Response::builder().status(503).body("nothing was executed".into()).unwrap())
        });

        assert_eq!(busy.await.unwrap().body, "nothing was executed");

        assert_eq!(layer.drain(PATIENCE).await, 0);
        assert!(store.is_through());
        assert_eq!(charge(&layer, "k", &charges).await.headers["x-attempt"], "1");
    }
}

#[tokio::test]
async fn a_panic_as_a_failed_run_gives_its_lease_back_does_not_hide_the_failure() {
    let (store, layer) = panicking();
    store.plan(Operation::Renew, Moment::BeforeEffect);
    assert_eq!(call(&layer, "k", async |_| Err("the gateway is gone")).await, Err("the gateway is gone"));
    assert!(store.is_through());
}

#[tokio::test]
async fn a_panic_in_a_look_does_not_reach_a_waiter() {
    let (charges, (store, here)) = (Charges::held(), panicking());
    let there = IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE);
    let first = tokio::spawn(charge(&here, "k", &charges));
    charges.runs.reach(1).await;
    for _ in 0..3 {
        store.plan(Operation::Lookup, Moment::BeforeEffect);
    }
    let waiter = tokio::spawn(charge(&there, "k", &charges));

    eventually(|| store.is_through() || waiter.is_finished()).await;
    charges.let_go(1);

    assert!(waiter.await.expect("an answer, and no panic").is_replay());
    assert_eq!(first.await.unwrap().body, "charge 1");
}

#[tokio::test]
async fn a_panic_as_an_operator_settles_a_key_is_an_error_and_can_be_repeated() {
    let (store, layer) = panicking();
    assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
    for operation in [Operation::Lookup, Operation::Complete] {
        store.plan(operation, Moment::BeforeEffect);
        let answer = Response::new("settled".into());
        let failed = layer.settle(&record("k"), &answer).await.expect_err("a store that panics");
        assert!(failed.is_unavailable(), "{operation:?}: {failed:?}");
    }

    let _ = layer.settle(&record("k"), &Response::new("settled".into())).await.unwrap();
    let settled = store.inner.lookup(&record("k")).await.unwrap().unwrap();
    assert!(matches!(settled.state, State::Completed(_)), "{settled:?}");
}
