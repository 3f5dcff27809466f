//! The guard on plain hyper, without a framework: `POST /orders` places an order once, however often it is sent.
//!
//! ```sh
//! cargo run --example hyper
//! ```
//!
//! The only option is `--listen ADDR`.

use std::{
    convert::Infallible,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{Layer, service_fn};
use tower_idempotency::{Attempt, Body, IdempotencyLayer, MemoryStore};

/// An order service on plain hyper, in which an order can be sent again without being placed twice.
#[derive(Debug, Parser)]
struct Options {
    /// Where to listen; port 0 takes a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    listen: String,
}

/// How long open requests may take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let listener = TcpListener::bind(&options.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; send this twice:");
    println!("  curl -i http://{address}/orders -H 'Idempotency-Key: order-1' -d '3 umbrellas'");

    // One layer for the whole server. A layer made for each connection would have to share the store, and could not
    // drain the others.
    let layer = IdempotencyLayer::new(MemoryStore::new()).require_key();
    let orders = Arc::new(AtomicU64::new(0));
    let service = layer.layer(service_fn(move |request| place(Arc::clone(&orders), request)));

    let server = auto::Builder::new(TokioExecutor::new());
    let connections = GracefulShutdown::new();
    let mut ctrl_c = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Such as too many open files: it passes when connections end.
                    eprintln!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            signal = &mut ctrl_c => {
                signal?;
                break;
            }
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("a connection broke off: {error}");
            }
        });
    }

    drop(listener);
    println!("stopping");
    // First the requests whose clients still wait, then those whose clients went away.
    if tokio::time::timeout(GRACE, connections.shutdown()).await.is_err() {
        eprintln!("some connections were still open after {} s", GRACE.as_secs());
    }
    match layer.drain(GRACE).await {
        0 => Ok(()),
        left => Err(format!("{left} guarded requests were cut off").into()),
    }
}

/// Places an order. The body type is the one of the layer around hyper's own.
async fn place(orders: Arc<AtomicU64>, request: Request<Body<Incoming>>) -> Result<Response<Full<Bytes>>, Infallible> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/orders") => {}
        (_, "/orders") => return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, "only POST\n")),
        _ => return Ok(answer(StatusCode::NOT_FOUND, "nothing here\n")),
    }
    let attempt = request.extensions().get::<Attempt>().map_or(1, Attempt::number);
    let Ok(body) = request.into_body().collect().await else {
        return Ok(answer(StatusCode::BAD_REQUEST, "the body broke off\n"));
    };
    let wanted = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let number = orders.fetch_add(1, Ordering::Relaxed) + 1;
    println!("order {number}, attempt {attempt}");
    let mut response = answer(StatusCode::CREATED, format!("order {number}: {wanted}\n"));
    let location = format!("/orders/{number}").parse().expect("digits are valid in a header");
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

fn answer(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}
