//! What the layer allocates: nothing where it guards nothing, and a known number where it does.

use std::{
    alloc::System,
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{Empty, Full};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service};
use tower_idempotency::{IdempotencyLayer, MemoryStore};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and reallocations of a guarded request: most that one may need whose small body comes in one piece, its
/// record in the memory store included.
const MOST_OF_A_FIRST_REQUEST: usize = 13;
/// The same for a replay.
const MOST_OF_A_REPLAY: usize = 8;

/// Answers at once, without an allocation.
#[derive(Debug, Clone)]
struct Bare;

impl<B> Service<Request<B>> for Bare {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::from("answer"))))
    }
}

fn request(method: Method, key: Option<String>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::from("body"));
    *request.method_mut() = method;
    if let Some(key) = key {
        request.headers_mut().insert("idempotency-key", HeaderValue::try_from(key).unwrap());
    }
    request
}

/// Counts the allocations of calling a service and polling its response, for requests that are made before.
///
/// The test harness may allocate at the same time, in another thread; the least of some rounds is free of that.
fn allocations<S, B>(service: &mut S, mut requests: impl FnMut(usize) -> Vec<Request<B>>) -> usize
where
    S: Service<Request<B>>,
{
    let mut least = usize::MAX;
    for round in 0..5 {
        let requests = requests(round);
        let mut responses = Vec::with_capacity(requests.len());
        let region = Region::new(ALLOCATOR);
        for request in requests {
            assert!(service.poll_ready(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
            responses.push(service.call(request).now_or_never().expect("nothing here has to wait"));
        }
        let change = region.change();
        least = least.min(change.allocations + change.reallocations);
    }
    least
}

/// One test, because two would count each other's allocations.
#[test]
fn only_a_guarded_request_allocates_and_not_more_than_is_documented() {
    const MANY: usize = 1000;
    let many = |method: Method, key: Option<&str>| {
        let key = key.map(str::to_owned);
        move |_| (0..MANY).map(|_| request(method.clone(), key.clone())).collect()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut layered = IdempotencyLayer::new(MemoryStore::new()).layer(Bare);

    for (method, key) in
        [(Method::GET, None), (Method::GET, Some("k")), (Method::DELETE, Some("\"")), (Method::POST, None)]
    {
        let bare = allocations(&mut Bare, many(method.clone(), key));
        let passed = allocations(&mut layered, many(method.clone(), key));
        assert_eq!(passed, bare, "{method} with the key {key:?} passes through");
    }
    let without_body = |_| (0..MANY).map(|_| Request::new(Empty::<Bytes>::new())).collect();
    assert_eq!(allocations(&mut layered, without_body), allocations(&mut Bare, without_body));

    // The very first guarded request starts the renewal of leases.
    runtime.block_on(async { layered.call(request(Method::POST, Some("k".to_owned()))).await }).unwrap();
    let _inside = runtime.enter();
    let first = |round| (0..MANY).map(|nr| request(Method::POST, Some(format!("k-{round}-{nr}")))).collect();
    let bare = allocations(&mut Bare, first);
    let first = (allocations(&mut layered, first) - bare) as f64 / MANY as f64;
    let replay = |_| (0..MANY).map(|_| request(Method::POST, Some("k-0-0".to_owned()))).collect();
    let replay = (allocations(&mut layered, replay) - bare) as f64 / MANY as f64;
    println!("allocations of a guarded request: {first} at first, {replay} of a replay");
    assert!(first > 0.0 && first <= MOST_OF_A_FIRST_REQUEST as f64, "{first}");
    assert!(replay > 0.0 && replay <= MOST_OF_A_REPLAY as f64, "{replay}");
}
