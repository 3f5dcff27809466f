//! First answers are framed like replays: by what the body is, not by what the handler says of it.

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Response, response};
use http_body::Frame;
use http_body_util::Full;
use tower::{Layer, service_fn};
use tower_idempotency::{Attempt, Body, IdempotencyLayer, MemoryStore, OnAbandoned, Verdict};

use crate::{
    support::{Http, Reply, Runs, Seen, Server, VERSIONS, framed, guard, keyed, reply, serve},
    wire::{Wire, WireAnswer},
};

/// Headers that a handler may have copied from an upstream, around a body of six bytes.
const COPIED: [&[(&str, &str)]; 4] = [
    &[("content-length", "2")],
    &[("content-length", "20")],
    &[("transfer-encoding", "chunked")],
    &[("transfer-encoding", "chunked"), ("content-length", "20")],
];

/// The names of the lines whose order is looked at.
const ORDERED: [&[u8]; 4] = [b"x-1", b"x-2", b"x-3", b"x-4"];

/// Six bytes in two pieces, whose number is not known before.
fn six_bytes(head: response::Builder) -> Response<Reply> {
    framed(head, stream::iter(["abc", "def"].map(|piece| Frame::data(Bytes::from(piece)))))
}

/// Answers with the copied headers that the path tells by their number.
fn copying(seen: Seen) -> Response<Reply> {
    let number: usize = seen.head.uri.path()[1..].parse().unwrap();
    let head = COPIED[number]
        .iter()
        .fold(Response::builder().header("x-1", "1"), |head, (name, value)| head.header(*name, *value));
    six_bytes(head.header("x-2", "2").header("x-3", "3").header("x-4", "4"))
}

/// Answers with the status in the path, and with a body where none belongs.
fn with_a_body(seen: Seen) -> Response<Reply> {
    six_bytes(Response::builder().status(&seen.head.uri.path()[1..]).header("etag", "\"1\""))
}

async fn serve_one(layer: &IdempotencyLayer<MemoryStore>, handler: fn(Seen) -> Response<Reply>) -> Server {
    guard(layer, &Runs::default(), handler).await
}

async fn exchange(wire: &mut Wire, method: &str, path: &str, key: &str) -> WireAnswer {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: a.example\r\nidempotency-key: {key}\r\n");
    wire.send(format!("{head}content-length: 0\r\n\r\n")).await;
    if method == "HEAD" { wire.answer_to_head().await } else { wire.answer().await }
}

