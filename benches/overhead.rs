//! What a request costs in the layer, side by side with the bare service: `cargo bench --bench overhead`.
//!
//! The service answers at once with a body as long as the request's, without a socket, so that only the layer is
//! measured. The store is a `MemoryStore`.

use std::{
    convert::Infallible,
    future::Ready,
    hint::black_box,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::{runtime::Runtime, time::timeout};
use tower::{Layer, Service, service_fn};
use tower_idempotency::{IdempotencyLayer, MemoryStore};

const SIZES: [usize; 3] = [0, 1024, 64 * 1024];

/// The most requests that one store gets.
const MOST: u64 = 10_000;

fn overhead(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for size in SIZES {
        let body = Bytes::from(vec![b'x'; size]);
        let mut group = criterion.benchmark_group(format!("body of {size} bytes"));
        group.throughput(Throughput::Elements(1));
        let mut measure = |name: &str, method: Method, key: fn() -> String, status: u16, before: Before| {
            let id = BenchmarkId::from_parameter(name);
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|requests| {
                    // A new store after some requests, since one that grows for ever gets full.
                    let parts = (0..requests).step_by(MOST as usize).map(|done| MOST.min(requests - done));
                    parts.map(|part| time(&runtime, &method, key, status, before, &body, part)).sum()
                });
            });
        };
        measure("bare service", Method::POST, new_key, 201, Before::Bare);
        measure("bypass", Method::GET, new_key, 201, Before::Nothing);
        measure("first request", Method::POST, new_key, 201, Before::Nothing);
        measure("replay", Method::POST, same_key, 201, Before::Answered);
        measure("conflict", Method::POST, same_key, 409, Before::InFlight);
        group.finish();
    }
}

/// Answers every request at once.
#[derive(Clone)]
struct Answering {
    body: Bytes,
}

impl<B> Service<Request<B>> for Answering {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let mut response = Response::new(Full::from(self.body.clone()));
        *response.status_mut() = StatusCode::CREATED;
        std::future::ready(Ok(response))
    }
}

/// What there is before the requests come.
#[derive(Clone, Copy)]
enum Before {
    /// Not even the layer.
    Bare,
    Nothing,
    Answered,
    InFlight,
}

fn time(
    runtime: &Runtime,
    method: &Method,
    key: fn() -> String,
    status: u16,
    before: Before,
    body: &Bytes,
    requests: u64,
) -> Duration {
    runtime.block_on(async {
        let service = Answering { body: body.clone() };
        let request = || {
            let request = Request::builder().method(method.clone()).uri("/v1/charges").header("idempotency-key", key());
            request.header("content-type", "application/json").body(Full::from(body.clone())).unwrap()
        };
        match before {
            Before::Bare => {
                let mut bare = service;
                run(requests, status, request, async |request| bare.call(request).await.unwrap()).await
            }
            Before::Nothing | Before::Answered => {
                let mut guarded = IdempotencyLayer::new(MemoryStore::new()).layer(service);
                if let Before::Answered = before {
                    guarded.call(request()).await.unwrap();
                }
                run(requests, status, request, async |request| guarded.call(request).await.unwrap()).await
            }
            Before::InFlight => {
                let never = |_| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>();
                let mut guarded = IdempotencyLayer::new(MemoryStore::new()).layer(service_fn(never));
                let mut first = pin!(guarded.call(request()));
                assert!(timeout(Duration::from_millis(1), &mut first).await.is_err());
                run(requests, status, request, async |request| guarded.call(request).await.unwrap()).await
            }
        }
    })
}

async fn run<B>(
    requests: u64,
    status: u16,
    request: impl Fn() -> Request<Full<Bytes>>,
    mut call: impl AsyncFnMut(Request<Full<Bytes>>) -> Response<B>,
) -> Duration {
    let mut elapsed = Duration::ZERO;
    for _ in 0..requests {
        let request = request();
        let start = Instant::now();
        let response = black_box(call(request).await);
        elapsed += start.elapsed();
        assert_eq!(response.status(), status);
    }
    elapsed
}

fn new_key() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:036}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn same_key() -> String {
    "the-same-key".to_owned()
}

criterion_group!(benches, overhead);
criterion_main!(benches);
