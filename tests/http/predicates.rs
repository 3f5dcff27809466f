//! Functions of the application that fail while the layer calls them.

use axum::{Router, routing::post};
use http::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;
use tower_idempotency::{Attempt, IdempotencyLayer, MemoryStore};

use crate::support::{Http, Runs, VERSIONS, serve};

#[tokio::test(flavor = "multi_thread")]
async fn a_predicate_that_panics_after_the_run_leaves_the_key_abandoned_at_once() {
    for version in VERSIONS {
        let (runs, asked) = (Runs::default(), Runs::default());
        let counted = runs.clone();
        let handler =
            post(async move |attempt: Attempt| format!("run {}, attempt {}", counted.count(), attempt.number()));
        let layer = IdempotencyLayer::new(MemoryStore::new()).store_when(move |_| {
            assert!(asked.count() > 1, "no opinion");
            true
        });
        let server = serve(Router::new().route("/pay", handler).layer(layer).layer(CatchPanicLayer::new())).await;
        let http = Http::new(version);

        assert_eq!(http.post(&server, "/pay", "k", "{}").await.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(http.post(&server, "/pay", "k", "{}").await.body, "run 2, attempt 2");
        assert!(http.post(&server, "/pay", "k", "{}").await.is_replay());
        assert_eq!(runs.total(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_function_that_panics_runs_nothing_and_leaves_the_key_free() {
    for version in VERSIONS {
        let (runs, asked) = (Runs::default(), Runs::default());
        let counted = runs.clone();
        let handler = post(async move || format!("run {}", counted.count()));
        let layer = IdempotencyLayer::new(MemoryStore::new()).scope(move |_| {
            assert!(asked.count() > 1, "no opinion");
            Some("somebody".into())
        });
        let server = serve(Router::new().route("/pay", handler).layer(layer).layer(CatchPanicLayer::new())).await;
        let http = Http::new(version);

        assert_eq!(http.post(&server, "/pay", "k", "{}").await.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(http.post(&server, "/pay", "k", "{}").await.body, "run 1");
        assert_eq!(runs.total(), 1);
    }
}
