//! Readiness: the service that is ready is the one that is called, and nobody keeps a turn that is not used.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Barrier;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_idempotency::{Body, IdempotencyLayer, MemoryStore, Scope};
use tower_test::mock;

use crate::support::{Http, Runs, VERSIONS, serve};

type Guarded = Request<Body<Full<Bytes>>>;
type Plain = Response<Full<Bytes>>;

fn request(key: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/pay").header("idempotency-key", key).body(Full::from(body)).unwrap()
}

async fn text<B>(response: Response<Body<B>>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn the_instance_that_was_ready_is_called_and_the_one_that_stays_is_not_ready() {
    let (inner, mut inner_side) = mock::pair::<Guarded, Plain>();
    let mut service = IdempotencyLayer::new(MemoryStore::new()).layer(inner);
    inner_side.allow(0);
    assert!(service.ready().now_or_never().is_none(), "as long as the inner service is not ready");

    inner_side.allow(1);
    service.ready().await.unwrap();
    // The mock panics if the instance that is called was never ready.
    let response = tokio::spawn(service.call(request("k", "")));
    let (seen, answer) = inner_side.next_request().await.unwrap();
    assert!(service.ready().now_or_never().is_none(), "the one turn is taken");
    assert_eq!(seen.headers()["idempotency-key"], "k");
    answer.send_response(Response::new(Full::from("answer")));
    assert_eq!(text(response.await.unwrap().unwrap()).await, "answer");
}

#[tokio::test]
async fn an_inner_service_that_fails_before_the_call_says_so() {
    let (inner, mut inner_side) = mock::pair::<Guarded, Plain>();
    let mut service = IdempotencyLayer::new(MemoryStore::new()).layer(inner);
    inner_side.send_error("out of order");
    assert_eq!(service.ready().await.map(drop).unwrap_err().to_string(), "out of order");
}

#[tokio::test]
async fn an_answer_without_a_run_gives_its_turn_back() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).request_limit(10).require_key();
    let layer = layer.scope(|head| (!head.headers.contains_key("x-nobody")).then(|| Scope::new("somebody")));
    let handler = service_fn(async |_: Guarded| Ok::<_, Infallible>(Plain::new(Full::from("run"))));
    let limited = ConcurrencyLimitLayer::new(1).layer(handler);
    // Both stay alive, like the services of two connections that are kept.
    let mut one = layer.layer(limited);
    let mut other = one.clone();

    let mut nobody = request("k", "");
    nobody.headers_mut().insert("x-nobody", "1".parse().unwrap());
    let without_key = Request::post("/pay").body(Full::default()).unwrap();
    for (request, status) in [
        (request("k", ""), 200),
        (request("k", ""), 200),
        (request("k", "other"), 400),
        (request("k2", "longer than the limit"), 413),
        (nobody, 401),
        (request("\"", ""), 400),
        (without_key, 400),
    ] {
        let shown = format!("{request:?}");
        let response = one.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::from_u16(status).unwrap());
        assert!(other.ready().now_or_never().is_some(), "the only turn is free again after {shown}");
        // A turn that is not used is given back by dropping the one who holds it.
        other = one.clone();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_limit_of_one_requests_run_one_by_one() {
    let (runs, ended) = (Runs::default(), Runs::default());
    let counted = (runs.clone(), ended.clone());
    let handler = service_fn(move |_: Request<Body<hyper::body::Incoming>>| {
        let (runs, ended) = counted.clone();
        async move {
            let before = (runs.count(), ended.total());
            tokio::task::yield_now().await;
            ended.count();
            Ok::<_, Infallible>(Plain::new(Full::from(format!("{before:?}"))))
        }
    });
    let limited = ConcurrencyLimitLayer::new(1).layer(handler);
    let server = serve(IdempotencyLayer::new(MemoryStore::new()).layer(limited)).await;
    let barrier = Arc::new(Barrier::new(20));
    let mut bodies = join_all((0..20).map(|nr| {
        let (barrier, server) = (Arc::clone(&barrier), &server);
        async move {
            barrier.wait().await;
            Http::new(VERSIONS[nr % 2]).post(server, "/", &format!("k{nr}"), "").await.body
        }
    }))
    .await;
    bodies.sort_by_key(|body| (body.len(), body.clone()));
    let mut expected: Vec<_> = (0..20).map(|nr| format!("({}, {nr})", nr + 1)).collect();
    expected.sort_by_key(|body| (body.len(), body.clone()));
    assert_eq!(bodies, expected, "each run began after the one before had ended");
}