/// The names of the ordered lines, in the order in which they came.
fn order(answer: &WireAnswer) -> Vec<&[u8]> {
    let names = answer.lines.iter().map(|line| line.split(|byte| *byte == b':').next().unwrap());
    names.filter(|name| ORDERED.contains(name)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_contradict_the_body_do_not_break_the_connection() {
    let server = serve_one(&IdempotencyLayer::new(MemoryStore::new()), copying).await;
    for (number, copied) in COPIED.iter().enumerate() {
        let (path, key, mut wire) = (format!("/{number}"), format!("k{number}"), Wire::connect(&server).await);

        let first = exchange(&mut wire, "POST", &path, &key).await;
        let retry = exchange(&mut wire, "POST", &path, &key).await;
        let refused = exchange(&mut wire, "POST", &path, "\"").await;

        assert_eq!((first.status, &first.body[..]), (200, &b"abcdef"[..]), "{copied:?}");
        assert!(!first.is_replay() && retry.is_replay(), "{copied:?}");
        assert_eq!(retry.body, b"abcdef", "{copied:?}");
        assert_eq!(refused.problem(), "key-malformed", "{copied:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_contradict_the_body_do_not_break_a_stream_of_http_2() {
    let server = serve_one(&IdempotencyLayer::new(MemoryStore::new()), copying).await;
    for number in [0, 1] {
        let (path, key, http) = (format!("/{number}"), format!("k{number}"), Http::new(VERSIONS[1]));

        let first = http.post(&server, &path, &key, "").await;
        let retry = http.post(&server, &path, &key, "").await;

        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!((&first.body[..], &retry.body[..]), (&b"abcdef"[..], &b"abcdef"[..]), "{:?}", COPIED[number]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_is_stated_twice_does_not_break_the_connection() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let server = serve_one(&layer, |seen| {
        let lengths = seen.head.uri.path()[1..].split('-');
        six_bytes(lengths.fold(Response::builder(), |head, length| head.header("content-length", length)))
    });
    let server = server.await;
    for lengths in ["6-6", "6-2", "2-6", "20-2"] {
        let (path, mut wire) = (format!("/{lengths}"), Wire::connect(&server).await);
        for is_replay in [false, true] {
            let answer = exchange(&mut wire, "POST", &path, lengths).await;
            assert_eq!((answer.is_replay(), &answer.body[..]), (is_replay, &b"abcdef"[..]), "{lengths}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_lines_keep_their_order_where_a_framing_header_is_dropped() {
    let server = serve_one(&IdempotencyLayer::new(MemoryStore::new()), copying).await;
    for (number, copied) in COPIED.iter().enumerate() {
        let (path, key, mut wire) = (format!("/{number}"), format!("k{number}"), Wire::connect(&server).await);
        for _ in 0..2 {
            assert_eq!(order(&exchange(&mut wire, "POST", &path, &key).await), ORDERED, "{copied:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_lines_keep_their_order_where_the_handler_sets_our_marker() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let server = serve_one(&layer, |_| {
        let head = Response::builder().header("x-1", "1").header("idempotent-replayed", "true").header("x-2", "2");
        reply(head.header("x-3", "3").header("x-4", "4"), "")
    });
    let server = server.await;
    let mut wire = Wire::connect(&server).await;
    for is_replay in [false, true] {
        let answer = exchange(&mut wire, "POST", "/", "k").await;
        assert_eq!((order(&answer), answer.is_replay()), (ORDERED.to_vec(), is_replay));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_without_a_body_has_none_over_http_1_1() {
    let server = serve_one(&IdempotencyLayer::new(MemoryStore::new()), with_a_body).await;
    for path in ["/204", "/304"] {
        let mut wire = Wire::connect(&server).await;
        let first = exchange(&mut wire, "POST", path, &path[1..]).await;
        // Bytes of a body would be taken for the start of this one.
        let retry = exchange(&mut wire, "POST", path, &path[1..]).await;
        assert_eq!((first.status.to_string(), first.values("etag")), (path[1..].to_owned(), vec![&b"\"1\""[..]]));
        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!(first.repeatable, retry.repeatable);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_without_a_body_has_none_over_http_2() {
    let server = serve_one(&IdempotencyLayer::new(MemoryStore::new()), with_a_body).await;
    let http = Http::new(VERSIONS[1]);
    for path in ["/204", "/304"] {
        let first = http.post(&server, path, &path[1..], "").await;
        let retry = http.post(&server, path, &path[1..], "").await;
        assert!(!first.is_replay() && retry.is_replay());
        for answer in [first, retry] {
            assert_eq!((answer.status.as_str(), &answer.body[..]), (&path[1..], &b""[..]));
            assert_eq!(answer.headers["etag"], "\"1\"");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_head_has_no_body() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).methods([Method::HEAD, Method::POST]);
    let server = serve_one(&layer, |seen| {
        let head = Response::builder().header("x-1", "1");
        match seen.head.uri.path() {
            "/known" => reply(head, "abcdef"),
            "/stated" => reply(head.header("content-length", "6"), "abcdef"),
            _ => six_bytes(head),
        }
    });
    let server = server.await;
    for version in VERSIONS {
        for path in ["/known", "/stated", "/streamed"] {
            let (path, http) = (format!("{path}?{version:?}"), Http::new(version));
            let key = path.replace(['/', '?'], "-");
            let send = async || {
                let request = keyed(&server, &path, &key).method(Method::HEAD).body(Full::default()).unwrap();
                http.send(request).await.unwrap_or_else(|error| panic!("{path}: {error:?}"))
            };
            let (first, retry) = (send().await, send().await);
            assert!(!first.is_replay() && retry.is_replay(), "{path}");
            for answer in [first, retry] {
                assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b""[..]), "{path}");
                let length = answer.headers.get("content-length");
                assert!(length.is_none_or(|length| length == "6"), "{path}: the length of what GET would give");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_found_for_an_abandoned_key_is_framed_by_its_body() {
    let found = OnAbandoned::ask(async |_| {
        Verdict::Answer(Response::builder().header("content-length", "20").body("abcdef".into()).unwrap())
    });
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(found);
    let fails = service_fn(async |request: http::Request<Body<_>>| {
        assert_eq!(request.extensions().get::<Attempt>().unwrap().number(), 1);
        Err::<Response<Full<Bytes>>, _>(std::io::Error::other("the handler failed"))
    });
    let server = serve(layer.layer(fails)).await;
    let mut cut_off = Wire::connect(&server).await;
    cut_off.send("POST /pay HTTP/1.1\r\nhost: a.example\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n").await;
    assert!(cut_off.rest().await.is_empty(), "the run that fails has no answer");

    let mut wire = Wire::connect(&server).await;
    for is_replay in [false, true] {
        let answer = exchange(&mut wire, "POST", "/pay", "k").await;
        assert_eq!((answer.is_replay(), &answer.body[..]), (is_replay, &b"abcdef"[..]));
    }
}
