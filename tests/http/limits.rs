//! Requests that are not taken: without a key, too large, broken off; and configurations that are none.

use std::{io, panic::catch_unwind, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, Method, Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Store};

use crate::{
    support::{Http, PATIENCE, Runs, Seen, Server, VERSIONS, guard, keyed, reply},
    wire::Wire,
};

async fn counting<S: Store>(layer: &IdempotencyLayer<S>, runs: &Runs) -> Server {
    guard(layer, runs, |seen: Seen| reply(Response::builder().status(201), seen.body.len().to_string())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_key_runs_each_time_or_is_refused_where_keys_are_required() {
    for version in VERSIONS {
        let http = Http::new(version);
        let (store, runs) = (Arc::new(MemoryStore::new()), Runs::default());
        let optional = IdempotencyLayer::new(Arc::clone(&store));
        let server = counting(&optional, &runs).await;
        let send = |server: &Server| http.send(Request::post(server.uri("/")).body(Full::default()).unwrap());
        for run in 1..=2 {
            assert_eq!(send(&server).await.unwrap().status, 201);
            assert_eq!((runs.total(), store.len()), (run, 0));
        }

        let (store, runs) = (Arc::new(MemoryStore::new()), Runs::default());
        let required = IdempotencyLayer::new(Arc::clone(&store)).require_key();
        let server = counting(&required, &runs).await;
        let refused = send(&server).await.unwrap();
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (400, "key-missing"));
        assert_eq!((runs.total(), store.len()), (0, 0));
        let get = http.send(Request::get(server.uri("/")).body(Full::default()).unwrap()).await.unwrap();
        assert_eq!((get.status.as_u16(), runs.total()), (201, 1), "a method that is not guarded needs no key");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_head_has_no_body() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).methods([Method::HEAD]);
        let server = counting(&layer, &Runs::default()).await;
        let request = keyed(&server, "/", "\"").method(Method::HEAD).body(Full::default()).unwrap();
        let answer = Http::new(version).send(request).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (400, &b""[..]));
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_read_from_the_header_that_is_configured_and_from_no_other() {
    let name = HeaderName::from_static("paypal-request-id");
    let store = Arc::new(MemoryStore::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).header(name.clone());
    let runs = Runs::default();
    let server = counting(&layer, &runs).await;
    let http = Http::new(VERSIONS[0]);
    for (name, replay) in [("PayPal-Request-Id", true), ("Idempotency-Key", false)] {
        let send = || http.send(Request::post(server.uri("/")).header(name, "k").body(Full::default()).unwrap());
        assert!(!send().await.unwrap().is_replay());
        assert_eq!(send().await.unwrap().is_replay(), replay, "{name}");
    }
    assert_eq!((runs.total(), store.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_up_to_the_limit_is_taken_and_one_byte_more_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)).request_limit(1000), Runs::default());
    let server = counting(&layer, &runs).await;
    for (len, taken) in [(1000, true), (1001, false)] {
        for version in VERSIONS {
            let request = keyed(&server, "/", &format!("k{len}{version:?}"));
            let body = Full::from(vec![7; len]);
            let answer = Http::new(version).send(request.body(body).unwrap()).await.unwrap();
            if taken {
                assert_eq!(answer.body, "1000");
            } else {
                assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (413, "body-too-large"));
            }
        }
        let mut wire = Wire::connect(&server).await;
        wire.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n").await;
        wire.send(format!("idempotency-key: chunked-{len}\r\n\r\n")).await;
        wire.send(format!("1f4\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", "a".repeat(500), len - 500, "a".repeat(len - 500)))
            .await;
        assert_eq!(wire.answer().await.status, if taken { 201 } else { 413 });
    }
    assert_eq!((runs.total(), store.len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_upload_is_cut_off_at_the_limit() {
    const GIB: usize = 1 << 30;
    for framing in ["transfer-encoding: chunked", "content-length: 1073741824"] {
        let store = Arc::new(MemoryStore::new());
        let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
        let server = counting(&layer, &runs).await;
        let (mut from_server, mut to_server) = TcpStream::connect(server.addr).await.unwrap().into_split();
        let upload = async {
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\n{framing}\r\n\r\n");
            to_server.write_all(head.as_bytes()).await.unwrap();
            let chunk = [b"10000\r\n", &[b'a'; 0x10000][..], b"\r\n"].concat();
            let mut sent = 0;
            while sent < GIB && to_server.write_all(&chunk).await.is_ok() {
                sent += chunk.len();
            }
            sent
        };
        let download = async {
            let mut answer = Vec::new();
            let _ = from_server.read_to_end(&mut answer).await;
            answer
        };
        let both = async { tokio::join!(upload, download) };
        let (sent, answer) = timeout(PATIENCE, both).await.expect("the server does not let the client wait");
        // What the server did not read is in the buffers of the kernel, a few MiB.
        assert!(sent < GIB / 16, "{framing}: {sent} bytes were taken");
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 413 "), "{:?}", String::from_utf8_lossy(&answer));
        assert_eq!((runs.total(), store.len()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_runs_nothing_and_leaves_the_key_free() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
    let server = counting(&layer, &runs).await;
    let head = "POST /pay HTTP/1.1\r\nhost: a.example\r\nidempotency-key: k\r\n";
    for broken in [
        "content-length: 10\r\n\r\nhalf",
        "transfer-encoding: chunked\r\n\r\n5\r\nwh",
        "transfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n",
        "transfer-encoding: chunked\r\n\r\nnot a size\r\n",
    ] {
        let mut wire = Wire::connect(&server).await;
        wire.send(format!("{head}{broken}")).await;
        wire.half_close().await;
        let rest = wire.rest().await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400 "), "{:?}", String::from_utf8_lossy(&rest));
        assert_eq!((runs.total(), store.len()), (0, 0), "{broken:?}");
    }
    assert_eq!(Wire::connect(&server).await.post("k", "whole").await.body, b"5");
}

#[test]
fn nonsense_in_the_configuration_is_refused_when_it_is_built() {
    let panics = |build: fn(IdempotencyLayer<MemoryStore>) -> IdempotencyLayer<MemoryStore>| {
        let caught = catch_unwind(|| build(IdempotencyLayer::new(MemoryStore::new())));
        let panic = caught.expect_err("a panic");
        panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    };
    for (build, said) in [
        (panics(|layer| layer.lease(Duration::ZERO)), "lease"),
        (panics(|layer| layer.header(http::header::CONTENT_TYPE)), "content-type"),
        (panics(|layer| layer.lease(Duration::MAX)), "lease"),
        (panics(|layer| layer.methods([])), "method"),
        (panics(|layer| layer.retention(Duration::ZERO)), "retention"),
        (panics(|layer| layer.max_runs(0)), "run"),
        (panics(|layer| layer.problem_types("urn:a b:")), "URI"),
        (panics(|layer| layer.wait(Duration::ZERO)), "wait"),
        (panics(|layer| layer.wait(Duration::MAX)), "wait"),
        (panics(|layer| layer.response_time(Duration::ZERO)), "response"),
        (panics(|layer| layer.response_limit(usize::MAX)), "response limit"),
        (panics(|layer| layer.store_timeout(Duration::ZERO)), "store"),
        (panics(|layer| layer.documentation("")), "URL"),
        (panics(|layer| layer.documentation("https://a.example/ b")), "URL"),
        (panics(|layer| layer.documentation("https://a.example/>; rel=x")), "URL"),
        (panics(|layer| layer.documentation("https://a.example/\r\nx: y")), "URL"),
        (panics(|layer| layer.documentation("/é")), "URL"),
    ] {
        let message = build.expect("a message");
        assert!(message.contains(said), "{message:?} names the {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_durations_work() {
    let layer = IdempotencyLayer::new(MemoryStore::new())
        .methods([Method::POST])
        .lease(Duration::from_secs(24 * 60 * 60))
        .retention(Duration::MAX)
        .wait(Duration::from_secs(24 * 60 * 60))
        .response_time(Duration::MAX)
        .store_timeout(Duration::MAX)
        .request_limit(usize::MAX);
    let server = counting(&layer, &Runs::default()).await;
    let http = Http::new(VERSIONS[0]);
    assert_eq!(http.post(&server, "/", "k", "abc").await.status, 201);
    assert!(http.post(&server, "/", "k", "abc").await.is_replay());
}

/// Sends one request over HTTP/2 with a body of any shape.
async fn send_over_http_2<B>(request: Request<B>) -> hyper::Result<Response<Incoming>>
where
    B: http_body::Body<Data = Bytes, Error = io::Error> + Unpin + Send + 'static,
{
    let stream = TokioIo::new(TcpStream::connect(request.uri().authority().unwrap().as_str()).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_upload_over_http_2_is_cut_off_at_the_limit() {
    let (store, runs, pieces) = (Arc::new(MemoryStore::new()), Runs::default(), Runs::default());
    let server = counting(&IdempotencyLayer::new(Arc::clone(&store)), &runs).await;
    let counted = pieces.clone();
    let endless = stream::repeat_with(move || {
        counted.count();
        Ok(Frame::data(Bytes::from_static(&[b'a'; 0x10000])))
    });
    let answer = send_over_http_2(keyed(&server, "/", "k").body(StreamBody::new(endless)).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 413);
    assert!(pieces.total() < 1024, "{} pieces of 64 KiB were taken for a limit of 1 MiB", pieces.total());
    assert_eq!((runs.total(), store.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_over_http_2_runs_nothing_and_leaves_the_key_free() {
    let (store, runs) = (Arc::new(MemoryStore::new()), Runs::default());
    let server = counting(&IdempotencyLayer::new(Arc::clone(&store)), &runs).await;
    let half = || Ok(Frame::data(Bytes::from_static(b"half")));

    let reset = StreamBody::new(stream::iter([half(), Err(io::ErrorKind::BrokenPipe.into())]));
    let reset = send_over_http_2(keyed(&server, "/", "k").body(reset).unwrap()).await;
    let short = StreamBody::new(stream::iter([half()]));
    let short = keyed(&server, "/", "k").header("content-length", "5").body(short).unwrap();
    let short = send_over_http_2(short).await;
    for answer in [reset, short] {
        assert!(answer.is_err() || answer.unwrap().status() == 400);
    }
    assert_eq!((runs.total(), store.len()), (0, 0));
    assert_eq!(Http::new(VERSIONS[1]).post(&server, "/", "k", "whole").await.body, "5");
}
