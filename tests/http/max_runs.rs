//! No more runs at a time than allowed, whatever the clients do.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, routing::post};
use futures_util::future::join_all;
use http::StatusCode;
use tokio::sync::Semaphore;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, OnAbandoned, Store, StoreOutage, Verdict,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{
    Answer, Charges, Http, PATIENCE, VERSIONS, Version, Visits, call, charge, eventually, go_away, keyed, pay, record,
    serve,
};

#[track_caller]
fn assert_too_many(answer: &Answer) {
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "too-many-runs"));
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_beyond_the_limit_is_refused_and_runs_as_attempt_1_later() {
    for version in VERSIONS {
        let (charges, http, store) = (Charges::held(), Http::new(version), Arc::new(MemoryStore::new()));
        let server = serve(pay(&charges, &IdempotencyLayer::new(Arc::clone(&store)).max_runs(1))).await;
        let others = async {
            charges.runs.reach(1).await;
            assert_too_many(&http.pay(&server, "b").await);
            assert!(store.lookup(&record("b")).await.unwrap().is_none(), "nothing is left of it");
            charges.let_go(1);
        };
        let (first, ()) = tokio::join!(http.pay(&server, "a"), others);
        assert_eq!(first.body, "charge 1");

        charges.let_go(1);
        assert_eq!(http.pay(&server, "b").await.body, "charge 2");
    }
}

#[tokio::test]
async fn at_the_limit_retries_are_answered_as_ever() {
    let (charges, layer) = (Charges::held(), IdempotencyLayer::new(MemoryStore::new()).max_runs(1));
    charges.let_go(1);
    charge(&layer, "done", &charges).await;
    let running = tokio::spawn(charge(&layer, "running", &charges));
    charges.runs.reach(2).await;

    assert!(charge(&layer, "done", &charges).await.is_replay());
    assert_eq!(charge(&layer, "running", &charges).await.problem(), "in-flight");
    assert_too_many(&charge(&layer, "new", &charges).await);

    charges.let_go(1);
    assert_eq!(running.await.unwrap().body, "charge 2");
}

#[tokio::test]
async fn each_way_in_which_a_run_ends_makes_room_for_the_next_one() {
    let (charges, layer) = (Charges::free(), IdempotencyLayer::new(MemoryStore::new()).max_runs(1));
    assert_eq!(call(&layer, "error", async |_| Err("an error")).await, Err("an error"));
    let panic = tokio::spawn(call(&layer, "panic", async |_| panic!("as the test asks for")));
    panic.await.expect_err("the panic goes on");
    let released = call(&layer, "released", async |_| {
        Ok(http::Response::builder().status(503).body(bytes::Bytes::new().into()).unwrap())
    });
    assert_eq!(released.await.unwrap().status, 503);

    assert_eq!(charge(&layer, "k", &charges).await.status, StatusCode::CREATED);
    assert_eq!(charge(&layer, "k2", &charges).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn an_abandoned_key_stays_abandoned_where_there_is_no_room_for_its_next_run() {
    for policy in [OnAbandoned::Rerun, OnAbandoned::ask(async |_| Verdict::Rerun)] {
        let charges = Charges::held();
        let layer = IdempotencyLayer::new(MemoryStore::new()).max_runs(1).on_abandoned(policy);
        assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
        let running = tokio::spawn(charge(&layer, "running", &charges));
        charges.runs.reach(1).await;

        assert_too_many(&charge(&layer, "k", &charges).await);

        charges.let_go(2);
        running.await.unwrap();
        let attempt: u32 = charge(&layer, "k", &charges).await.headers["x-attempt"].to_str().unwrap().parse().unwrap();
        assert!(attempt > 1, "an earlier run may have had its effect");
    }
}

/// Counts those who are inside, and the most there ever were.
#[derive(Clone, Default)]
struct Inside(Arc<AtomicUsize>, Arc<AtomicUsize>);

impl Inside {
    fn enter(&self) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_and_go_away_never_cause_more_runs_than_allowed() {
    const LIMIT: usize = 3;
    const CLIENTS: usize = 50;
    for version in VERSIONS {
        let (inside, visits, gate) = (Inside::default(), Visits::default(), Arc::new(Semaphore::new(0)));
        let layer = IdempotencyLayer::new(MemoryStore::new()).max_runs(LIMIT);
        let (entered, held) = (inside.clone(), Arc::clone(&gate));
        let handler = post(async move || {
            entered.enter();
            let _ = held.acquire().await.unwrap();
            entered.leave();
        });
        let app = Router::new().route("/pay", handler).layer(layer.clone());
        let server = serve(visits.watch(app)).await;

        // Those that are refused are answered, and the others go away once all have arrived.
        let clients = join_all((0..CLIENTS).map(|number| {
            let (http, key) = (Http::new(version), format!("k-{number}"));
            let request = keyed(&server, "/pay", &key).body("{}".into()).unwrap();
            async move { http.send(request).await }
        }));
        let all_but_the_limit = eventually(|| visits.answered.total() >= CLIENTS - LIMIT);
        tokio::select! {
            _ = clients => panic!("those that run are held"),
            () = all_but_the_limit => {}
        }
        eventually(|| visits.over(CLIENTS)).await;
        assert_too_many(&Http::new(version).pay(&server, "one-more").await);
        gate.add_permits(Semaphore::MAX_PERMITS);

        assert_eq!(layer.drain(PATIENCE).await, 0);
        assert_eq!(inside.most(), LIMIT, "{version:?}");
        assert_eq!(Http::new(version).pay(&server, "one-more").await.status, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_for_runs_without_protection_too() {
    let (charges, http) = (Charges::held(), Http::new(Version::Http2));
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).on_outage(StoreOutage::Proceed).max_runs(1);
    let server = serve(pay(&charges, &layer)).await;
    store.fail_all(Operation::Claim, Fault::BeforeEffect);
    go_away(Version::Http2, &server, "a", charges.runs.reach(1)).await;

    let second = tokio::select! {
        answer = http.pay(&server, "b") => answer,
        () = charges.runs.reach(2) => panic!("two runs at a time"),
    };

    assert_too_many(&second);
    charges.let_go(1);
    assert_eq!(layer.drain(PATIENCE).await, 0);
}

#[tokio::test]
async fn clones_of_a_layer_share_its_limit() {
    let (charges, layer) = (Charges::held(), IdempotencyLayer::new(MemoryStore::new()).max_runs(1));
    let running = tokio::spawn(charge(&layer, "a", &charges));
    charges.runs.reach(1).await;

    assert_too_many(&charge(&layer.clone(), "b", &charges).await);

    charges.let_go(1);
    assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
}
