//! A run that was cut short: what goes on to the client, and what happens to the key.

use std::{any::Any, convert::Infallible, io, sync::Arc};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tower::{ServiceBuilder, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{Attempt, IdempotencyLayer, MemoryStore, OnAbandoned, Settled, Store, Verdict};

use crate::support::{Charges, Http, Runs, Server, VERSIONS, Version, keyed, pay, record, serve};

/// Serves a handler whose first run panics, and whose others tell the number of the run and of the attempt.
async fn serve_cut_short<S: Store>(runs: &Runs, layer: &IdempotencyLayer<S>) -> Server {
    let counted = runs.clone();
    let handler = post(async move |attempt: Attempt| {
        let run = counted.count();
        assert!(run > 1, "the first run is cut short");
        format!("run {run}, attempt {}", attempt.number())
    });
    let told = CatchPanicLayer::custom(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().copied().unwrap_or("another panic");
        let mut response = Response::new(Full::from(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    serve(Router::new().route("/pay", handler).layer(layer.clone()).layer(told)).await
}

/// Cuts the first run of the key `k` short.
async fn cut_short(http: &Http, server: &Server) {
    assert_eq!(http.pay(server, "k").await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_goes_on_unchanged_and_an_immediate_retry_runs_as_attempt_2() {
    for version in VERSIONS {
        let (runs, http) = (Runs::default(), Http::new(version));
        let server = serve_cut_short(&runs, &IdempotencyLayer::new(MemoryStore::new())).await;

        let first = http.pay(&server, "k").await;
        let retry = http.pay(&server, "k").await;

        assert_eq!((first.status.as_u16(), &first.body[..]), (500, &b"the first run is cut short"[..]));
        assert_eq!(retry.body, "run 2, attempt 2");
        assert!(http.pay(&server, "k").await.is_replay());
        assert_eq!(runs.total(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_goes_on_unchanged_and_an_immediate_retry_runs_as_attempt_2() {
    for version in VERSIONS {
        let (runs, seen, http) = (Runs::default(), Arc::new(Semaphore::new(0)), Http::new(version));
        let (counted, told) = (runs.clone(), Arc::clone(&seen));
        let handler = service_fn(move |request: Request<tower_idempotency::Body<_>>| {
            let run = counted.count();
            std::future::ready(match request.extensions().get::<Attempt>().unwrap().number() {
                1 => Err(io::Error::from_raw_os_error(111)),
                attempt => Ok(Response::new(Full::from(format!("run {run}, attempt {attempt}")))),
            })
        });
        let service = ServiceBuilder::new()
            .map_err(move |error: io::Error| {
                told.add_permits(usize::from(error.raw_os_error() == Some(111)));
                error
            })
            .layer(IdempotencyLayer::new(MemoryStore::new()))
            .service(handler);
        let server = serve(service).await;

        let request = keyed(&server, "/pay", "k").body("{}".into()).unwrap();
        http.send(request).await.expect_err("the error ends the connection or the stream");
        let retry = http.pay(&server, "k").await;

        assert_eq!(seen.available_permits(), 1);
        assert_eq!(retry.body, "run 2, attempt 2");
        assert_eq!(runs.total(), 2);
    }
}

/// Reads a body that must break off, and returns what came before.
async fn start_of_broken(mut body: Incoming) -> String {
    let mut start = String::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => start.push_str(str::from_utf8(&frame.into_data().unwrap()).unwrap()),
            Err(_) => return start,
        }
    }
    panic!("the body is whole: {start}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_body_that_breaks_off_breaks_for_the_client_and_is_not_kept() {
    for version in VERSIONS {
        let http = Http::new(version);
        let handler = post(async |attempt: Attempt| match attempt.number() {
            1 => Body::from_stream(stream::iter([Ok("half of "), Err(io::Error::other("the disk is gone"))])),
            _ => Body::from_stream(stream::iter([Ok::<_, Infallible>("half of "), Ok("two")])),
        });
        let layer = IdempotencyLayer::new(MemoryStore::new());
        let server = serve(Router::new().route("/pay", handler).layer(layer)).await;

        let first = http.try_open(keyed(&server, "/pay", "k").body("{}".into()).unwrap()).await;
        let start = match first {
            Ok(first) => start_of_broken(first.into_body()).await,
            Err(_) => String::new(),
        };
        let retry = http.pay(&server, "k").await;

        // The reset of an HTTP/2 stream may overtake what was sent before it.
        assert!(start == "half of " || matches!(version, Version::Http2), "{start:?}");
        assert_eq!(retry.body, "half of two");
        assert!(!retry.is_replay());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_under_an_abandoned_key_is_a_mismatch() {
    for policy in [OnAbandoned::Rerun, OnAbandoned::Refuse, OnAbandoned::ask(async |_| Verdict::Rerun)] {
        let (runs, http) = (Runs::default(), Http::new(Version::Http1));
        let server = serve_cut_short(&runs, &IdempotencyLayer::new(MemoryStore::new()).on_abandoned(policy)).await;
        cut_short(&http, &server).await;

        let mismatch = http.post(&server, "/pay", "k", "other").await;

        assert_eq!((mismatch.status, mismatch.problem().as_str()), (StatusCode::BAD_REQUEST, "key-reused"));
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_reruns_are_refused_the_outcome_is_unknown_until_the_key_is_settled() {
    for version in VERSIONS {
        let (runs, http) = (Runs::default(), Http::new(version));
        let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(OnAbandoned::Refuse);
        let server = serve_cut_short(&runs, &layer).await;
        cut_short(&http, &server).await;

        for _ in 0..3 {
            let refused = http.pay(&server, "k").await;
            assert_eq!((refused.status, refused.problem().as_str()), (StatusCode::CONFLICT, "outcome-unknown"));
            assert!(!refused.headers.contains_key("retry-after"));
        }
        let answer = Response::builder().status(201).header("location", "/charges/7").body("it was done".into());
        assert_eq!(layer.settle(&record("k"), &answer.unwrap()).await.unwrap(), Settled::Done);

        let settled = http.pay(&server, "k").await;
        assert!(settled.is_replay());
        assert_eq!((settled.status, &settled.body[..]), (StatusCode::CREATED, &b"it was done"[..]));
        assert_eq!(settled.headers["location"], "/charges/7");
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_reruns_are_refused_a_released_key_runs_as_attempt_1() {
    let (runs, http) = (Runs::default(), Http::new(Version::Http2));
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(OnAbandoned::Refuse);
    let server = serve_cut_short(&runs, &layer).await;
    cut_short(&http, &server).await;

    assert_eq!(layer.release(&record("k")).await.unwrap(), Settled::Done);

    assert_eq!(http.pay(&server, "k").await.body, "run 2, attempt 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_abandoned_key_can_be_settled_or_released() {
    let (charges, http) = (Charges::held(), Http::new(Version::Http1));
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(OnAbandoned::Refuse);
    let server = serve(pay(&charges, &layer)).await;
    let both = async || {
        let answer = Response::new(Bytes::from_static(b"settled"));
        (layer.settle(&record("k"), &answer).await.unwrap(), layer.release(&record("k")).await.unwrap())
    };

    assert_eq!(both().await, (Settled::Absent, Settled::Absent));
    let running = async {
        charges.runs.reach(1).await;
        let tried = both().await;
        charges.let_go(1);
        tried
    };
    let (first, tried) = tokio::join!(http.pay(&server, "k"), running);

    assert_eq!(tried, (Settled::InFlight, Settled::InFlight));
    assert_eq!(both().await, (Settled::Completed, Settled::Completed));
    assert_eq!(http.pay(&server, "k").await.body, first.body);
}
