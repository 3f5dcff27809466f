//! What clients do to a connection: pipelining, half a request, odd framing, odd versions.

use std::{convert::Infallible, sync::Arc};

use http::{Request, Response};
use tokio::sync::Semaphore;
use tower::{Layer, service_fn};
use tower_idempotency::{Body, IdempotencyLayer, MemoryStore, Scope, Store};

use crate::{
    support::{Reply, Runs, Seen, Server, guard, reply, serve},
    wire::{Wire, post},
};

async fn counting<S: Store>(layer: &IdempotencyLayer<S>, runs: &Runs) -> Server {
    let handler = |seen: Seen| {
        let body = format!("run {} of {}", seen.run, String::from_utf8_lossy(&seen.body));
        reply(Response::builder().status(201), body)
    };
    guard(layer, runs, handler).await
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_body_and_then_nothing_leaves_the_key_free() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
    let server = counting(&layer, &runs).await;
    let whole = post("k", "0123456789");

    let mut dropped = Wire::connect(&server).await;
    dropped.send(&whole[..whole.len() - 5]).await;
    drop(dropped);
    let mut ended = Wire::connect(&server).await;
    ended.send(&whole[..whole.len() - 5]).await;
    ended.half_close().await;
    let rest = ended.rest().await;
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400 "), "{:?}", String::from_utf8_lossy(&rest));

    assert_eq!((runs.total(), store.len()), (0, 0));
    assert_eq!(Wire::connect(&server).await.post("k", "0123456789").await.body, b"run 1 of 0123456789");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_a_body_is_the_next_request() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;

    let mut wire = Wire::connect(&server).await;
    let head = "POST /pay HTTP/1.1\r\nhost: a.example\r\nidempotency-key: k\r\ncontent-length: 3\r\n\r\n";
    wire.send(format!("{head}abc{}", post("k2", "next"))).await;
    assert_eq!(wire.answer().await.body, b"run 1 of abc");
    assert_eq!(wire.answer().await.body, b"run 2 of next");

    wire.send(format!("{head}abcdef\r\n\r\n")).await;
    assert!(wire.answer().await.is_replay(), "the lie in the length does not reach the body");
    assert_eq!(wire.answer().await.status, 400, "what is left is not a request");
    assert!(wire.rest().await.is_empty());
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_framings_at_once_are_one_request_at_most() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let mut wire = Wire::connect(&server).await;
    let head = "POST /pay HTTP/1.1\r\nhost: a.example\r\nidempotency-key: k\r\n";
    wire.send(format!("{head}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
    let answer = wire.answer().await;
    // RFC 9112, section 6.3: either the chunks decide, or the request is refused; the connection is closed.
    assert!(answer.status == 400 || answer.body == b"run 1 of abc", "{answer:?}");
    assert_eq!(runs.total(), usize::from(answer.status != 400));
    assert!(wire.rest().await.is_empty(), "no second request is read out of the first one");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let mut wire = Wire::connect(&server).await;
    wire.send([post("a", "1"), post("a", "1"), post("b", "2"), post("a", "other"), post("b", "2")].concat()).await;

    assert_eq!(wire.answer().await.body, b"run 1 of 1");
    let retry = wire.answer().await;
    assert!(retry.is_replay() && retry.body == b"run 1 of 1");
    assert_eq!(wire.answer().await.body, b"run 2 of 2");
    assert_eq!(wire.answer().await.problem(), "key-reused");
    assert!(wire.answer().await.is_replay());
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_only_where_it_is_wanted() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).request_limit(10);
    let layer = layer.scope(|head| head.headers.get("x-tenant").map(|tenant| tenant.to_str().unwrap().into()));
    let runs = Runs::default();
    let server = counting(&layer, &runs).await;
    for (fields, refused) in [
        ("x-tenant: a\r\nidempotency-key: \"k\r\ncontent-length: 4", Some((400, "key-malformed"))),
        ("x-tenant: a\r\nidempotency-key: k\r\ncontent-length: 11", Some((413, "body-too-large"))),
        ("idempotency-key: k\r\ncontent-length: 4", Some((401, "unknown-caller"))),
        ("x-tenant: a\r\nidempotency-key: k\r\ncontent-length: 4", None),
        ("x-tenant: a\r\nidempotency-key: k\r\ncontent-length: 4", None),
    ] {
        let mut wire = Wire::connect(&server).await;
        wire.send(format!("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n{fields}\r\n\r\n")).await;
        let answer = wire.answer().await;
        if let Some((status, problem)) = refused {
            assert_eq!((answer.status, answer.problem().as_str()), (status, problem));
            continue;
        }
        assert_eq!(answer.status, 100);
        wire.send("body").await;
        assert_eq!(wire.answer().await.body, b"run 1 of body");
    }
    assert_eq!(runs.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_is_answered_with_and_without_keep_alive() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let request = "POST / HTTP/1.0\r\nidempotency-key: k\r\ncontent-length: 1\r\n";

    let mut kept = Wire::connect(&server).await;
    for replay in [false, true] {
        kept.send(format!("{request}connection: keep-alive\r\n\r\n1")).await;
        let answer = kept.answer().await;
        assert_eq!((answer.is_replay(), &answer.body[..]), (replay, &b"run 1 of 1"[..]));
    }
    let mut closed = Wire::connect(&server).await;
    closed.send(format!("{request}\r\n1")).await;
    assert!(closed.answer().await.is_replay());
    assert!(closed.rest().await.is_empty());
    assert_eq!(runs.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_usable_after_each_of_our_answers() {
    let (gate, runs) = (Arc::new(Semaphore::new(0)), Runs::default());
    let layer = IdempotencyLayer::new(MemoryStore::new().max_records(2)).request_limit(10);
    let layer =
        layer.scope(|head| head.headers.get("host").map(|host| Scope::new(host.to_str().unwrap().trim_matches('-'))));
    let (counted, opened) = (runs.clone(), Arc::clone(&gate));
    let handler = move |_: Request<_>| {
        let (run, opened) = (counted.count(), Arc::clone(&opened));
        async move {
            opened.acquire().await.unwrap().forget();
            Ok::<_, Infallible>(reply(Response::builder(), run.to_string()))
        }
    };
    let server = serve::<_, Body<Reply>>(layer.layer(service_fn(handler))).await;
    let mut running = [Wire::connect(&server).await, Wire::connect(&server).await];
    for (nr, wire) in running.iter_mut().enumerate() {
        wire.send(post(&nr.to_string(), "small")).await;
    }
    runs.reach(2).await;

    let mut wire = Wire::connect(&server).await;
    let stranger = post("0", "small").replace("a.example", "-");
    for (request, status, problem) in [
        (post("\"", "small"), 400, "key-malformed"),
        (stranger, 401, "unknown-caller"),
        (post("0", "small"), 409, "in-flight"),
        (post("0", "other"), 400, "key-reused"),
        (post("new", "larger than the limit"), 413, "body-too-large"),
        (post("new", "small"), 503, "store-full"),
    ] {
        wire.send(request).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, problem));
    }
    gate.add_permits(2);
    for mut first in running {
        assert_eq!(first.answer().await.status, 200);
    }
    assert!(wire.post("0", "small").await.is_replay(), "the same connection, six refusals later");
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_the_request_target_does_not_matter() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let mut wire = Wire::connect(&server).await;
    for (target, replay) in [("/pay?a=1", false), ("http://a.example/pay?a=1", true), ("/pay?a=1", true)] {
        wire.send(post("k", "").replace("/pay", target)).await;
        let answer = wire.answer().await;
        assert_eq!((answer.status, answer.is_replay()), (201, replay), "{target}");
    }
    wire.send(post("k", "").replace("/pay", "/pay?a=2")).await;
    assert_eq!(wire.answer().await.problem(), "key-reused");
    assert_eq!(runs.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_byte_by_byte_is_one_request() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let mut wire = Wire::connect(&server).await;
    for replay in [false, true] {
        for byte in post("k", "slowly").bytes() {
            wire.send([byte]).await;
            tokio::task::yield_now().await;
        }
        let answer = wire.answer().await;
        assert_eq!((answer.is_replay(), &answer.body[..]), (replay, &b"run 1 of slowly"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_folded_over_two_lines_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
    let server = counting(&layer, &runs).await;
    for folded in ["half\r\n  half", "\r\n half", "\"half\r\n\thalf\""] {
        let mut wire = Wire::connect(&server).await;
        wire.send(post(folded, "")).await;
        assert_eq!(wire.answer().await.status, 400);
    }
    assert_eq!((runs.total(), store.len()), (0, 0));
}
