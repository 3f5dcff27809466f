//! A server on a free port, clients that talk to it, and handlers that count their runs.

mod charges;
mod ledger;
mod watched;

pub(crate) use charges::{Charges, Visits, pay, record};
pub(crate) use ledger::{Ledger, Pen, Trouble};
pub(crate) use watched::{Call, Gate, Watched};

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, request, response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_idempotency::{Attempt, Body, IdempotencyLayer, Store};

/// Far more than anything here takes, so that only a hang runs into it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a free port of the loopback interface; gone when dropped.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub(crate) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }
}

/// Serves an axum router (or any Tower service for hyper's bodies) over HTTP/1.1 and HTTP/2.
pub(crate) async fn serve<S, B>(service: S) -> Server
where
    S: Service<Request<hyper::body::Incoming>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Server { addr, accepting }
}

/// Which version of HTTP a client speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Version {
    Http1,
    Http2,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

/// A client with a pool of connections.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A response, read to its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// The last part of the problem type, after checking that the answer is a well-formed problem document.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.headers["cache-control"], "no-store", "{self:?}");
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], self.status.as_u16(), "{self:?}");
        assert!(!self.is_replay(), "{self:?}");
        document["type"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
    }
}

impl Http {
    pub(crate) fn new(version: Version) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = builder.http2_only(matches!(version, Version::Http2)).build(connector);
        Self { client }
    }

    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, hyper_util::client::legacy::Error> {
        let (head, body) = self.try_open(request).await?.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").expect("a whole body");
        let trailers = body.trailers().cloned();
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes(), trailers })
    }

    /// Sends a request and returns as soon as the head of the answer is there.
    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.try_open(request).await.unwrap()
    }

    pub(crate) async fn try_open(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        tokio::time::timeout(PATIENCE, self.client.request(request)).await.expect("an answer in time")
    }

    /// POSTs to `/pay` under a key.
    pub(crate) async fn pay(&self, server: &Server, key: &str) -> Answer {
        self.post(server, "/pay", key, "{}").await
    }

    /// POSTs a body under a key.
    pub(crate) async fn post(&self, server: &Server, path: &str, key: &str, body: &'static str) -> Answer {
        self.send(keyed(server, path, key).body(Full::from(body)).unwrap()).await.unwrap()
    }
}

/// Starts a POST request with a key.
pub(crate) fn keyed(server: &Server, path: &str, key: &str) -> request::Builder {
    Request::builder().method(Method::POST).uri(server.uri(path)).header("idempotency-key", key)
}

/// Counts the runs of a handler.
#[derive(Debug, Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Counts one run and returns its number, from 1.
    pub(crate) fn count(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn total(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until there were this many runs.
    pub(crate) async fn reach(&self, runs: usize) {
        eventually(|| self.total() >= runs).await;
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < PATIENCE, "the condition at {caller} does not come true");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A response body of any shape.
pub(crate) type Reply = UnsyncBoxBody<Bytes, Infallible>;

/// What a handler of [`guard`] sees.
pub(crate) struct Seen {
    /// The number of this run, from 1.
    pub(crate) run: usize,
    pub(crate) head: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Serves one handler behind a layer, without a framework, and counts its runs.
pub(crate) async fn guard<S: Store>(
    layer: &IdempotencyLayer<S>,
    runs: &Runs,
    handler: impl Fn(Seen) -> Response<Reply> + Clone + Send + 'static,
) -> Server {
    let runs = runs.clone();
    let service = service_fn(move |request: Request<Body<Incoming>>| {
        let (run, handler) = (runs.count(), handler.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?;
            let trailers = body.trailers().cloned();
            Ok::<_, hyper::Error>(handler(Seen { run, head, body: body.to_bytes(), trailers }))
        }
    });
    serve(layer.layer(service)).await
}

/// Makes a response with a body of a known length.
pub(crate) fn reply(head: response::Builder, body: impl Into<Bytes>) -> Response<Reply> {
    head.body(Full::new(body.into()).boxed_unsync()).unwrap()
}

/// Makes a response with a body of an unknown length, frame by frame.
pub(crate) fn framed(
    head: response::Builder,
    frames: impl Stream<Item = Frame<Bytes>> + Send + 'static,
) -> Response<Reply> {
    head.body(StreamBody::new(frames.map(Ok)).boxed_unsync()).unwrap()
}

/// Makes one header field.
pub(crate) fn field(name: &'static str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
}

/// POSTs to `/pay` under a key, and goes away when `moment` comes: HTTP/1.1 closes the socket, HTTP/2 resets the stream.
pub(crate) async fn go_away(version: Version, server: &Server, key: &str, moment: impl Future<Output = ()>) {
    let http = Http::new(version);
    tokio::select! {
        answer = http.pay(server, key) => panic!("answered too early: {answer:?}"),
        () = moment => {}
    }
}

/// What a handler of [`call`] gives.
pub(crate) type Outcome = Result<Response<Full<Bytes>>, &'static str>;

/// Sends a request under a key through a layer to a handler, without a socket, so that time can be paused.
pub(crate) fn call<S: Store, F>(
    layer: &IdempotencyLayer<S>,
    key: &str,
    handler: impl Fn(Request<Body<Full<Bytes>>>) -> F + Clone + Send + 'static,
) -> impl Future<Output = Result<Answer, &'static str>> + Send + 'static
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let request = Request::post("/pay").header("idempotency-key", key).body(Full::from("{}")).unwrap();
    let service = layer.layer(service_fn(handler));
    async move {
        // Paused time may pass in great steps.
        let answer = tokio::time::timeout(3 * PATIENCE, service.oneshot(request));
        let answer = answer.await.expect("an answer in time")?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes(), trailers })
    }
}

/// Sends a charge under a key through a layer, without a socket. The answer names the attempt in `x-attempt`.
pub(crate) fn charge<S: Store>(
    layer: &IdempotencyLayer<S>,
    key: &str,
    charges: &Charges,
) -> impl Future<Output = Answer> + Send + 'static {
    let charges = charges.clone();
    let answer = call(layer, key, move |request| {
        let attempt = request.extensions().get::<Attempt>().map_or(0, Attempt::number);
        let charges = charges.clone();
        async move {
            let (status, text) = charges.charge().await;
            Ok(Response::builder().status(status).header("x-attempt", attempt).body(Full::from(text)).unwrap())
        }
    });
    async move { answer.await.unwrap() }
}
