//! A response that the handler marks as cut short: it goes out, but its key counts as abandoned.

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use tower_idempotency::{Attempt, Body, CutShort, IdempotencyLayer, MemoryStore, OnAbandoned, Settled, Verdict};

use crate::support::{Http, Outcome, Reply, Runs, Seen, Server, VERSIONS, call, framed, guard, record, reply};

/// Answers with the status in the path, and with the number of the attempt; the first attempt is cut short.
async fn serve_timeouts(layer: &IdempotencyLayer<MemoryStore>, runs: &Runs) -> Server {
    guard(layer, runs, |seen: Seen| {
        let attempt = seen.head.extensions.get::<Attempt>().unwrap().number();
        let status: StatusCode = seen.head.uri.path()[1..].parse().unwrap();
        let mut response = reply(Response::builder().status(status), format!("attempt {attempt}"));
        if attempt == 1 {
            response.extensions_mut().insert(CutShort);
        }
        response
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_given_as_it_is_and_the_next_attempt_knows_of_it() {
    for version in VERSIONS {
        let (runs, http) = (Runs::default(), Http::new(version));
        let server = serve_timeouts(&IdempotencyLayer::new(MemoryStore::new()), &runs).await;
        // One that would be stored, and two after which the key would be free.
        for status in ["200", "504", "503", "429"] {
            let path = format!("/{status}");
            let first = http.post(&server, &path, status, "").await;
            assert_eq!((first.status.as_str(), &first.body[..]), (status, &b"attempt 1"[..]));
            assert!(!first.is_replay());
            assert_eq!(http.post(&server, &path, status, "").await.body, "attempt 2");
        }
        assert_eq!(runs.total(), 8);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_reruns_are_refused_its_outcome_is_unknown_until_it_is_settled() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(OnAbandoned::Refuse);
    let (runs, http) = (Runs::default(), Http::new(VERSIONS[0]));
    let server = serve_timeouts(&layer, &runs).await;
    assert_eq!(http.post(&server, "/504", "k", "").await.status, 504);

    assert_eq!(http.post(&server, "/504", "k", "").await.problem(), "outcome-unknown");
    assert_eq!(layer.settle(&record("k"), &Response::new("it was done".into())).await.unwrap(), Settled::Done);
    assert_eq!(http.post(&server, "/504", "k", "").await.body, "it was done");
    assert_eq!(runs.total(), 1);
}

#[tokio::test]
async fn the_callback_is_asked_what_became_of_it() {
    let found = OnAbandoned::ask(async |abandoned| {
        assert_eq!((abandoned.key().as_str(), abandoned.next_attempt()), ("k", 2));
        Verdict::Answer(Response::new("found".into()))
    });
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(found);
    let cut_short = async |_: Request<Body<_>>| -> Outcome {
        let mut response = Response::new(Bytes::from("cut short").into());
        response.extensions_mut().insert(CutShort);
        Ok(response)
    };
    assert_eq!(call(&layer, "k", cut_short).await.unwrap().body, "cut short");
    assert_eq!(call(&layer, "k", cut_short).await.unwrap().body, "found");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_body_is_not_waited_for() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new());
        let endless = |_: Seen| -> Response<Reply> {
            let frames = stream::unfold(0, async |sent| match sent {
                0 => Some((Frame::data(Bytes::from("start")), 1)),
                _ => std::future::pending().await,
            });
            let mut response = framed(Response::builder().status(504), frames);
            response.extensions_mut().insert(CutShort);
            response
        };
        let (runs, http) = (Runs::default(), Http::new(version));
        let server = guard(&layer, &runs, endless).await;
        for run in 1..=2 {
            let request = crate::support::keyed(&server, "/", "k").body("".into()).unwrap();
            assert_eq!(http.open(request).await.status(), 504);
            assert_eq!(runs.total(), run);
        }
    }
}
