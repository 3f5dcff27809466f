//! A replay is the first answer: status, header lines, body.

use std::sync::Arc;

use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use tower_idempotency::{IdempotencyLayer, MemoryStore, NothingExecuted};

use crate::{
    support::{Http, Reply, Runs, Seen, VERSIONS, guard, keyed, reply},
    wire::{Wire, WireAnswer},
};

const NOT_STORED: [u16; 5] = [307, 308, 425, 429, 503];

/// Answers with the status that stands in the path, and with headers of every kind.
fn with_status_in_path(seen: Seen) -> Response<Reply> {
    let status = seen.head.uri.path().trim_start_matches('/').parse().unwrap();
    let head = Response::builder()
        .status(status)
        .header("content-type", "application/json; charset=utf-8")
        .header("location", "/v1/charges/7")
        .header("x-a", "1")
        .header("link", "</a>; rel=\"next\"")
        .header("etag", "W/\"v1\"")
        .header("link", "</b>; rel=\"prev\", </c>; rel=\"last\"")
        .header("x-a", "1")
        .header("x-empty", "");
    reply(head, if matches!(status, 204 | 205 | 304) { "" } else { "{ \"a\" : 1.0,\n\"a\":1.00 }" })
}

async fn post_to(wire: &mut Wire, path: &str, key: &str) -> WireAnswer {
    wire.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\ncontent-length: 0\r\n\r\n")).await;
    wire.answer().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_is_replayed_byte_for_byte_or_runs_again() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = guard(&layer, &runs, with_status_in_path).await;
    let mut wire = Wire::connect(&server).await;
    let mut expected = 0;

    for status in 200..=599 {
        let (path, key) = (format!("/{status}"), format!("k-{status}"));
        let first = post_to(&mut wire, &path, &key).await;
        let retry = post_to(&mut wire, &path, &key).await;

        let stored = !NOT_STORED.contains(&status);
        expected += if stored { 1 } else { 2 };
        assert_eq!(runs.total(), expected, "{status}");
        assert_eq!((first.status, first.is_replay(), retry.is_replay()), (status, false, stored), "{first:?}");
        assert_eq!(first.values("link").len(), 2, "{first:?}");
        assert_eq!(first.values("content-type"), [b"application/json; charset=utf-8"]);
        assert_eq!(first.repeatable, retry.repeatable, "{first:?} {retry:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_2_a_replay_differs_in_the_date_and_the_marker_only() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = guard(&layer, &runs, with_status_in_path).await;
    let http = Http::new(VERSIONS[1]);

    for status in (200..=599).filter(|status| !NOT_STORED.contains(status)) {
        let (path, key) = (format!("/{status}"), format!("k-{status}"));
        let mut first = http.post(&server, &path, &key, "").await;
        let mut retry = http.post(&server, &path, &key, "").await;
        assert!(!first.is_replay() && retry.is_replay(), "{status}");
        for answer in [&mut first, &mut retry] {
            answer.headers.remove("idempotent-replayed");
            answer.headers.remove("date");
        }
        assert_eq!(first, retry);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_over_the_other_version_of_http_gets_the_same_answer() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = guard(&layer, &runs, with_status_in_path).await;
    let [http_1, http_2] = VERSIONS.map(Http::new);

    for (key, first, second) in [("a", &http_1, &http_2), ("b", &http_2, &http_1)] {
        let first = first.post(&server, "/402", key, "").await;
        let retry = second.post(&server, "/402", key, "").await;
        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!((first.status, first.body), (retry.status, retry.body));
    }
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_marked_as_nothing_executed_is_not_stored() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let sold_out_at_first = |seen: Seen| {
        let mut response = reply(Response::builder().status(409), format!("run {}", seen.run));
        if seen.run == 1 {
            response.extensions_mut().insert(NothingExecuted);
        }
        response
    };
    let server = guard(&layer, &runs, sold_out_at_first).await;
    let http = Http::new(VERSIONS[0]);

    let answers = [
        http.post(&server, "/", "k", "").await,
        http.post(&server, "/", "k", "").await,
        http.post(&server, "/", "k", "").await,
    ];
    assert_eq!(answers.each_ref().map(|answer| &answer.body[..]), [b"run 1", b"run 2", b"run 2"]);
    assert_eq!(answers.each_ref().map(super::support::Answer::is_replay), [false, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicate_says_which_answers_are_stored() {
    let store = Arc::new(MemoryStore::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).store_when(|head| head.headers.contains_key("x-keep"));
    let runs = Runs::default();
    let handler = |seen: Seen| {
        let head = Response::builder().status(503);
        reply(if seen.head.uri.path() == "/keep" { head.header("x-keep", "1") } else { head }, "")
    };
    let server = guard(&layer, &runs, handler).await;
    let http = Http::new(VERSIONS[0]);

    for (path, key, replays) in [("/keep", "a", true), ("/drop", "b", false)] {
        assert!(!http.post(&server, path, key, "").await.is_replay());
        assert_eq!(http.post(&server, path, key, "").await.is_replay(), replays);
    }
    assert_eq!((runs.total(), store.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_every_value_are_replayed_in_body_and_header_values() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let handler = |_: Seen| {
        let visible: Vec<u8> = (0x20..=0xFF).filter(|byte| *byte != 0x7F).collect();
        let body: Vec<u8> = (0..=0xFF).collect();
        reply(Response::builder().header("x-bytes", HeaderValue::from_bytes(&visible[1..]).unwrap()), body)
    };
    let server = guard(&layer, &runs, handler).await;
    let mut wire = Wire::connect(&server).await;

    let first = wire.post("k", "").await;
    let retry = wire.post("k", "").await;

    assert!(retry.is_replay());
    assert_eq!(retry.body, (0..=0xFF).collect::<Vec<u8>>());
    assert_eq!(retry.values("x-bytes")[0].last(), Some(&0xFF));
    assert_eq!(first.repeatable, retry.repeatable);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_get_put_and_delete_are_guarded_where_that_is_configured() {
    let methods = [Method::HEAD, Method::GET, Method::PUT, Method::DELETE];
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).methods(methods.clone());
        let runs = Runs::default();
        let handler = |seen: Seen| match seen.head.method {
            Method::HEAD => reply(Response::builder().header("content-length", "5"), ""),
            _ => reply(Response::builder(), format!("run {}", seen.run)),
        };
        let server = guard(&layer, &runs, handler).await;
        let http = Http::new(version);
        for (nr, method) in methods.iter().enumerate() {
            let send = || {
                let request = keyed(&server, "/", method.as_str()).method(method.clone());
                http.send(request.body(Full::default()).unwrap())
            };
            let (first, retry) = (send().await.unwrap(), send().await.unwrap());
            assert!(!first.is_replay() && retry.is_replay(), "{method}");
            assert_eq!(first.body, if method == Method::HEAD { String::new() } else { format!("run {}", nr + 1) });
            assert_eq!((first.body, &first.headers["content-length"]), (retry.body, &retry.headers["content-length"]));
        }
        http.post(&server, "/", "k", "").await;
        assert!(!http.post(&server, "/", "k", "").await.is_replay(), "POST is not guarded any more");
        assert_eq!(runs.total(), methods.len() + 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_head_states_the_same_length_again_and_leaves_the_connection_usable() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).methods([Method::HEAD, Method::POST]);
    // The one handler leaves the body to the server, the other one knows the length of what it does not send.
    for (body, length) in [("five!", None), ("", Some("1234567"))] {
        let handler = move |_: Seen| {
            let head = Response::builder();
            reply(if let Some(length) = length { head.header("content-length", length) } else { head }, body)
        };
        let server = guard(&layer, &Runs::default(), handler).await;
        let mut wire = Wire::connect(&server).await;
        let mut answers = Vec::new();
        for _ in 0..2 {
            wire.send(format!("HEAD / HTTP/1.1\r\nhost: a\r\nidempotency-key: k{}\r\n\r\n", body.len())).await;
            answers.push(wire.answer_to_head().await);
        }
        let [first, retry] = &answers[..] else { unreachable!() };
        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!(retry.values("content-length"), [length.unwrap_or("5").as_bytes()]);
        assert_eq!(first.repeatable, retry.repeatable);
        wire.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(wire.rest().await.starts_with(b"HTTP/1.1 200 OK"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn header_lines_keep_their_order_where_a_length_must_not_be_repeated() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let handler = |_: Seen| {
        let head = Response::builder().status(StatusCode::NO_CONTENT).header("content-length", "0");
        reply(head.header("x-a", "1").header("x-b", "2").header("x-c", "3"), "")
    };
    let server = guard(&layer, &runs, handler).await;
    let mut wire = Wire::connect(&server).await;

    let first = wire.post("k", "").await;
    let retry = wire.post("k", "").await;
    assert!(retry.is_replay());
    assert_eq!(first.repeatable, retry.repeatable, "{first:?} {retry:?}");

    // HTTP/1.1 servers take the length off by themselves.
    let retry = Http::new(VERSIONS[1]).post(&server, "/pay", "k", "").await;
    assert!(retry.is_replay() && !retry.headers.contains_key("content-length"), "{retry:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coded_body_is_replayed_with_its_coding_and_is_not_coded_again() {
    let coded = b"\x1f\x8b\x08not really gzip, and nobody here may look at it";
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let handler = |_: Seen| reply(Response::builder().header("content-encoding", "gzip"), &coded[..]);
    let server = guard(&layer, &runs, handler).await;
    for version in VERSIONS {
        let http = Http::new(version);
        http.post(&server, "/", "k", "").await;
        let retry =
            http.send(keyed(&server, "/", "k").header("accept-encoding", "identity").body(Full::default()).unwrap());
        let retry = retry.await.unwrap();
        assert!(retry.is_replay());
        assert_eq!(retry.headers["content-encoding"], "gzip");
        assert_eq!(&retry.body[..], coded);
    }
}
