//! A callback that decides what becomes of a run that was cut short.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{Router, routing::post};
use futures_util::future::join_all;
use http::{Response, StatusCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{Attempt, IdempotencyLayer, MemoryStore, OnAbandoned, Scope, Verdict};

use crate::support::{Charges, Http, Runs, Server, VERSIONS, serve};

/// What a test saw: the runs of the handler, and what the callback was told.
#[derive(Clone, Default)]
struct Seen {
    runs: Runs,
    asked: Arc<Mutex<Vec<String>>>,
}

/// Serves a handler whose first run panics, behind a layer whose callback gives these verdicts and then panics.
/// The first run is over.
async fn serve_cut_short(http: &Http, verdicts: impl IntoIterator<Item = Verdict>) -> (Server, Seen) {
    let seen = Seen::default();
    let (asked, runs) = (Arc::clone(&seen.asked), seen.runs.clone());
    let verdicts = Mutex::new(verdicts.into_iter().collect::<VecDeque<_>>());
    let policy = OnAbandoned::ask(move |abandoned| {
        let (scope, key) = (abandoned.scope().as_str(), abandoned.key().as_str());
        asked.lock().unwrap().push(format!("{scope} {key} {}", abandoned.next_attempt()));
        let verdict = verdicts.lock().unwrap().pop_front();
        async { verdict.expect("no verdict is left") }
    });
    let handler = post(async move |attempt: Attempt| {
        let run = runs.count();
        assert!(run > 1, "the first run is cut short");
        format!("run {run}, attempt {}", attempt.number())
    });
    let layer = IdempotencyLayer::new(MemoryStore::new()).scope(|_| Some(Scope::new("acme"))).on_abandoned(policy);
    let server = serve(Router::new().route("/pay", handler).layer(layer).layer(CatchPanicLayer::new())).await;
    assert_eq!(http.pay(&server, "k").await.status, StatusCode::INTERNAL_SERVER_ERROR);
    (server, seen)
}

impl Seen {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_to_rerun_runs_the_handler_as_the_next_attempt() {
    for version in VERSIONS {
        let http = Http::new(version);
        let (server, seen) = serve_cut_short(&http, [Verdict::Rerun]).await;

        assert_eq!(http.pay(&server, "k").await.body, "run 2, attempt 2");

        assert!(http.pay(&server, "k").await.is_replay());
        assert_eq!((seen.runs.total(), seen.asked()), (2, vec!["acme k 2".to_owned()]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_to_refuse_is_asked_for_again_at_the_next_retry() {
    for version in VERSIONS {
        let http = Http::new(version);
        let (server, seen) = serve_cut_short(&http, [Verdict::Refuse, Verdict::Refuse, Verdict::Rerun]).await;

        for _ in 0..2 {
            let refused = http.pay(&server, "k").await;
            assert_eq!((refused.status, refused.problem().as_str()), (StatusCode::CONFLICT, "outcome-unknown"));
            assert!(!refused.headers.contains_key("retry-after"));
        }
        assert_eq!(http.pay(&server, "k").await.body, "run 2, attempt 4");
        assert_eq!(seen.asked(), ["acme k 2", "acme k 3", "acme k 4"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_callback_is_given_stored_and_replayed() {
    for version in VERSIONS {
        let http = Http::new(version);
        let answer = Response::builder().status(201).header("location", "/charges/7").body("it was done".into());
        let (server, seen) = serve_cut_short(&http, [Verdict::Answer(answer.unwrap())]).await;

        let first = http.pay(&server, "k").await;
        let retry = http.pay(&server, "k").await;

        assert!(!first.is_replay() && retry.is_replay());
        for answer in [first, retry] {
            assert_eq!((answer.status, &answer.body[..]), (StatusCode::CREATED, &b"it was done"[..]));
            assert_eq!(answer.headers["location"], "/charges/7");
        }
        assert_eq!((seen.runs.total(), seen.asked().len()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_panics_leaves_the_key_to_be_asked_about_again() {
    for version in VERSIONS {
        let http = Http::new(version);
        let (server, seen) = serve_cut_short(&http, []).await;

        for _ in 0..2 {
            assert_eq!(http.pay(&server, "k").await.status, StatusCode::INTERNAL_SERVER_ERROR);
        }
        assert_eq!((seen.runs.total(), seen.asked()), (1, vec!["acme k 2".to_owned(), "acme k 3".to_owned()]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_callbacks_for_one_key_never_run_at_a_time() {
    for version in VERSIONS {
        let (callbacks, runs, http) = (Charges::held(), Runs::default(), Http::new(version));
        let (called, counted) = (callbacks.clone(), runs.clone());
        let policy = OnAbandoned::ask(move |_| {
            let called = called.clone();
            async move {
                called.charge().await;
                Verdict::Rerun
            }
        });
        let handler = post(async move || {
            let run = counted.count();
            assert!(run > 1, "the first run is cut short");
            format!("run {run}")
        });
        let layer = IdempotencyLayer::new(MemoryStore::new()).on_abandoned(policy);
        let server = serve(Router::new().route("/pay", handler).layer(layer).layer(CatchPanicLayer::new())).await;
        http.pay(&server, "k").await;

        let others = async {
            callbacks.runs.reach(1).await;
            let others = join_all((0..20).map(|_| http.pay(&server, "k"))).await;
            callbacks.let_go(1);
            others
        };
        let (asked, others) = tokio::join!(http.pay(&server, "k"), others);

        assert_eq!(asked.body, "run 2");
        assert!(others.iter().all(|other| other.problem() == "in-flight"));
        assert_eq!((callbacks.runs.total(), runs.total()), (1, 2));
    }
}
