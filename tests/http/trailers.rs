//! Trailers, and the fields that are not repeated.

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower_idempotency::{IdempotencyLayer, MemoryStore};

use crate::{
    support::{Http, Reply, Runs, Seen, VERSIONS, field, framed, guard, keyed, reply},
    wire::Wire,
};

/// Two pieces of data, then a checksum as a trailer that could not be known before.
fn with_trailer(_: Seen) -> Response<Reply> {
    let head = Response::builder().header("trailer", "x-sum");
    let frames = [Frame::data("one ".into()), Frame::data("two".into()), Frame::trailers(field("x-sum", "7"))];
    framed(head, stream::iter(frames))
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_stay_trailers_over_http_1_1() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let server = guard(&layer, &Runs::default(), with_trailer).await;
    let mut wire = Wire::connect(&server).await;
    let request = "POST /pay HTTP/1.1\r\nhost: a\r\nte: trailers\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n";

    wire.send(request).await;
    let first = wire.answer().await;
    wire.send(request).await;
    let retry = wire.answer().await;

    assert_eq!(first.trailers, [b"x-sum: 7"], "{first:?}");
    assert!(!first.is_replay() && retry.is_replay());
    assert_eq!((&first.body, first.repeatable), (&b"one two".to_vec(), retry.repeatable));
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_stay_trailers_over_http_2() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let server = guard(&layer, &Runs::default(), with_trailer).await;
    let http = Http::new(VERSIONS[1]);

    let first = http.post(&server, "/pay", "k", "").await;
    let retry = http.post(&server, "/pay", "k", "").await;

    assert!(!first.is_replay() && retry.is_replay());
    assert_eq!(first.trailers, Some(field("x-sum", "7")));
    assert_eq!((first.body, first.trailers), (retry.body, retry.trailers));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_ask_for_trailers_gets_the_same_body() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let server = guard(&layer, &Runs::default(), with_trailer).await;
    for version in [1, 0] {
        let (key, mut bodies) = (format!("k{version}"), Vec::new());
        for _ in 0..2 {
            let mut wire = Wire::connect(&server).await;
            let head = format!("POST / HTTP/1.{version}\r\nidempotency-key: {key}\r\n");
            wire.send(format!("{head}host: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")).await;
            bodies.push(wire.answer().await.body);
            assert!(wire.rest().await.is_empty());
        }
        assert_eq!(bodies, [b"one two"; 2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_unary_answer_is_replayed_with_its_status() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let runs = Runs::default();
    let handler = |seen: Seen| {
        let head = Response::builder().header("content-type", "application/grpc");
        // Length-prefixed, as gRPC frames a message; a refusal has no message at all.
        let message =
            if seen.body.ends_with(b"!") { Bytes::new() } else { Bytes::from_static(b"\0\0\0\0\x02\x08\x07") };
        let data = (!message.is_empty()).then(|| Frame::data(message));
        framed(head, stream::iter(data.into_iter().chain([Frame::trailers(field("grpc-status", "0"))])))
    };
    let server = guard(&layer, &runs, handler).await;
    let http = Http::new(VERSIONS[1]);

    for (key, body) in [("a", "\0\0\0\0\x01a"), ("b", "\0\0\0\0\x01!")] {
        let send = || {
            let request = keyed(&server, "/pay.Pay/Charge", key).header("content-type", "application/grpc");
            http.send(request.header("te", "trailers").body(Full::from(body)).unwrap())
        };
        let (first, retry) = (send().await.unwrap(), send().await.unwrap());
        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!(first.trailers.as_ref().unwrap()["grpc-status"], "0");
        assert_eq!((first.body, first.trailers), (retry.body, retry.trailers));
    }
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_request_reach_the_handler() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let handler = |seen: Seen| {
        let sum = seen.trailers.and_then(|trailers| trailers.get("x-sum").cloned());
        reply(Response::builder().header("x-seen", sum.unwrap()), seen.body)
    };
    let server = guard(&layer, &Runs::default(), handler).await;

    let mut wire = Wire::connect(&server).await;
    wire.send("POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n").await;
    wire.send("2\r\nab\r\n1\r\nc\r\n0\r\nx-sum: 7\r\n\r\n").await;
    let answer = wire.answer().await;
    assert_eq!((answer.values("x-seen"), &answer.body[..]), (vec![&b"7"[..]], &b"abc"[..]));

    let frames = [Ok::<_, std::io::Error>(Frame::data(Bytes::from("abc"))), Ok(Frame::trailers(field("x-sum", "8")))];
    let body = StreamBody::new(stream::iter(frames));
    let stream = TokioIo::new(TcpStream::connect(server.addr).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let response = sender.send_request(keyed(&server, "/", "k2").body(body).unwrap()).await.unwrap();
    assert_eq!(response.headers()["x-seen"], "8");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "abc");
}

/// Answers with the fields that belong to one connection, one moment or one client.
fn momentary(_: Seen) -> Response<Reply> {
    let head = Response::builder()
        .header("set-cookie", "a=1")
        .header("set-cookie", "b=2")
        .header("date", "Thu, 01 Jan 1970 00:00:00 GMT")
        .header("connection", "x-tmp, keep-alive")
        .header("keep-alive", "timeout=5")
        .header("transfer-encoding", "chunked")
        .header("x-tmp", "1")
        .header("x-trace", "1")
        .header("x-kept", "1");
    reply(head, "a body")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_one_connection_or_one_moment_is_not_repeated() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).never_replay("x-trace".parse().unwrap());
    let server = guard(&layer, &Runs::default(), momentary).await;
    let mut wire = Wire::connect(&server).await;

    let first = wire.post("k", "").await;
    let retry = wire.post("k", "").await;

    assert!(first.values("transfer-encoding").is_empty(), "the length is known: {first:?}");
    for name in ["set-cookie", "connection", "keep-alive", "x-tmp", "x-trace"] {
        assert!(!first.values(name).is_empty(), "{name} is on the first answer: {first:?}");
        assert!(retry.values(name).is_empty(), "{name} is not on the replay: {retry:?}");
    }
    assert_eq!(first.values("date"), [b"Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert_eq!(retry.values("date").len(), 1, "the server's own");
    assert_ne!(first.values("date"), retry.values("date"));
    assert_eq!(retry.values("x-kept"), [b"1"]);
    assert_eq!((first.body, retry.values("content-length")), (retry.body.clone(), vec![&b"6"[..]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_are_replayed_where_that_is_asked_for() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).replay_set_cookie();
    let server = guard(&layer, &Runs::default(), momentary).await;
    let mut wire = Wire::connect(&server).await;
    wire.post("k", "").await;
    assert_eq!(wire.post("k", "").await.values("set-cookie"), [b"a=1", b"b=2"]);
}
