//! Responses that are too large, too slow or endless: they go out whole, and nothing runs again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::{sync::Semaphore, time::timeout};
use tower_idempotency::{IdempotencyLayer, MemoryStore};

use crate::support::{Answer, Http, PATIENCE, Reply, Runs, Seen, VERSIONS, framed, guard, keyed, reply};

const LIMIT: usize = 1000;
const AN_HOUR: Duration = Duration::from_secs(60 * 60);

#[track_caller]
fn assert_done_but_not_replayable(retry: &Answer, first_status: u16) {
    assert_eq!(retry.status, StatusCode::CONFLICT, "{retry:?}");
    assert_eq!(retry.problem(), "not-replayable");
    assert!(!retry.headers.contains_key("retry-after"), "a retry does not help");
    let document: serde_json::Value = serde_json::from_slice(&retry.body).unwrap();
    assert_eq!(document["first_status"], first_status);
}

/// A body as long as the query says, with a known length on `/known`, else in frames of at most 97 bytes.
fn of_length_in_query(seen: Seen) -> Response<Reply> {
    let uri = &seen.head.uri;
    let body: Bytes = (0..uri.query().unwrap().parse().unwrap()).map(|nr: usize| nr as u8).collect();
    let head = Response::builder().status(201);
    if uri.path() == "/known" {
        return reply(head, body);
    }
    let frames: Vec<_> = body.chunks(97).map(|piece| Frame::data(Bytes::copy_from_slice(piece))).collect();
    framed(head, stream::iter(frames))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_up_to_the_limit_is_stored_and_one_byte_more_is_not() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).response_limit(LIMIT);
        let runs = Runs::default();
        let server = guard(&layer, &runs, of_length_in_query).await;
        let http = Http::new(version);
        for path in ["/known", "/framed"] {
            for (len, stored) in [(0, true), (1, true), (LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
                let (uri, key) = (format!("{path}?{len}"), format!("{path}{len}"));
                let before = runs.total();
                let first = http.post(&server, &uri, &key, "").await;
                let retry = http.post(&server, &uri, &key, "").await;
                assert_eq!((first.status, first.body.len()), (StatusCode::CREATED, len));
                assert!(first.body.iter().enumerate().all(|(nr, byte)| *byte == nr as u8));
                if stored {
                    assert!(retry.is_replay(), "{uri}");
                    assert_eq!(first.body, retry.body);
                } else {
                    assert_done_but_not_replayable(&retry, 201);
                }
                assert_eq!(runs.total(), before + 1);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_far_over_the_default_limit_goes_out_whole() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let runs = Runs::default();
        let server = guard(&layer, &runs, of_length_in_query).await;
        let http = Http::new(version);
        for (path, key) in [("/known?3000000", "a"), ("/framed?3000000", "b")] {
            let first = http.post(&server, path, key, "").await;
            assert_eq!(first.body.len(), 3_000_000);
            assert!(first.body.iter().enumerate().all(|(nr, byte)| *byte == nr as u8));
            assert_done_but_not_replayable(&http.post(&server, path, key, "").await, 201);
        }
        assert_eq!(runs.total(), 2);
        assert!(store.bytes() < 10_000, "what is not replayed is not kept: {}", store.bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_starts_at_once_and_its_retry_is_told_that_it_was_done() {
    for version in VERSIONS {
        for media in ["text/event-stream", "Text/Event-Stream; charset=utf-8", "multipart/x-mixed-replace; boundary=b"]
        {
            let layer = IdempotencyLayer::new(MemoryStore::new()).response_time(AN_HOUR);
            let runs = Runs::default();
            let handler = move |_: Seen| {
                let first = stream::iter([Frame::data(Bytes::from_static(b"data: 1\n\n"))]);
                framed(Response::builder().header("content-type", media), first.chain(stream::pending()))
            };
            let server = guard(&layer, &runs, handler).await;
            let http = Http::new(version);

            let mut stream = http.open(keyed(&server, "/", "k").body(Full::default()).unwrap()).await;
            let event = timeout(PATIENCE, stream.body_mut().frame()).await.expect("an event in time");
            assert_eq!(event.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");

            assert_done_but_not_replayable(&http.post(&server, "/", "k", "").await, 200);
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_takes_too_long_goes_on_as_a_stream() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).response_time(Duration::from_millis(20));
        let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let opened = Arc::clone(&gate);
        let handler = move |_: Seen| {
            let opened = Arc::clone(&opened);
            let first = stream::iter([Frame::data(Bytes::from_static(b"begin "))]);
            let last = stream::once(async move {
                opened.acquire().await.unwrap().forget();
                Frame::data(Bytes::from_static(b"end"))
            });
            framed(Response::builder().status(202), first.chain(last))
        };
        let server = guard(&layer, &runs, handler).await;
        let http = Http::new(version);

        let mut first = http.open(keyed(&server, "/", "k").body(Full::default()).unwrap()).await;
        let piece = timeout(PATIENCE, first.body_mut().frame()).await.expect("a piece in time");
        assert_eq!(piece.unwrap().unwrap().into_data().unwrap(), "begin ");
        assert_done_but_not_replayable(&http.post(&server, "/", "k", "").await, 202);
        gate.add_permits(1);
        let rest = timeout(PATIENCE, first.into_body().collect()).await.expect("an end in time");
        assert_eq!(rest.unwrap().to_bytes(), "end");

        assert_done_but_not_replayable(&http.post(&server, "/", "k", "").await, 202);
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_pauses_within_its_time_is_stored_whole() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).response_time(AN_HOUR);
        let handler = |_: Seen| {
            let frames = stream::iter(["a", "", "b", "c"]).then(|piece| async move {
                tokio::task::yield_now().await;
                Frame::data(Bytes::from_static(piece.as_bytes()))
            });
            framed(Response::builder(), frames)
        };
        let server = guard(&layer, &Runs::default(), handler).await;
        let http = Http::new(version);
        let first = http.post(&server, "/", "k", "").await;
        let retry = http.post(&server, "/", "k", "").await;
        assert!(retry.is_replay());
        assert_eq!((first.body, &retry.body[..]), (retry.body.clone(), &b"abc"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_the_limit_does_not_wait_for_its_end() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).response_limit(LIMIT).response_time(AN_HOUR);
        let runs = Runs::default();
        let handler = |_: Seen| {
            let pieces = stream::iter((0..4).map(|_| Frame::data(Bytes::from_static(&[7; LIMIT / 2]))));
            framed(Response::builder(), pieces.chain(stream::pending()))
        };
        let server = guard(&layer, &runs, handler).await;
        let http = Http::new(version);

        let mut first = http.open(keyed(&server, "/", "k").body(Full::default()).unwrap()).await;
        let mut len = 0;
        while len < 2 * LIMIT {
            let frame = timeout(PATIENCE, first.body_mut().frame()).await.expect("all there is in time");
            len += frame.unwrap().unwrap().into_data().unwrap().len();
        }
        assert_done_but_not_replayable(&http.post(&server, "/", "k", "").await, 200);
        assert_eq!((len, runs.total()), (2 * LIMIT, 1));
    }
}
