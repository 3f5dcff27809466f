//! Whose key it is: tenants, strangers, unknown callers.

use std::sync::Arc;

use axum::{Router, routing::post};
use futures_util::future::join_all;
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use tokio::sync::Barrier;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Scope};

use crate::support::{Answer, Http, Runs, Server, VERSIONS, keyed, serve};

/// A server whose handler tells tenant and run; `Authorization` names the tenant where there is a scope.
async fn tenants(scoped: bool, runs: &Runs) -> (Arc<MemoryStore>, Server) {
    let store = Arc::new(MemoryStore::new());
    let mut layer = IdempotencyLayer::new(Arc::clone(&store));
    if scoped {
        let tenant = |value: &HeaderValue| Scope::new(value.to_str().unwrap());
        layer = layer.scope(move |head| head.headers.get("authorization").map(tenant));
    }
    let runs = runs.clone();
    let app = Router::new().route("/pay", post(async move || format!("run {}", runs.count())));
    (store, serve(app.layer(layer)).await)
}

async fn post_as(http: &Http, server: &Server, tenant: Option<&str>) -> Answer {
    let request = keyed(server, "/pay", "k");
    let request = if let Some(tenant) = tenant { request.header("authorization", tenant) } else { request };
    http.send(request.body(Full::default()).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_with_one_key_each_run_and_get_their_own_answer() {
    for version in VERSIONS {
        let runs = Runs::default();
        let (_, server) = tenants(true, &runs).await;
        let http = Http::new(version);
        for (tenant, body, replay) in
            [("a", "run 1", false), ("b", "run 2", false), ("a", "run 1", true), ("b", "run 2", true)]
        {
            let answer = post_as(&http, &server, Some(tenant)).await;
            assert_eq!((&answer.body[..], answer.is_replay()), (body.as_bytes(), replay));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_scope_another_caller_gets_a_mismatch_and_never_the_answer() {
    for version in VERSIONS {
        let runs = Runs::default();
        let (_, server) = tenants(false, &runs).await;
        let http = Http::new(version);
        assert_eq!(post_as(&http, &server, Some("a")).await.body, "run 1");
        for stranger in [Some("b"), Some("A"), Some(""), None] {
            assert_eq!(post_as(&http, &server, stranger).await.problem(), "key-reused");
        }
        assert!(post_as(&http, &server, Some("a")).await.is_replay());
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_caller_is_refused_and_runs_nothing() {
    for version in VERSIONS {
        let runs = Runs::default();
        let (store, server) = tenants(true, &runs).await;
        for nobody in [None, Some("")] {
            let answer = post_as(&Http::new(version), &server, nobody).await;
            assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::UNAUTHORIZED, "unknown-caller"));
        }
        assert_eq!((runs.total(), store.len()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_wait_for_each_other() {
    for version in VERSIONS {
        // No handler goes on before all are there.
        let barrier = Arc::new(Barrier::new(100));
        let handler = post(async move || {
            barrier.wait().await;
        });
        let server = serve(Router::new().route("/pay", handler).layer(IdempotencyLayer::new(MemoryStore::new()))).await;
        let http = Http::new(version);
        let requests = (0..100).map(|nr| {
            let (http, server) = (&http, &server);
            async move { http.post(server, "/pay", &format!("k{nr}"), "").await }
        });
        assert!(join_all(requests).await.iter().all(|answer| answer.status == StatusCode::OK));
    }
}
