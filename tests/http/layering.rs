//! The layer among other layers: shared, nested, rewritten, compressed.

use std::{convert::Infallible, io::Read, sync::Arc};

use axum::{
    Router,
    extract::Request,
    middleware::map_request,
    routing::{get, post},
};
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceBuilder, service_fn};
use tower_http::{compression::CompressionLayer, limit::RequestBodyLimitLayer};
use tower_idempotency::{Attempt, Body, IdempotencyLayer, MemoryStore, Store};

use crate::support::{Answer, Http, PATIENCE, Runs, VERSIONS, keyed, serve};

/// Routes `path` to a handler that tells the number of its run.
fn route(path: &str, name: &'static str, runs: &Runs) -> Router {
    let runs = runs.clone();
    Router::new().route(path, post(async move || (StatusCode::CREATED, format!("{name} {}", runs.count()))))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_routers_and_a_clone_of_the_layer_share_its_records() {
    for version in VERSIONS {
        let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
        let one = serve(route("/pay", "one", &runs).layer(layer.clone())).await;
        let two = serve(route("/pay", "two", &runs).layer(layer)).await;
        let http = Http::new(version);
        assert_eq!(http.post(&one, "/pay", "k", "").await.body, "one 1");
        let through_the_other = http.post(&two, "/pay", "k", "").await;
        assert!(through_the_other.is_replay());
        assert_eq!((&through_the_other.body[..], runs.total()), (&b"one 1"[..], 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_routes_never_get_each_others_answer() {
    for version in VERSIONS {
        let runs = Runs::default();
        let layer = IdempotencyLayer::new(MemoryStore::new());
        let nest = |eu: Router, us: Router| Router::new().nest("/eu", eu).nest("/us", us);
        let routes = || [route("/pay", "eu", &runs), route("/pay", "us", &runs)];
        let [eu, us] = routes();
        let inside = nest(eu.layer(layer.clone()), us.layer(layer.clone()));
        let [eu, us] = routes();
        let outside = nest(eu, us).layer(layer.clone());
        let [eu, us] = routes();
        let around = layer.layer(nest(eu, us));
        let http = Http::new(version);
        let mut total = 0;
        for (key, server) in [("a", serve(inside).await), ("b", serve(outside).await), ("c", serve(around).await)] {
            let eu = http.post(&server, "/eu/pay", key, "").await;
            let us = http.post(&server, "/us/pay", key, "").await;
            let retry = http.post(&server, "/eu/pay", key, "").await;
            total += 1;
            assert_eq!((&eu.body[..], us.problem().as_str()), (format!("eu {total}").as_bytes(), "key-reused"));
            assert!(retry.is_replay() && retry.body == eu.body, "{key}");
        }
        assert_eq!(runs.total(), total);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inner_layer_may_rewrite_uri_headers_and_body_and_strip_the_key() {
    for version in VERSIONS {
        let runs = Runs::default();
        let rewrite = |request: Request| async move {
            let (mut head, _) = request.into_parts();
            head.uri = "/rewritten?by=layer".parse().unwrap();
            head.headers.clear();
            head.extensions.remove::<Attempt>();
            Request::from_parts(head, axum::body::Body::from("rewritten"))
        };
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let app = route("/pay", "run", &runs).layer(map_request(rewrite)).layer(layer.clone());
        let server = serve(app).await;
        let http = Http::new(version);
        let first = http.post(&server, "/pay", "k", "{}").await;
        assert_eq!((first.status, first.is_replay()), (StatusCode::CREATED, false));
        assert!(http.post(&server, "/pay", "k", "{}").await.is_replay());
        assert_eq!(http.post(&server, "/pay", "k", "[]").await.problem(), "key-reused");
        assert_eq!((runs.total(), store.len()), (1, 1));
    }
}

/// What a client that understands gzip reads.
fn decoded(answer: &Answer) -> Vec<u8> {
    let codings: Vec<_> = answer.headers.get_all("content-encoding").iter().collect();
    match codings[..] {
        [] => answer.body.to_vec(),
        [coding] => {
            assert_eq!(coding, "gzip");
            let mut body = Vec::new();
            flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut body).unwrap();
            body
        }
        _ => panic!("coded twice: {answer:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_outside_or_inside_codes_once() {
    for version in VERSIONS {
        let layer = || IdempotencyLayer::new(MemoryStore::new());
        let text = "a body that is worth it ".repeat(100);
        let body = text.clone();
        let router = Router::new().route("/pay", post(async move || body));
        let outside = router.clone().layer(layer()).layer(CompressionLayer::new());
        let inside = router.layer(CompressionLayer::new()).layer(layer());
        let http = Http::new(version);
        for (server, is_outside) in [(serve(outside).await, true), (serve(inside).await, false)] {
            for (key, codings) in [("a", ["gzip", "identity"]), ("b", ["identity", "gzip"]), ("c", ["gzip", "gzip"])] {
                for (nr, coding) in codings.into_iter().enumerate() {
                    let request = keyed(&server, "/pay", key).header("accept-encoding", coding);
                    let answer = http.send(request.body(Full::default()).unwrap()).await.unwrap();
                    assert_eq!(answer.is_replay(), nr == 1);
                    assert_eq!(decoded(&answer), text.as_bytes());
                    let coded = answer.headers.contains_key("content-encoding");
                    let expected = if is_outside { coding } else { codings[0] };
                    assert_eq!(coded, expected == "gzip", "outside: {is_outside}, {codings:?}, answer {nr}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_outer_layer_refuses_is_not_recorded() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
        let authenticate = axum::middleware::from_fn(async |request: Request, next: axum::middleware::Next| {
            if request.headers().contains_key("authorization") {
                next.run(request).await
            } else {
                axum::response::IntoResponse::into_response(StatusCode::UNAUTHORIZED)
            }
        });
        let app =
            route("/pay", "run", &runs).layer(layer.clone()).layer(RequestBodyLimitLayer::new(4)).layer(authenticate);
        let server = serve(app).await;
        let http = Http::new(version);
        assert_eq!(http.post(&server, "/pay", "k", "{}").await.status, StatusCode::UNAUTHORIZED);
        let send = |body: &'static str| {
            http.send(keyed(&server, "/pay", "k").header("authorization", "a").body(Full::from(body)).unwrap())
        };
        assert_eq!(send("too long").await.unwrap().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!((runs.total(), store.len()), (0, 0));
        assert_eq!(send("{}").await.unwrap().body, "run 1");
        assert_eq!(http.post(&server, "/pay", "k", "{}").await.status, StatusCode::UNAUTHORIZED, "not the answer");
        assert!(send("{}").await.unwrap().is_replay());
    }
}

async fn echo<B>(_: http::Request<Body<B>>) -> Result<Response<Full<Bytes>>, Infallible>
where
    B: http_body::Body<Data = Bytes>,
{
    Ok(Response::new(Full::from("no framework")))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_framework_is_needed_and_a_store_may_be_a_trait_object() {
    let memory = Arc::new(MemoryStore::new());
    let shared: Arc<dyn Store> = Arc::<MemoryStore>::clone(&memory);
    let boxed: Box<dyn Store> = Box::new(Arc::<MemoryStore>::clone(&memory));
    let direct = ServiceBuilder::new().layer(IdempotencyLayer::new(memory)).service(service_fn(echo));
    let servers = [
        serve(direct).await,
        serve(IdempotencyLayer::new(shared).layer(service_fn(echo))).await,
        serve(IdempotencyLayer::new(boxed).layer(service_fn(echo))).await,
    ];
    for version in VERSIONS {
        for (nr, server) in servers.iter().enumerate() {
            let key = format!("{version:?}");
            let answer = Http::new(version).post(server, "/", &key, "").await;
            assert_eq!((&answer.body[..], answer.is_replay()), (&b"no framework"[..], nr > 0), "one store behind all");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_twice_in_one_stack_runs_the_handler_once() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)).wait(PATIENCE), Runs::default());
        let nested = Router::new().nest("/v1", route("/pay", "run", &runs).layer(layer.clone()));
        let server = serve(nested.layer(layer.clone())).await;
        let http = Http::new(version);
        let first = http.post(&server, "/v1/pay", "k", "{}").await;
        assert_eq!((&first.body[..], first.is_replay()), (&b"run 1"[..], false));
        assert!(http.post(&server, "/v1/pay", "k", "{}").await.is_replay());
        assert_eq!((runs.total(), store.len()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_inner_layer_of_ours_refuses_is_not_recorded_by_an_outer_one() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let outer = IdempotencyLayer::new(Arc::clone(&store));
        let inner = IdempotencyLayer::new(MemoryStore::new());
        let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let (counted, opened) = (runs.clone(), Arc::clone(&gate));
        let handler = post(async move || {
            counted.count();
            opened.acquire().await.unwrap().forget();
        });
        let app = Router::new().route("/pay", handler).layer(inner);
        let (one, two) = (serve(app.clone()).await, serve(app.layer(outer)).await);
        let http = Http::new(version);
        let through_both = async {
            runs.reach(1).await;
            let refused = http.post(&two, "/pay", "k", "").await;
            gate.add_permits(1);
            refused
        };
        let (first, refused) = tokio::join!(http.post(&one, "/pay", "k", ""), through_both);
        assert_eq!((first.status, refused.problem().as_str()), (StatusCode::OK, "in-flight"));
        assert_eq!(store.len(), 0, "a refusal is not the answer of the key");
        assert_eq!(http.post(&two, "/pay", "k", "").await.status, StatusCode::OK);
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_answered_by_a_get_route_is_replayed_without_a_body() {
    for version in VERSIONS {
        let layer = IdempotencyLayer::new(MemoryStore::new()).methods([Method::HEAD, Method::GET]);
        let server = serve(Router::new().route("/", get(async || "seven b")).layer(layer)).await;
        let http = Http::new(version);
        for replay in [false, true] {
            let request = keyed(&server, "/", "k").method(Method::HEAD).body(Full::default()).unwrap();
            let answer = http.send(request).await.unwrap();
            assert_eq!((answer.is_replay(), &answer.body[..]), (replay, &b""[..]));
            assert_eq!(answer.headers["content-length"], "7");
        }
    }
}
