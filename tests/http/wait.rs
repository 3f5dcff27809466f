//! Waiting for the first request: woken in the same process, polling across processes.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use http::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{Attempt, IdempotencyLayer, MemoryStore, Store};

use crate::support::{
    Answer, Call, Charges, Gate, Http, PATIENCE, Runs, VERSIONS, Version, Visits, Watched, eventually, go_away, pay,
    record, serve,
};

const WAITERS: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn waiters_in_the_same_process_are_woken_and_get_the_one_answer() {
    for version in VERSIONS {
        let (charges, store, http) = (Charges::held(), Watched::new(), Http::new(version));
        let server = serve(pay(&charges, &IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE))).await;

        let all = join_all((0..=WAITERS).map(|_| http.pay(&server, "k")));
        let end = async {
            store.reach(Call::Claim, 1 + WAITERS).await;
            charges.let_go(1);
        };
        let (answers, ()) = tokio::join!(all, end);

        assert!(answers.iter().all(|answer| answer.status == StatusCode::CREATED && answer.body == "charge 1"));
        assert_eq!(answers.iter().filter(|answer| answer.is_replay()).count(), WAITERS);
        assert_eq!(charges.runs.total(), 1);
        // A waiter that found the first request at its end, before it could wait, looks once.
        assert!(store.calls(Call::Claim) <= 1 + 2 * WAITERS, "{} claims", store.calls(Call::Claim));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_in_the_same_process_ask_the_store_nothing_while_they_wait() {
    let (charges, store, http) = (Charges::held(), Watched::new(), Http::new(Version::Http2));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(Duration::from_millis(100)).wait(PATIENCE);
    let server = serve(pay(&charges, &layer)).await;

    let both = async { tokio::join!(http.pay(&server, "k"), http.pay(&server, "k")) };
    let end = async {
        store.reach(Call::Claim, 2).await;
        // Many times the longest pause of a waiter that polls, in renewals.
        store.reach(Call::Renew, 20).await;
        let asked = (store.calls(Call::Lookup), store.calls(Call::Claim));
        charges.let_go(1);
        asked
    };
    let (_, asked) = tokio::join!(both, end);

    assert_eq!(asked, (0, 2));
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_409_after_its_limit() {
    for version in VERSIONS {
        let (charges, http) = (Charges::held(), Http::new(version));
        let layer = IdempotencyLayer::new(MemoryStore::new()).wait(Duration::from_millis(50));
        let server = serve(pay(&charges, &layer)).await;

        let waiter = async {
            charges.runs.reach(1).await;
            let waited = http.pay(&server, "k").await;
            charges.let_go(1);
            waited
        };
        let (first, waited) = tokio::join!(http.pay(&server, "k"), waiter);

        assert_eq!(first.status, StatusCode::CREATED);
        assert_eq!((waited.status, waited.problem().as_str()), (StatusCode::CONFLICT, "in-flight"));
        assert_eq!(waited.headers["retry-after"], "1");
    }
}

/// Sends one request, then waiters, to a handler whose first run fails as `status` says: 503, or a panic. The answers.
async fn fail_first(version: Version, panics: bool) -> (Vec<Answer>, Charges) {
    let (charges, store, http) = (Charges::held(), Watched::new(), Http::new(version));
    let charged = charges.clone();
    let handler = post(async move |attempt: Attempt| {
        let (_, text) = charged.charge().await;
        if text == "charge 1" {
            assert!(!panics, "the first run fails");
            return (StatusCode::SERVICE_UNAVAILABLE, text);
        }
        (StatusCode::CREATED, format!("{text}, attempt {}", attempt.number()))
    });
    let app = Router::new().route("/pay", handler).layer(IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE));
    let server = serve(app.layer(CatchPanicLayer::new())).await;

    let all = join_all((0..=WAITERS).map(|_| http.pay(&server, "k")));
    let end = async {
        store.reach(Call::Claim, 1 + WAITERS).await;
        charges.let_go(1);
        charges.runs.reach(2).await;
        charges.let_go(1);
    };
    (tokio::join!(all, end).0, charges)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_waiters_for_a_request_that_executed_nothing_one_runs() {
    for version in VERSIONS {
        let (answers, charges) = fail_first(version, false).await;

        let (failed, ok): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!((failed.len(), &failed[0].body[..]), (1, &b"charge 1"[..]));
        assert!(ok.iter().all(|answer| answer.body == "charge 2, attempt 1"), "{ok:?}");
        assert_eq!(ok.iter().filter(|answer| !answer.is_replay()).count(), 1);
        assert_eq!(charges.runs.total(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_waiters_for_a_request_that_panicked_one_runs_as_attempt_2() {
    for version in VERSIONS {
        let (answers, charges) = fail_first(version, true).await;

        let (failed, ok): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(failed.len(), 1);
        assert!(ok.iter().all(|answer| answer.body == "charge 2, attempt 2"), "{ok:?}");
        assert_eq!(ok.iter().filter(|answer| !answer.is_replay()).count(), 1);
        assert_eq!(charges.runs.total(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_waiter_gets_an_answer_when_one_after_the_other_executes_nothing() {
    // More than the takeovers that a request tries before it gives up.
    const REQUESTS: usize = 80;
    let (runs, store, http) = (Runs::default(), Watched::new(), Http::new(Version::Http2));
    let (counted, watched) = (runs.clone(), Arc::clone(&store));
    let handler = post(async move || {
        // Each run ends when all that are left have claimed again, in vain.
        let claims: usize = (0..counted.count()).map(|run| REQUESTS - run).sum();
        watched.reach_end(Call::Claim, claims).await;
        StatusCode::SERVICE_UNAVAILABLE
    });
    let app = Router::new().route("/pay", handler).layer(IdempotencyLayer::new(store).wait(PATIENCE));
    let server = serve(app).await;

    let answers = join_all((0..REQUESTS).map(|_| http.pay(&server, "k"))).await;

    assert!(answers.iter().all(|answer| answer.body.is_empty()), "an answer of the layer: {answers:?}");
    assert_eq!(runs.total(), REQUESTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_in_another_process_looks_again_with_growing_pauses_until_it_is_answered() {
    for version in VERSIONS {
        let (charges, store, http) = (Charges::held(), Watched::new(), Http::new(version));
        let here = IdempotencyLayer::new(Arc::clone(&store.inner)).wait(PATIENCE);
        let there = IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE);
        let (here, there) = (serve(pay(&charges, &here)).await, serve(pay(&charges, &there)).await);

        let waiter = async {
            charges.runs.reach(1).await;
            let start = tokio::time::Instant::now();
            let end = async {
                store.reach(Call::Lookup, 5).await;
                let took = start.elapsed();
                charges.let_go(1);
                took
            };
            tokio::join!(http.pay(&there, "k"), end)
        };
        let (first, (waited, took)) = tokio::join!(http.pay(&here, "k"), waiter);

        assert_eq!(first.body, "charge 1");
        assert!(waited.is_replay());
        assert_eq!(waited.body, "charge 1");
        assert_eq!(charges.runs.total(), 1);
        assert!(took >= Duration::from_millis(200), "five looks in {took:?} do not grow apart");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_client_goes_away_leaves_nothing() {
    for version in VERSIONS {
        // It goes while it waits, or while the store is asked for the claim.
        for gate in [Gate::Open, Gate::BeforeEffect] {
            let (charges, visits, store) = (Charges::held(), Visits::default(), Watched::new());
            let layer = IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE);
            let charged = charges.clone();
            let handler = post(async move || {
                charged.charge().await;
                StatusCode::SERVICE_UNAVAILABLE
            });
            let app = Router::new().route("/pay", handler).layer(layer.clone());
            let server = serve(visits.watch(app)).await;
            let http = Http::new(version);

            let others = async {
                charges.runs.reach(1).await;
                store.set(Call::Claim, gate);
                go_away(version, &server, "k", store.reach(Call::Claim, 2)).await;
                visits.dropped.reach(1).await;
                store.set(Call::Claim, Gate::Open);
                // The claim of the one that went is answered before the first request ends.
                eventually(|| store.idle(Call::Claim)).await;
                charges.let_go(2);
            };
            tokio::join!(http.pay(&server, "k"), others);

            assert_eq!(layer.drain(PATIENCE).await, 0);
            assert_eq!(store.lookup(&record("k")).await.unwrap(), None);
            assert_eq!(charges.runs.total(), 1, "{version:?}, {gate:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_sees_the_claim_vanish_as_the_answer_is_stored_replays_it() {
    let http = Http::new(Version::Http2);
    for _ in 0..100 {
        let (charges, store) = (Charges::held(), Watched::new());
        let server = serve(pay(&charges, &IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE))).await;
        // Stored, but the first request does not know it yet: the waiters arrive in between.
        store.set(Call::Complete, Gate::AfterEffect);
        let mut answers: FuturesUnordered<_> = (0..4).map(|_| http.pay(&server, "k")).collect();
        let end = async {
            charges.runs.reach(1).await;
            charges.let_go(4);
            store.reach(Call::Complete, 1).await;
            store.set(Call::Complete, Gate::Open);
        };
        let all = async {
            while let Some(answer) = answers.next().await {
                assert_eq!((answer.status, &answer.body[..]), (StatusCode::CREATED, &b"charge 1"[..]));
            }
        };
        tokio::join!(all, end);
        assert_eq!(charges.runs.total(), 1);
    }
}
