//! What a handler is told about the runs before it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{
    Attempt, Body, IdempotencyKey, IdempotencyLayer, MemoryStore, NothingExecuted, OnAbandoned, Scope, Store, Verdict,
    store::{Record, RecordId, State},
    testing::{Fault, Faulty, Operation},
};

use crate::support::eventually;

/// What a run does at its end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Fails, so that nobody knows what it did.
    Fail,
    /// Says that it did nothing, by its status.
    Unavailable,
    /// Says that it did nothing, by the mark.
    Marked,
    Answer,
}

/// Lets one run after the other end like this, and returns which attempts the runs saw.
async fn attempts<S: Store>(layer: IdempotencyLayer<S>, ends: &[End]) -> Vec<u32> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for end in ends {
        let (end, seen) = (*end, Arc::clone(&seen));
        let handler = service_fn(move |request: Request<Body<Full<Bytes>>>| {
            let attempt = request.extensions().get::<Attempt>().unwrap();
            assert_eq!(attempt.is_rerun(), attempt.number() > 1);
            seen.lock().unwrap().push(attempt.number());
            let mut response = Response::new(Full::<Bytes>::default());
            match end {
                End::Fail => return std::future::ready(Err("the handler failed")),
                End::Unavailable => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
                End::Marked => drop(response.extensions_mut().insert(NothingExecuted)),
                End::Answer => {}
            }
            std::future::ready(Ok(response))
        });
        let request = Request::post("/").header("idempotency-key", "k").body(Full::default()).unwrap();
        let _ = layer.layer(handler).oneshot(request).await;
    }
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test]
async fn a_run_that_did_nothing_is_not_counted() {
    for nothing in [End::Unavailable, End::Marked] {
        let layer = IdempotencyLayer::new(MemoryStore::new());
        assert_eq!(attempts(layer, &[nothing, nothing, End::Answer, End::Answer]).await, [1, 1, 1]);
    }
}

#[tokio::test]
async fn a_rerun_that_did_nothing_does_not_hide_the_run_that_was_cut_short() {
    for nothing in [End::Unavailable, End::Marked] {
        let layer = IdempotencyLayer::new(MemoryStore::new());
        let seen = attempts(layer, &[End::Fail, nothing, nothing, End::Answer, End::Answer]).await;
        assert_eq!(seen, [1, 2, 3, 4], "each one that follows has to look before it charges");
    }
}

#[tokio::test]
async fn the_callback_is_asked_again_after_a_rerun_that_did_nothing() {
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    let ask = OnAbandoned::ask(move |_| {
        *counted.lock().unwrap() += 1;
        std::future::ready(Verdict::Rerun)
    });
    let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(ask);
    assert_eq!(attempts(layer, &[End::Fail, End::Unavailable, End::Answer]).await, [1, 2, 3]);
    assert_eq!(*asked.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_takeover_whose_answer_gets_lost_does_not_hide_the_run_that_was_cut_short() {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    assert_eq!(attempts(layer.clone(), &[End::Fail]).await, [1]);

    // The first claim finds the abandoned record; the second one takes it over, but nobody gets to know.
    store.fail_next(Operation::Claim, Fault::DelayBefore(Duration::ZERO));
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    assert!(attempts(layer.clone(), &[End::Answer]).await.is_empty(), "refused");
    let id = RecordId::new(Scope::new(""), IdempotencyKey::new("k").unwrap());
    let record = || store.inner().lookup(&id).now_or_never().expect("memory does not wait").unwrap();
    eventually(|| !matches!(record(), Some(Record { state: State::InFlight { .. }, .. }))).await;

    assert_eq!(attempts(layer, &[End::Answer]).await, [3], "the one that ran, the one that was lost, this one");
}
