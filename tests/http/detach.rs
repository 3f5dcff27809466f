//! The client going away changes nothing once the claim is made, and nothing runs if it goes before.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Router, body::Body, middleware::from_fn, routing::post};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::{ServiceBuilder, timeout::TimeoutLayer};
use tower_idempotency::{IdempotencyLayer, MemoryStore};

use crate::support::{
    Call, Charges, Gate, Http, PATIENCE, Runs, VERSIONS, Version, Visits, Watched, eventually, go_away, keyed, pay,
    serve,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_at_any_await_of_the_handler_changes_nothing() {
    const STEPS: usize = 4;
    for (version, gone_at) in VERSIONS.into_iter().flat_map(|version| (0..STEPS).map(move |step| (version, step))) {
        let (charges, visits, steps) = (Charges::held(), Visits::default(), Runs::default());
        let (taken, walked) = (charges.clone(), steps.clone());
        let handler = post(async move || {
            let run = taken.runs.count();
            for _ in 0..STEPS {
                walked.count();
                taken.step().await;
            }
            format!("charge {run}")
        });
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let app = Router::new().route("/pay", handler).layer(layer.clone());
        let server = serve(visits.watch(app)).await;

        charges.let_go(gone_at);
        go_away(version, &server, "k", steps.reach(gone_at + 1)).await;
        visits.dropped.reach(1).await;
        charges.let_go(STEPS - gone_at);

        assert_eq!(layer.drain(PATIENCE).await, 0);
        let retry = Http::new(version).pay(&server, "k").await;
        assert!(retry.is_replay(), "{version:?}, step {gone_at}");
        assert_eq!(retry.body, "charge 1");
        assert_eq!((charges.runs.total(), steps.total()), (1, STEPS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_while_the_store_is_asked_changes_nothing() {
    for version in VERSIONS {
        for call in [Call::Claim, Call::Complete] {
            for gate in [Gate::BeforeEffect, Gate::AfterEffect] {
                let (charges, visits, store) = (Charges::free(), Visits::default(), Watched::new());
                let layer = IdempotencyLayer::new(Arc::clone(&store));
                let server = serve(visits.watch(pay(&charges, &layer))).await;

                store.set(call, gate);
                go_away(version, &server, "k", store.reach(call, 1)).await;
                visits.dropped.reach(1).await;
                store.set(call, Gate::Open);

                assert_eq!(layer.drain(PATIENCE).await, 0);
                let retry = Http::new(version).pay(&server, "k").await;
                assert!(retry.is_replay(), "{version:?}, {call:?}, {gate:?}: {retry:?}");
                assert_eq!(retry.body, "charge 1");
                assert_eq!(charges.runs.total(), 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_while_the_response_body_is_made_changes_nothing() {
    for version in VERSIONS {
        let (charges, visits) = (Charges::held(), Visits::default());
        let taken = charges.clone();
        let handler = post(async move || {
            let rest = taken.clone();
            let end = stream::once(async move {
                let run = rest.runs.count();
                rest.step().await;
                Ok(run.to_string())
            });
            Body::from_stream(stream::iter([Ok::<_, Infallible>("charge ".to_owned())]).chain(end))
        });
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let app = Router::new().route("/pay", handler).layer(layer.clone());
        let server = serve(visits.watch(app)).await;

        go_away(version, &server, "k", charges.runs.reach(1)).await;
        visits.dropped.reach(1).await;
        charges.let_go(1);

        assert_eq!(layer.drain(PATIENCE).await, 0);
        let retry = Http::new(version).pay(&server, "k").await;
        assert!(retry.is_replay(), "{version:?}");
        assert_eq!(retry.body, "charge 1");
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outer_timeout_that_drops_the_request_changes_nothing() {
    let soon = Duration::from_millis(20);
    let (charges, layer) = (Charges::held(), IdempotencyLayer::new(MemoryStore::new()));
    let http = Http::new(Version::Http1);
    let answering = tower_http::timeout::TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, soon);
    let answering = serve(pay(&charges, &layer).layer(answering)).await;
    let failing = ServiceBuilder::new().layer(TimeoutLayer::new(soon)).service(pay(&charges, &layer));
    let failing = serve(failing).await;
    let patient = serve(pay(&charges, &layer)).await;

    // Once more if a busy machine was so slow that the time was up before the claim.
    while charges.runs.total() < 1 {
        assert_eq!(http.pay(&answering, "a").await.status, StatusCode::GATEWAY_TIMEOUT);
    }
    while charges.runs.total() < 2 {
        let request = keyed(&failing, "/pay", "b").body("{}".into()).unwrap();
        http.send(request).await.expect_err("the error of the timeout closes the connection");
    }
    charges.let_go(2);

    assert_eq!(layer.drain(PATIENCE).await, 0);
    assert_eq!(http.pay(&patient, "a").await.body, "charge 1");
    assert_eq!(http.pay(&patient, "b").await.body, "charge 2");
    assert_eq!(charges.runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_before_the_end_of_its_body_runs_nothing_and_leaves_no_record() {
    for version in VERSIONS {
        let (charges, visits) = (Charges::free(), Visits::default());
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(visits.watch(pay(&charges, &layer))).await;
        let client =
            Client::builder(TokioExecutor::new()).http2_only(matches!(version, Version::Http2)).build_http::<Body>();
        let half = stream::iter([Ok::<_, Infallible>("{")]).chain(stream::pending());

        tokio::select! {
            answer = client.request(keyed(&server, "/pay", "k").body(Body::from_stream(half)).unwrap()) => {
                panic!("answered too early: {answer:?}")
            }
            () = visits.arrived.reach(1) => {}
        }
        eventually(|| visits.over(1)).await;

        assert_eq!(layer.drain(PATIENCE).await, 0);
        assert_eq!(charges.runs.total(), 0);
        assert!(store.is_empty());
    }
}

tokio::task_local! {
    static TENANT: &'static str;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_polled_in_place_and_sees_the_task_locals_of_outer_layers() {
    for version in VERSIONS {
        let handler = post(async || format!("{:?} {}", TENANT.try_get(), tokio::task::id()));
        let outer = from_fn(async |request, next: axum::middleware::Next| {
            let mut response = TENANT.scope("acme", next.run(request)).await;
            response.headers_mut().insert("task", tokio::task::id().to_string().parse().unwrap());
            response
        });
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(Router::new().route("/pay", handler).layer(layer).layer(outer)).await;

        let answer = Http::new(version).pay(&server, "k").await;

        assert_eq!(answer.body, format!("Ok(\"acme\") {}", answer.headers["task"].to_str().unwrap()));
    }
}
