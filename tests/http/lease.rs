//! A live handler keeps its key; a crash blocks it for the lease; who lost the lease changes nothing.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    routing::{MethodRouter, post},
};
use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::{runtime::Runtime, time::Instant};
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{
    Attempt, IdempotencyLayer, MemoryStore, Scope, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, State, Token},
};

use crate::support::{Call, Charges, Http, PATIENCE, Runs, VERSIONS, Version, Watched, keyed, pay, record, serve};

const SHORT: Duration = Duration::from_millis(300);
const MINUTE: Lease = Lease { term: Duration::from_secs(60), unsettled: Duration::from_secs(60) };

/// The body of a request whose first run panics.
const PANIC: &str = "panic";

/// Answers with what the handler sees of its attempt.
fn tell_attempt(runs: &Runs) -> MethodRouter {
    let runs = runs.clone();
    post(async move |attempt: Attempt, Extension(extension): Extension<Attempt>, body: String| {
        runs.count();
        assert_eq!(format!("{attempt:?}"), format!("{extension:?}"));
        assert!(body != PANIC || attempt.is_rerun(), "cut short, as the body asks for");
        format!("{} {} {} {}", attempt.scope().as_str(), attempt.key().as_str(), attempt.number(), attempt.is_rerun())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_slower_than_its_lease_keeps_its_key() {
    for version in VERSIONS {
        let (charges, store, http) = (Charges::held(), Watched::new(), Http::new(version));
        let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(SHORT);
        let server = serve(pay(&charges, &layer)).await;

        let first = http.pay(&server, "k");
        let retries = async {
            charges.runs.reach(1).await;
            // Each renewal comes after a third of the lease.
            while store.calls(Call::Renew) < 7 {
                let retry = http.pay(&server, "k").await;
                assert_eq!(retry.status, StatusCode::CONFLICT);
                assert_eq!(retry.problem(), "in-flight");
                assert_eq!(retry.headers["retry-after"], "0", "never beyond the rest of the lease");
            }
            charges.let_go(1);
        };
        let (first, ()) = tokio::join!(first, retries);

        assert_eq!(first.status, StatusCode::CREATED);
        assert!(http.pay(&server, "k").await.is_replay());
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_keeps_its_key() {
    for version in VERSIONS {
        let (runs, store, http) = (Runs::default(), Watched::new(), Http::new(version));
        let (counted, watched) = (runs.clone(), Arc::clone(&store));
        let handler = post(async move || {
            counted.count();
            let start = Instant::now();
            while watched.calls(Call::Renew) < 5 && start.elapsed() < PATIENCE / 2 {
                std::thread::sleep(Duration::from_millis(2));
            }
            format!("{}", watched.calls(Call::Renew) >= 5)
        });
        let layer = IdempotencyLayer::new(store).lease(SHORT);
        let server = serve(Router::new().route("/pay", handler).layer(layer)).await;

        assert_eq!(http.pay(&server, "k").await.body, "true", "{version:?}: the lease was not renewed");
        assert!(http.pay(&server, "k").await.is_replay());
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_blocks_the_key_for_its_lease_and_then_a_retry_runs_as_attempt_2() {
    let store = Arc::new(MemoryStore::new());
    let (charges, runs, http) = (Charges::held(), Runs::default(), Http::new(Version::Http1));
    let doomed = Runtime::new().unwrap();
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(SHORT);
    let app = pay(&charges, &layer);
    let before = doomed.spawn(serve(app)).await.unwrap();
    let start = Instant::now();
    let request = http.send(keyed(&before, "/pay", "k").body("{}".into()).unwrap());
    let crash = async {
        charges.runs.reach(1).await;
        doomed.shutdown_background();
    };
    let (cut_off, ()) = tokio::join!(request, crash);
    cut_off.expect_err("the process is gone");

    let layer = IdempotencyLayer::new(store).lease(SHORT);
    let after = serve(Router::new().route("/pay", tell_attempt(&runs)).layer(layer)).await;
    let retry = loop {
        let retry = http.pay(&after, "k").await;
        if retry.status != StatusCode::CONFLICT {
            break retry;
        }
        assert_eq!(retry.problem(), "in-flight");
        assert!(start.elapsed() < PATIENCE, "the key stays blocked");
    };

    assert!(start.elapsed() >= SHORT, "the key was free before the lease ended");
    assert_eq!(retry.body, " k 2 true");
    assert!(http.pay(&after, "k").await.is_replay());
    assert_eq!(runs.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_sees_scope_key_and_number_of_its_attempt() {
    for version in VERSIONS {
        let (runs, http) = (Runs::default(), Http::new(version));
        let layer = IdempotencyLayer::new(MemoryStore::new())
            .scope(|request| request.headers.get("tenant").map(|tenant| Scope::new(tenant.to_str().unwrap())));
        let app = Router::new().route("/pay", tell_attempt(&runs)).layer(layer);
        let server = serve(app.layer(CatchPanicLayer::new())).await;
        let send = async |body: &'static str| {
            let request = keyed(&server, "/pay", r#""a\" b";x=1"#).header("tenant", "acme");
            http.send(request.body(body.into()).unwrap()).await.unwrap()
        };

        assert_eq!(send(PANIC).await.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(send(PANIC).await.body, r#"acme a" b 2 true"#);
        assert_eq!(runs.total(), 2);
    }
}

/// Another process takes the record over, as if this one had been stopped for longer than the lease.
async fn take_over(store: &MemoryStore, key: &str) -> (Record, Token) {
    let id = record(key);
    let lost = store.lookup(&id).await.unwrap().unwrap();
    let over = Lease { term: Duration::ZERO, ..MINUTE };
    assert_eq!(store.renew(&id, lost.token, over).await.unwrap(), Fenced::Applied);
    let claim = NewClaim::new(Token::random(), lost.fingerprint, MINUTE).replacing(lost.token);
    assert!(matches!(store.claim(&id, &claim).await.unwrap(), Claim::Acquired { attempt: 2 }));
    (store.lookup(&id).await.unwrap().unwrap(), claim.token)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_lost_its_lease_changes_nothing_and_its_client_is_told_to_retry() {
    for version in VERSIONS {
        let (charges, http) = (Charges::held(), Http::new(version));
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(pay(&charges, &layer)).await;

        let other = async {
            charges.runs.reach(1).await;
            let other = take_over(&store, "k").await;
            charges.let_go(1);
            other
        };
        let (late, (owner, token)) = tokio::join!(http.pay(&server, "k"), other);

        assert_eq!((late.status, late.problem().as_str()), (StatusCode::CONFLICT, "in-flight"));
        let left = store.lookup(&record("k")).await.unwrap().unwrap();
        assert_eq!((left.token, left.attempt, left.fingerprint), (token, 2, owner.fingerprint));
        assert!(matches!(left.state, State::InFlight { lease_left } if lease_left <= MINUTE.term), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_holder_that_lost_its_lease_gets_the_answer_of_the_new_owner() {
    for version in VERSIONS {
        let (charges, http) = (Charges::held(), Http::new(version));
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(pay(&charges, &layer)).await;

        let other = async {
            charges.runs.reach(1).await;
            let (_, token) = take_over(&store, "k").await;
            let answer = StoredResponse::of(&Response::new(Bytes::from_static(b"of the other")));
            let stored = store.complete(&record("k"), token, &answer, MINUTE.term).await.unwrap();
            assert_eq!(stored, Fenced::Applied);
            let stored = store.lookup(&record("k")).await.unwrap();
            charges.let_go(1);
            stored
        };
        let (late, stored) = tokio::join!(http.pay(&server, "k"), other);

        assert_eq!(late.body, "of the other");
        assert!(late.is_replay());
        assert_eq!(store.lookup(&record("k")).await.unwrap(), stored);
        assert_eq!(http.pay(&server, "k").await.body, "of the other");
    }
}
