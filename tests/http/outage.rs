//! The store fails before anything runs: the request is refused, and the key is not blocked by it.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use http::StatusCode;
use tokio::time::Instant;
use tower_idempotency::{
    Attempt, IdempotencyLayer, MemoryStore, Store, StoreOutage,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{
    Answer, Charges, Http, PATIENCE, Runs, Server, VERSIONS, Version, Watched, eventually, pay, record, serve,
};

type FaultyLayer = IdempotencyLayer<Arc<Faulty<MemoryStore>>>;

/// A layer whose lease is so long that a key blocked for it would stay blocked.
fn faulty() -> (Arc<Faulty<MemoryStore>>, FaultyLayer) {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    (store, layer.lease(20 * PATIENCE).store_timeout(Duration::from_millis(50)))
}

/// Serves a handler that tells its attempt, `None` if there is none.
async fn serve_attempts(runs: &Runs, layer: &FaultyLayer) -> Server {
    let counted = runs.clone();
    let handler = post(async move |attempt: Option<Attempt>| {
        counted.count();
        format!("{:?}", attempt.map(|attempt| attempt.number()))
    });
    serve(Router::new().route("/pay", handler).layer(layer.clone())).await
}

#[track_caller]
fn assert_unavailable(answer: &Answer) {
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"));
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_claimed_is_refused_and_its_retry_runs_as_attempt_1() {
    for version in VERSIONS {
        for fault in [Fault::BeforeEffect, Fault::HangBefore] {
            let (runs, http, (store, layer)) = (Runs::default(), Http::new(version), faulty());
            let server = serve_attempts(&runs, &layer).await;
            store.fail_next(Operation::Claim, fault);

            assert_unavailable(&http.pay(&server, "k").await);
            assert_eq!(runs.total(), 0);
            assert_eq!(store.inner().lookup(&record("k")).await.unwrap(), None);

            assert_eq!(http.pay(&server, "k").await.body, "Some(1)");
            assert!(http.pay(&server, "k").await.is_replay());
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_runs_nothing_and_blocks_the_key_only_for_a_moment() {
    for version in VERSIONS {
        for fault in [Fault::AfterEffect, Fault::HangAfter] {
            let (runs, http, (store, layer)) = (Runs::default(), Http::new(version), faulty());
            let server = serve_attempts(&runs, &layer).await;
            store.fail_next(Operation::Claim, fault);

            assert_unavailable(&http.pay(&server, "k").await);
            assert_eq!(runs.total(), 0);

            let start = Instant::now();
            let retry = loop {
                let retry = http.pay(&server, "k").await;
                if retry.status != StatusCode::CONFLICT {
                    break retry;
                }
                assert_eq!(retry.problem(), "in-flight");
                assert!(start.elapsed() < PATIENCE, "the key is blocked for the lease");
            };
            assert_eq!(retry.body, "Some(1)");
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_requests_proceed_without_a_store_they_run_unprotected() {
    for version in VERSIONS {
        let (runs, http, (store, layer)) = (Runs::default(), Http::new(version), faulty());
        let server = serve_attempts(&runs, &layer.on_outage(StoreOutage::Proceed)).await;
        store.fail_all(Operation::Claim, Fault::BeforeEffect);

        for run in 1..=2 {
            let answer = http.pay(&server, "k").await;
            assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"Some(1)"[..]));
            assert!(!answer.is_replay());
            assert_eq!(runs.total(), run);
        }
        store.heal();

        assert_eq!(http.pay(&server, "k").await.body, "Some(1)");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_whether_it_runs_without_protection() {
    let (http, (store, layer)) = (Http::new(Version::Http1), faulty());
    let layer = layer.on_outage(StoreOutage::Proceed).scope(|_| Some("tenant".into()));
    let handler = post(async |attempt: Attempt| {
        format!("{} {} {}", attempt.scope().as_str(), attempt.key().as_str(), attempt.is_protected())
    });
    let server = serve(Router::new().route("/pay", handler).layer(layer)).await;
    store.fail_next(Operation::Claim, Fault::BeforeEffect);

    assert_eq!(http.pay(&server, "k").await.body, "tenant k false");
    assert_eq!(http.pay(&server, "k").await.body, "tenant k true");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_new_keys_and_still_replays_the_others() {
    for version in VERSIONS {
        let (charges, http) = (Charges::free(), Http::new(version));
        let server = serve(pay(&charges, &IdempotencyLayer::new(MemoryStore::new().max_records(1)))).await;
        http.pay(&server, "a").await;

        let refused = http.pay(&server, "b").await;

        assert_eq!((refused.status, refused.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "store-full"));
        assert_eq!(refused.headers["retry-after"], "1");
        assert!(http.pay(&server, "a").await.is_replay());
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_runs_nothing_even_where_requests_proceed_without_a_store() {
    for policy in [StoreOutage::Refuse, StoreOutage::Proceed] {
        let (charges, store, http) = (Charges::free(), Watched::new(), Http::new(Version::Http1));
        let server = serve(pay(&charges, &IdempotencyLayer::new(Arc::clone(&store)).on_outage(policy))).await;
        http.pay(&server, "k").await;
        store.damage();

        let refused = http.pay(&server, "k").await;

        assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(refused.problem(), "record-damaged");
        assert!(!refused.headers.contains_key("retry-after"));
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_looks_at_the_store_fail_is_answered_in_the_end() {
    for fault in [Fault::BeforeEffect, Fault::HangBefore] {
        let (charges, http) = (Charges::held(), Http::new(Version::Http2));
        let shared = Arc::new(MemoryStore::new());
        let store = Arc::new(Faulty::new(Arc::clone(&shared)));
        let there = IdempotencyLayer::new(Arc::clone(&store)).store_timeout(Duration::from_millis(50)).wait(PATIENCE);
        let here = serve(pay(&charges, &IdempotencyLayer::new(shared))).await;
        let there = serve(pay(&charges, &there)).await;
        for _ in 0..3 {
            store.fail_next(Operation::Lookup, fault);
        }

        let waiter = async {
            charges.runs.reach(1).await;
            let end = async {
                eventually(|| store.calls(Operation::Lookup) >= 3).await;
                charges.let_go(1);
            };
            tokio::join!(http.pay(&there, "k"), end).0
        };
        let (first, waited) = tokio::join!(http.pay(&here, "k"), waiter);

        assert!(waited.is_replay());
        assert_eq!(waited.body, first.body);
        assert_eq!(charges.runs.total(), 1);
    }
}
