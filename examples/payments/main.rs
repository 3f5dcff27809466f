//! A small payments API in which a charge can be retried without charging twice.
//!
//! ```sh
//! cargo run --example payments
//! ```
//!
//! It prints its address and `curl` lines to try; `cargo run --example payments -- --help` lists the options. The
//! guard is the few lines of [`idempotency`] and the one `route_layer` in [`router`].
//!
//! ```sh
//! cargo run --example payments --features postgres -- --store postgres://localhost/payments
//! ```
//!
//! keeps the keys and the charges in one database, for any number of instances. Each charge commits together with the
//! answer of its key, so that not even a crash makes two: see [`charges::create`].

mod charge;
mod charges;
mod guide;
mod ledger;
mod object;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod problem;
mod shutdown;
mod store_url;

use std::{
    fmt::Display,
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    time::Duration,
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::StatusCode,
    routing::{get, post},
};
use clap::Parser;
use tokio::{net::TcpListener, sync::oneshot, time::Instant};
use tower_idempotency::{IdempotencyLayer, MemoryStore, Store};

use crate::{
    charges::Charges, ledger::MemoryLedger, options::Options, problem::Problem, shutdown::Signals, store_url::StoreUrl,
};

/// The longest request body in bytes, with or without a key.
const BODY_LIMIT: usize = 16 * 1024;

/// How long open requests may take after the first signal to stop.
const GRACE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Runs on the store that the options name.
async fn run(options: &Options) -> Result<usize, String> {
    match StoreUrl::parse(&options.store)? {
        StoreUrl::Memory => {
            let layer = idempotency(options, MemoryStore::new());
            serve(options, layer, Charges::new(MemoryLedger::default(), options.delay_ms)).await
        }
        StoreUrl::Postgres(url) => run_on_postgres(options, url).await,
    }
}

#[cfg(feature = "postgres")]
async fn run_on_postgres(options: &Options, url: &str) -> Result<usize, String> {
    use tower_idempotency::{PostgresStore, Purge};

    let pool = postgres::connect(url, options.pool).await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.map_err(|error| format!("cannot make the table of the keys: {error}"))?;
    let ledger = ledger::PostgresLedger::open(pool.clone())
        .await
        .map_err(|error| format!("cannot make the table of the charges: {error}"))?;

    let mut layer = idempotency(options, store.clone());
    if !options.plain {
        layer = layer.transactional();
    }
    let purge = Purge::new(store).spawn();
    let left = serve(options, layer, Charges::new(ledger, options.delay_ms)).await;
    purge.stop().await;
    pool.close().await;
    left
}

#[cfg(not(feature = "postgres"))]
async fn run_on_postgres(_: &Options, _: &str) -> Result<usize, String> {
    Err("this build cannot use PostgreSQL; add `--features postgres`: \
         cargo run --example payments --features postgres -- --store postgres://…"
        .to_owned())
}

/// Serves until a signal comes, and returns how many requests were cut off. Fails if it cannot start.
async fn serve<S: Store>(options: &Options, layer: IdempotencyLayer<S>, charges: Charges) -> Result<usize, String> {
    let mut signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let (listener, address) = listen(&options.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}{}", options.listen, advice(&error)))?;

    let (stop, stopped) = oneshot::channel::<()>();
    let app = router(charges, layer.clone());
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        // An error only means that the sender is gone, which is as good a reason to stop.
        let _ = stopped.await;
    });
    let server = tokio::spawn(server.into_future());
    say(guide::text(address, options.profile));

    signals.next().await;
    say(format_args!("stopping: open requests have {} s to finish; a second signal ends at once", GRACE.as_secs()));
    let deadline = Instant::now() + GRACE;
    drop(stop);
    signals.exit_at_the_next();

    // First those whose clients still wait, then those whose clients went away: a charge is never cut in half.
    let in_time = tokio::time::timeout_at(deadline, server).await.is_ok();
    let left = layer.drain(deadline.saturating_duration_since(Instant::now())).await;
    let open = if in_time { "" } else { "; connections were still open" };
    say(format_args!("stopped; guarded requests left: {left}{open}"));
    Ok(if in_time { left } else { left.max(1) })
}

async fn listen(address: &str) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Says what to do when an address cannot be listened on, as far as that is known.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; `--listen 127.0.0.1:0` takes a free port",
        // It did not come from the socket, so the address was not understood, or its host not found.
        _ if error.raw_os_error().is_none() => "; write HOST:PORT, such as `--listen 127.0.0.1:3000`",
        _ => "",
    }
}

/// Sets the guard up.
fn idempotency<S: Store>(options: &Options, store: S) -> IdempotencyLayer<S> {
    let mut layer = IdempotencyLayer::new(store).profile(options.profile).request_limit(BODY_LIMIT);
    if options.require_key {
        layer = layer.require_key();
    }
    if let Some(lease) = options.lease_ms {
        layer = layer.lease(lease);
    }
    if let Some(wait) = options.wait_ms {
        layer = layer.wait(wait);
    }
    layer
}

/// Guards every POST and PATCH of the routes. A real service has its authentication outside of the guard, and sets
/// [`IdempotencyLayer::scope`] to the account that it found.
fn router<S: Store>(charges: Charges, layer: IdempotencyLayer<S>) -> Router {
    Router::new()
        .route("/v1/charges", post(charges::create).get(charges::list))
        .route("/v1/charges/{id}", get(charges::find))
        .route_layer(layer)
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "There is nothing at this path."))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "This path does not have this method.")
        })
        .with_state(charges)
}

/// Prints a line. Unlike `println!`, it does not panic when nobody reads the output any more: that must stop neither a
/// charge nor the end of the server.
fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
