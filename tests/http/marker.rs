//! The marker of a replay stands on replays only.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{Body, IdempotencyLayer, MemoryStore, OnAbandoned, StoreOutage, Verdict};

use crate::support::{Http, Runs, Seen, VERSIONS, guard, reply};

const MARKER: &str = "idempotent-replayed";

#[tokio::test(flavor = "multi_thread")]
async fn a_first_answer_never_carries_it_even_if_the_handler_sets_it() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let handler = |seen: Seen| {
        let head = Response::builder().status(if seen.head.uri.path() == "/stored" { 200 } else { 503 });
        reply(head.header("Idempotent-Replayed", "true").header("Idempotent-Replayed", "again"), "")
    };
    let server = guard(&layer, &runs, handler).await;
    for version in VERSIONS {
        let http = Http::new(version);
        let key = format!("{version:?}");
        assert!(!http.post(&server, "/stored", &key, "").await.headers.contains_key(MARKER));
        let retry = http.post(&server, "/stored", &key, "").await;
        assert_eq!(retry.headers.get_all(MARKER).iter().collect::<Vec<_>>(), ["true"]);
        for _ in 0..2 {
            let not_stored = http.post(&server, "/refused", &format!("{key} released").replace(' ', "-"), "").await;
            assert!(!not_stored.headers.contains_key(MARKER));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_protection_does_not_carry_it() {
    // There is room for one key; the second one runs without protection.
    let layer = IdempotencyLayer::new(MemoryStore::new().max_records(1)).on_outage(StoreOutage::Proceed);
    let runs = Runs::default();
    let server = guard(&layer, &runs, |_| reply(Response::builder().header(MARKER, "true"), "")).await;
    for version in VERSIONS {
        let http = Http::new(version);
        http.post(&server, "/", "a", "").await;
        let before = runs.total();
        assert!(!http.post(&server, "/", "b", "").await.headers.contains_key(MARKER));
        assert!(!http.post(&server, "/", "b", "").await.headers.contains_key(MARKER));
        assert_eq!(runs.total(), before + 2);
    }
}

#[tokio::test]
async fn an_answer_found_for_an_abandoned_key_carries_it_on_retries_only() {
    let found = OnAbandoned::ask(async |_| {
        Verdict::Answer(Response::builder().header(MARKER, "true").body("found".into()).unwrap())
    });
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(found);
    let fails = service_fn(async |_: Request<Body<Full<Bytes>>>| Err::<Response<Full<Bytes>>, _>("the handler failed"));
    let service = layer.layer(fails);
    let send =
        || service.clone().oneshot(Request::post("/").header("idempotency-key", "k").body(Full::default()).unwrap());

    assert_eq!(send().await.unwrap_err(), "the handler failed");
    assert!(!send().await.unwrap().headers().contains_key(MARKER), "the first answer of this key");
    assert!(send().await.unwrap().headers().contains_key(MARKER), "its replay");
}

#[tokio::test]
async fn a_request_that_passes_through_is_not_touched() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let handler = async |_: Request<Body<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::builder().header(MARKER, "mine").body(Full::<Bytes>::default()).unwrap())
    };
    let service = layer.layer(service_fn(handler));
    let answer = service.oneshot(Request::get("/").header("idempotency-key", "k").body(Full::default()).unwrap()).await;
    assert_eq!(answer.unwrap().headers()[MARKER], "mine");
}
