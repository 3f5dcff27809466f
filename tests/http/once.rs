//! Never two runs for one key.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use futures_util::future::join_all;
use http::StatusCode;
use tokio::sync::{Barrier, Semaphore};
use tower_idempotency::{IdempotencyLayer, MemoryStore};

use crate::support::{Http, Runs, VERSIONS, serve};

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_first_answer_and_does_not_run() {
    for version in VERSIONS {
        let runs = Runs::default();
        let counted = runs.clone();
        let app = Router::new()
            .route("/pay", post(async move || (StatusCode::CREATED, format!("charge {}", counted.count()))))
            .layer(IdempotencyLayer::new(MemoryStore::new()));
        let server = serve(app).await;
        let http = Http::new(version);

        let first = http.post(&server, "/pay", "k", "{}").await;
        let retry = http.post(&server, "/pay", "k", "{}").await;

        assert_eq!(first.status, StatusCode::CREATED);
        assert!(!first.is_replay());
        assert!(retry.is_replay());
        assert_eq!((retry.status, &retry.body), (first.status, &first.body));
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_requests_at_once_one_runs_and_the_others_get_409_or_its_answer() {
    for version in VERSIONS {
        let runs = Runs::default();
        let counted = runs.clone();
        let app = Router::new()
            .route("/pay", post(async move || format!("charge {}", counted.count())))
            .layer(IdempotencyLayer::new(MemoryStore::new()));
        let server = serve(app).await;
        let http = Http::new(version);

        for round in 1..=250 {
            let barrier = Arc::new(Barrier::new(64));
            let key = format!("k-{round}");
            let answers = join_all((0..64).map(|_| {
                let (http, barrier, server, key) = (http.clone(), Arc::clone(&barrier), &server, &key);
                async move {
                    barrier.wait().await;
                    http.post(server, "/pay", key, "{}").await
                }
            }))
            .await;

            assert_eq!(runs.total(), round);
            let (ok, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == StatusCode::OK);
            assert_eq!(ok.iter().filter(|answer| !answer.is_replay()).count(), 1);
            assert!(ok.iter().all(|answer| answer.body == format!("charge {round}")));
            assert!(refused.iter().all(|answer| answer.problem() == "in-flight"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_while_the_first_request_runs_gets_409_with_retry_after() {
    for version in VERSIONS {
        let runs = Runs::default();
        let counted = runs.clone();
        let gate = Arc::new(Semaphore::new(0));
        let opened = Arc::clone(&gate);
        let handler = post(async move || {
            counted.count();
            let _permit = opened.acquire().await.unwrap();
            StatusCode::CREATED
        });
        let layer = IdempotencyLayer::new(MemoryStore::new()).lease(Duration::from_secs(60));
        let server = serve(Router::new().route("/pay", handler).layer(layer)).await;
        let http = Http::new(version);

        let first = http.post(&server, "/pay", "k", "{}");
        let others = async {
            runs.reach(1).await;
            let refused = http.post(&server, "/pay", "k", "{}").await;
            let mismatch = http.post(&server, "/pay", "k", "other").await;
            gate.add_permits(1);
            (refused, mismatch)
        };
        let (first, (refused, mismatch)) = tokio::join!(first, others);

        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert_eq!(refused.problem(), "in-flight");
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(mismatch.status, StatusCode::BAD_REQUEST);
        assert_eq!(mismatch.problem(), "key-reused");
        assert_eq!(first.status, StatusCode::CREATED);
        assert!(http.post(&server, "/pay", "k", "{}").await.is_replay());
        assert_eq!(runs.total(), 1);
    }
}
