//! The guard in front of a tonic service: a charge over gRPC that can be retried, replayed with its trailers.
//!
//! ```sh
//! cargo run --example grpc
//! ```
//!
//! Server and client run in one process: the client charges, retries and breaks the rules, and the example ends by
//! itself. The key travels in the metadata entry `idempotency-key`. Messages and method are written by hand so that
//! nothing has to be generated; with generated code, [`routes`] is `Routes::new(PaymentsServer::new(..))`.

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{extract, routing::post};
use bytes::Bytes;
use http::{Response, response::Parts, uri::PathAndQuery};
use tokio::net::TcpListener;
use tonic::{
    Code, Request, Status, client, server,
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower_idempotency::{IdempotencyLayer, MemoryStore, Rejection};

/// The method `rpc Charge(ChargeRequest) returns (ChargeReply)` of the service `payments.v1.Payments`.
const CHARGE: &str = "/payments.v1.Payments/Charge";

#[derive(Clone, PartialEq, prost::Message)]
struct ChargeRequest {
    /// In the currency's minor unit, such as cents.
    #[prost(uint64, tag = "1")]
    amount: u64,
    #[prost(string, tag = "2")]
    currency: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChargeReply {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(uint64, tag = "2")]
    amount: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let layer = IdempotencyLayer::new(MemoryStore::new()).require_key().answer_with(answer).store_when(is_stored);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder().layer(layer.clone()).add_routes(routes()).serve_with_incoming_shutdown(
        TcpIncoming::from(listener),
        async {
            let _ = stopped.await;
        },
    );
    let server = tokio::spawn(server);

    call(address).await?;

    drop(stop);
    server.await??;
    match layer.drain(Duration::from_secs(10)).await {
        0 => Ok(()),
        left => Err(format!("{left} guarded requests were cut off").into()),
    }
}

/// The server's side: one method that charges.
fn routes() -> Routes {
    let method = |request: extract::Request| async {
        server::Grpc::new(ProstCodec::<ChargeReply, ChargeRequest>::new()).unary(service_fn(charge), request).await
    };
    Routes::from(axum::Router::new().route(CHARGE, post(method)))
}

async fn charge(request: Request<ChargeRequest>) -> Result<tonic::Response<ChargeReply>, Status> {
    let ChargeRequest { amount, currency } = request.into_inner();
    if amount == 0 {
        return Err(Status::invalid_argument("the amount must be above 0"));
    }
    println!("  server: charging {amount} {currency}");
    Ok(tonic::Response::new(ChargeReply { id: format!("ch_{}", uuid::Uuid::new_v4().simple()), amount }))
}

/// Turns each answer of the layer into a gRPC status without a message, which gRPC sends as HTTP 200.
fn answer(rejection: &Rejection, _: Response<Bytes>) -> Response<Bytes> {
    let code = match rejection {
        Rejection::KeyMissing | Rejection::KeyMalformed(_) | Rejection::Mismatch | Rejection::BodyIncomplete => {
            Code::InvalidArgument
        }
        Rejection::UnknownCaller => Code::Unauthenticated,
        Rejection::BodyTooLarge { .. } => Code::ResourceExhausted,
        Rejection::InFlight { .. } => Code::Aborted,
        Rejection::NotReplayable { .. } | Rejection::OutcomeUnknown => Code::FailedPrecondition,
        Rejection::StoreUnavailable { .. } | Rejection::StoreFull { .. } | Rejection::TooManyRuns { .. } => {
            Code::Unavailable
        }
        Rejection::RecordDamaged => Code::DataLoss,
        _ => Code::Unknown,
    };
    let mut status = Status::new(code, rejection.detail());
    if let Some(seconds) = rejection.retry_after() {
        // The hint that gRPC clients with a retry policy follow.
        status.metadata_mut().insert("grpc-retry-pushback-ms", seconds.saturating_mul(1000).into());
    }
    status.into_http()
}

/// Stores every answer but those that say "nothing was done, try again". gRPC's HTTP status is always 200, so that the
/// layer's own rule would store them too.
fn is_stored(head: &Parts) -> bool {
    let refusal = Status::from_header_map(&head.headers);
    !refusal.is_some_and(|status| matches!(status.code(), Code::Unavailable | Code::ResourceExhausted))
}

/// The client's side: a charge, its retry, and two mistakes.
async fn call(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut payments = client::Grpc::new(channel);

    let first = send(&mut payments, Some("invoice-17"), 1999).await?;
    println!("first:    {:?}", first.get_ref());
    assert!(!first.metadata().contains_key("idempotent-replayed"));
    assert_eq!(first.metadata().get("grpc-status").unwrap(), "0");

    let retry = send(&mut payments, Some("invoice-17"), 1999).await?;
    println!("retry:    {:?}, {:?}", retry.get_ref(), retry.metadata());
    assert_eq!(retry.get_ref(), first.get_ref());
    assert_eq!(retry.metadata().get("idempotent-replayed").unwrap(), "true");
    // It came as a trailer both times, behind the message.
    assert_eq!(retry.metadata().get("grpc-status").unwrap(), "0");

    let other = send(&mut payments, Some("invoice-17"), 2999).await.unwrap_err();
    println!("mismatch: {:?}, {}", other.code(), other.message());
    assert_eq!(other.code(), Code::InvalidArgument);

    let bare = send(&mut payments, None, 500).await.unwrap_err();
    println!("no key:   {:?}, {}", bare.code(), bare.message());
    assert_eq!(bare.code(), Code::InvalidArgument);
    Ok(())
}

async fn send(
    payments: &mut client::Grpc<Channel>,
    key: Option<&str>,
    amount: u64,
) -> Result<tonic::Response<ChargeReply>, Box<Status>> {
    let mut request = Request::new(ChargeRequest { amount, currency: "eur".to_owned() });
    if let Some(key) = key {
        let key = key.parse().map_err(|_| Status::invalid_argument("the key does not fit into metadata"))?;
        request.metadata_mut().insert("idempotency-key", key);
    }
    payments.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<ChargeRequest, ChargeReply>::new();
    Ok(payments.unary(request, PathAndQuery::from_static(CHARGE), codec).await?)
}
