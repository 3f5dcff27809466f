//! Stores over a network: a statement that takes effect after it was given up, and one that the driver repeats. On Tokio's
//! paused clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::time::sleep;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, OnAbandoned, Settled, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, State, StoreError, Token},
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Charges, call, charge, record};

/// A memory store with the manners of a server.
#[derive(Debug, Default)]
struct Server {
    inner: Arc<MemoryStore>,
    /// The next claim is given up by its caller, and carried out ten seconds later.
    late: AtomicBool,
    /// Each claim is sent twice, and the second answer counts.
    repeats: AtomicBool,
    /// Renewals of the keys in one part of the store hang.
    hangs_in_part: AtomicBool,
}

#[async_trait]
impl Store for Server {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        if self.late.swap(false, Ordering::SeqCst) {
            let (inner, id, claim) = (Arc::clone(&self.inner), id.clone(), claim.clone());
            tokio::spawn(async move {
                sleep(Duration::from_secs(10)).await;
                let _ = inner.claim(&id, &claim).await;
            });
            std::future::pending::<()>().await;
        }
        if self.repeats.load(Ordering::SeqCst) {
            let _ = self.inner.claim(id, claim).await?;
        }
        self.inner.claim(id, claim).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        if self.hangs_in_part.load(Ordering::SeqCst) && id.key().as_str().starts_with("part-") {
            std::future::pending::<()>().await;
        }
        self.inner.renew(id, token, lease).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.inner.complete(id, token, response, retention).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.inner.release(id, token).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.inner.lookup(id).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.inner.purge(limit).await
    }
}

fn layer(server: &Arc<Server>) -> IdempotencyLayer<Arc<Server>> {
    IdempotencyLayer::new(Arc::clone(server)).on_abandoned(OnAbandoned::Refuse)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_carried_out_after_it_was_given_up_is_freed() {
    let (charges, server) = (Charges::free(), Arc::new(Server::default()));
    let layer = layer(&server);
    server.late.store(true, Ordering::SeqCst);

    assert_eq!(charge(&layer, "k", &charges).await.problem(), "store-unavailable");
    assert!(server.inner.is_empty(), "not yet carried out");
    // Beyond the moment at which it is carried out, and the next look for it.
    sleep(Duration::from_secs(20)).await;

    assert!(server.inner.is_empty(), "the claim of nobody is gone");
    assert_eq!(charge(&layer, "k", &charges).await.status, StatusCode::CREATED);
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_driver_repeats_runs_once() {
    let (charges, server) = (Charges::free(), Arc::new(Server::default()));
    let layer = layer(&server);
    server.repeats.store(true, Ordering::SeqCst);

    assert_eq!(charge(&layer, "k", &charges).await.status, StatusCode::CREATED);
    assert!(charge(&layer, "k", &charges).await.is_replay());
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_whose_claim_the_driver_repeats_is_done() {
    let (charges, server) = (Charges::free(), Arc::new(Server::default()));
    let layer = layer(&server);
    assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
    server.repeats.store(true, Ordering::SeqCst);

    let answer = Response::builder().status(402).body(Bytes::from("no charge was made")).unwrap();
    assert_eq!(layer.settle(&record("k"), &answer).await.unwrap(), Settled::Done);

    assert_eq!(charge(&layer, "k", &charges).await.status, StatusCode::PAYMENT_REQUIRED);
    assert_eq!(charges.runs.total(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_for_the_store_keeps_no_turn_of_a_run() {
    let (charges, store) = (Charges::free(), Arc::new(Faulty::new(MemoryStore::new())));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).max_runs(1);
    store.fail_all(Operation::Complete, Fault::BeforeEffect);

    for key in ["a", "b", "c"] {
        assert_eq!(charge(&layer, key, &charges).await.status, StatusCode::CREATED, "{key}");
    }
    store.heal();
    assert_eq!(layer.drain(Duration::from_secs(60)).await, 0);
    assert!(charge(&layer, "a", &charges).await.is_replay());
    assert_eq!(charges.runs.total(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_does_not_revive_the_lease_of_a_run_that_failed() {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(Duration::from_secs(3));
    // The first renewal is under way when the run fails, and its answer gets lost.
    store.fail_next(Operation::Renew, Fault::DelayBefore(Duration::from_millis(900)));
    store.fail_next(Operation::Renew, Fault::AfterEffect);

    let cut_short = call(&layer, "k", async |_| {
        sleep(Duration::from_millis(1500)).await;
        Err("cut short")
    });
    assert_eq!(cut_short.await, Err("cut short"));
    sleep(Duration::from_secs(2)).await;

    let charges = Charges::free();
    let retry = charge(&layer, "k", &charges).await;
    assert_eq!((retry.status, retry.headers["x-attempt"].to_str().unwrap()), (StatusCode::CREATED, "2"));
}

#[tokio::test(start_paused = true)]
async fn a_part_of_the_store_that_hangs_costs_the_keys_of_the_others_no_lease() {
    const HUNG: usize = 3000;
    let server = Arc::new(Server::default());
    let layer = layer(&server).lease(Duration::from_secs(3));
    server.hangs_in_part.store(true, Ordering::SeqCst);
    let runs: Vec<_> = (0..=HUNG)
        .map(|run| {
            let (layer, key) = (layer.clone(), if run == HUNG { "k".to_owned() } else { format!("part-{run}") });
            tokio::spawn(async move { call(&layer, &key, async |_| std::future::pending().await).await })
        })
        .collect();

    for _ in 0..120 {
        sleep(Duration::from_millis(250)).await;
        let state = server.inner.lookup(&record("k")).await.unwrap().unwrap().state;
        assert!(matches!(state, State::InFlight { .. }), "{state:?}");
    }
    runs.into_iter().for_each(|run| run.abort());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_does_not_revive_the_lease_of_a_rerun_that_did_nothing() {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(Duration::from_secs(3));
    assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
    // The renewal is sent after one second and takes effect between the effect and the answer of the write that abandons
    // the key.
    store.fail_next(Operation::Renew, Fault::DelayBefore(Duration::from_millis(400)));
    store.fail_next(Operation::Renew, Fault::DelayAfter(Duration::from_millis(500)));

    let busy = call(&layer, "k", async |_| {
        sleep(Duration::from_millis(1200)).await;
        Ok(Response::builder().status(503).body(Default::default()).unwrap())
    });
    assert_eq!(busy.await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);

    let charges = Charges::free();
    let retry = charge(&layer, "k", &charges).await;
    assert_eq!((retry.status, retry.headers["x-attempt"].to_str().unwrap()), (StatusCode::CREATED, "3"));
}
