//! The store fails after the handler ran: the client gets the answer, and no duplicate runs.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use futures_util::FutureExt;
use http::StatusCode;
use tokio::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{
    Attempt, IdempotencyLayer, MemoryStore,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Answer, Charges, Http, PATIENCE, Runs, Server, VERSIONS, Version, pay, serve};

const SHORT: Duration = Duration::from_millis(300);

type FaultyStore = Arc<Faulty<MemoryStore>>;

fn faulty() -> (FaultyStore, IdempotencyLayer<FaultyStore>) {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    (store, layer.lease(SHORT).store_timeout(Duration::from_millis(50)))
}

/// Repeats a request until its answer is not "in flight" any more.
async fn retry(http: &Http, server: &Server) -> Answer {
    let start = Instant::now();
    loop {
        let answer = http.pay(server, "k").await;
        if answer.status != StatusCode::CONFLICT {
            return answer;
        }
        assert_eq!(answer.problem(), "in-flight");
        assert!(start.elapsed() < PATIENCE, "the key stays blocked");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_stored_is_given_and_stored_when_the_store_is_back() {
    for version in VERSIONS {
        for fault in [Fault::BeforeEffect, Fault::HangBefore] {
            let (charges, http, (store, layer)) = (Charges::free(), Http::new(version), faulty());
            let server = serve(pay(&charges, &layer)).await;
            store.fail_all(Operation::Complete, fault);

            let first = http.pay(&server, "k").await;
            assert_eq!((first.status, &first.body[..]), (StatusCode::CREATED, &b"charge 1"[..]));

            // For longer than the lease, which is renewed after each third of it.
            while store.calls(Operation::Renew) < 7 {
                assert_eq!(http.pay(&server, "k").await.problem(), "in-flight");
            }
            assert_eq!(layer.drain(PATIENCE).now_or_never(), None, "the answer is not stored yet");
            store.heal();

            assert_eq!(layer.drain(PATIENCE).await, 0);
            let replay = http.pay(&server, "k").await;
            assert!(replay.is_replay());
            assert_eq!(replay.body, first.body);
            assert_eq!(charges.runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_stored_without_a_word_is_replayed_and_does_not_run_again() {
    for version in VERSIONS {
        for fault in [Fault::AfterEffect, Fault::HangAfter] {
            let (charges, http, (store, layer)) = (Charges::free(), Http::new(version), faulty());
            let server = serve(pay(&charges, &layer)).await;
            store.fail_all(Operation::Complete, fault);

            let first = http.pay(&server, "k").await;
            let replay = http.pay(&server, "k").await;
            store.heal();

            assert_eq!(first.body, "charge 1");
            assert!(!first.is_replay() && replay.is_replay());
            assert_eq!(layer.drain(PATIENCE).await, 0);
            assert_eq!(http.pay(&server, "k").await.body, "charge 1");
            assert_eq!(charges.runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_leaves_only_after_it_is_stored() {
    let slow = Duration::from_millis(300);
    for version in VERSIONS {
        for fault in [Fault::DelayBefore(slow), Fault::DelayAfter(slow)] {
            let (charges, http, (store, layer)) = (Charges::free(), Http::new(version), faulty());
            let server = serve(pay(&charges, &layer.store_timeout(PATIENCE))).await;
            store.fail_all(Operation::Complete, fault);

            let first = http.pay(&server, "k").await;
            let at_once = http.pay(&server, "k").await;

            assert!(!first.is_replay() && at_once.is_replay());
            assert_eq!(at_once.body, first.body);
            assert_eq!(charges.runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_cannot_be_released_is_released_when_the_store_is_back() {
    for version in VERSIONS {
        for fault in [Fault::BeforeEffect, Fault::AfterEffect, Fault::HangBefore, Fault::HangAfter] {
            let (runs, http, (store, layer)) = (Runs::default(), Http::new(version), faulty());
            let counted = runs.clone();
            let handler = post(async move |attempt: Attempt| match counted.count() {
                1 => (StatusCode::SERVICE_UNAVAILABLE, "nothing was executed".to_owned()),
                run => (StatusCode::OK, format!("run {run}, attempt {}", attempt.number())),
            });
            let server = serve(Router::new().route("/pay", handler).layer(layer)).await;
            store.fail_next(Operation::Release, fault);
            store.fail_next(Operation::Release, fault);

            assert_eq!(http.pay(&server, "k").await.body, "nothing was executed");

            assert_eq!(retry(&http, &server).await.body, "run 2, attempt 1");
            assert!(http.pay(&server, "k").await.is_replay());
            assert_eq!(runs.total(), 2);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_kept_while_its_lease_cannot_be_renewed_for_a_time() {
    for version in VERSIONS {
        let (charges, http, (store, layer)) = (Charges::held(), Http::new(version), faulty());
        let server = serve(pay(&charges, &layer)).await;
        store.fail_all(Operation::Renew, Fault::BeforeEffect);

        let others = async {
            charges.runs.reach(1).await;
            for renewals in [3, 8] {
                while store.calls(Operation::Renew) < renewals {
                    assert_eq!(http.pay(&server, "k").await.problem(), "in-flight");
                }
                store.heal();
            }
            charges.let_go(1);
        };
        let (first, ()) = tokio::join!(http.pay(&server, "k"), others);

        assert_eq!(first.status, StatusCode::CREATED);
        assert!(http.pay(&server, "k").await.is_replay());
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_handler_blocks_its_key_for_the_lease_at_most_if_the_store_is_down_too() {
    let (runs, http, (store, layer)) = (Runs::default(), Http::new(Version::Http1), faulty());
    let counted = runs.clone();
    let handler = post(async move |attempt: Attempt| {
        assert!(counted.count() > 1, "the first run is cut short");
        format!("attempt {}", attempt.number())
    });
    let server = serve(Router::new().route("/pay", handler).layer(layer).layer(CatchPanicLayer::new())).await;
    store.fail_all(Operation::Renew, Fault::HangBefore);

    assert_eq!(http.pay(&server, "k").await.status, StatusCode::INTERNAL_SERVER_ERROR);

    assert_eq!(retry(&http, &server).await.body, "attempt 2");
    assert_eq!(runs.total(), 2);
}
