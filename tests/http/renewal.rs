//! Leases under renewal when the store is slow, down or late. On Tokio's paused clock, and therefore without sockets.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_idempotency::{Body, IdempotencyLayer, OnAbandoned, Settled, Store, store::State};

use crate::support::{Call, Charges, Gate, PATIENCE, Watched, record};

const LEASE: Duration = Duration::from_secs(3);

/// A handler's answer.
type Outcome = Result<Response<Full<Bytes>>, &'static str>;

/// Sends a request to a handler behind the layer, and gives the status of the answer.
fn send<F>(
    layer: &IdempotencyLayer<Arc<Watched>>,
    key: &'static str,
    handler: impl Fn() -> F + Clone + Send + 'static,
) -> impl Future<Output = Result<StatusCode, &'static str>> + Send + 'static
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let request = Request::post("/pay").header("idempotency-key", key).body(Full::from("{}")).unwrap();
    let service = layer.layer(service_fn(move |_: Request<Body<Full<Bytes>>>| handler()));
    let answer = timeout(PATIENCE, service.oneshot(request));
    answer.map(|answer| answer.expect("an answer in time").map(|answer| answer.status()))
}

/// Sends a request whose handler runs until it is let go.
fn charge(
    layer: &IdempotencyLayer<Arc<Watched>>,
    key: &'static str,
    charges: &Charges,
) -> impl Future<Output = Result<StatusCode, &'static str>> + Send + 'static {
    let charges = charges.clone();
    send(layer, key, move || held(charges.clone()))
}

async fn held(charges: Charges) -> Outcome {
    let (status, text) = charges.charge().await;
    Ok(Response::builder().status(status).body(Full::from(text)).unwrap())
}

async fn state(store: &Watched) -> State {
    store.inner.lookup(&record("k")).await.unwrap().unwrap().state
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_repeated_before_the_lease_ends() {
    let (charges, store) = (Charges::held(), Watched::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE).store_timeout(10 * LEASE);
    let hanging = store.hold_next(Call::Renew, Gate::BeforeEffect);
    let first = tokio::spawn(charge(&layer, "k", &charges));

    for _ in 0..50 {
        sleep(LEASE / 10).await;
        assert!(matches!(state(&store).await, State::InFlight { .. }), "after {} renewals", store.calls(Call::Renew));
    }

    charges.let_go(1);
    assert_eq!(first.await.unwrap(), Ok(StatusCode::CREATED));
    drop(hanging);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_does_not_revive_the_lease_of_a_handler_that_failed() {
    let (charges, store) = (Charges::held(), Watched::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE);
    let late = store.hold_next(Call::Renew, Gate::BeforeEffect);
    let charged = charges.clone();
    let failing = move || held(charged.clone()).map(|_| Err("the gateway is gone"));
    let first = tokio::spawn(send(&layer, "k", failing));

    store.reach(Call::Renew, 1).await;
    charges.let_go(1);
    assert_eq!(first.await.unwrap(), Err("the gateway is gone"));
    late.send_replace(Gate::Open);
    sleep(LEASE / 10).await;

    assert!(matches!(state(&store).await, State::Abandoned { .. }), "{:?}", state(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_lands_while_a_failed_run_ends_its_lease_does_not_revive_it() {
    let (charges, store) = (Charges::held(), Watched::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE);
    let renewal = store.hold_next(Call::Renew, Gate::BeforeEffect);
    let charged = charges.clone();
    let failing = move || held(charged.clone()).map(|_| Err("the gateway is gone"));
    let first = tokio::spawn(send(&layer, "k", failing));
    store.reach(Call::Renew, 1).await;
    let ending = store.hold_next(Call::Renew, Gate::AfterEffect);
    charges.let_go(1);
    store.reach(Call::Renew, 2).await;
    assert!(
        matches!(state(&store).await, State::Abandoned { .. }),
        "the lease is ended, but its run does not know yet"
    );

    renewal.send_replace(Gate::Open);
    store.reach_end(Call::Renew, 1).await;
    sleep(LEASE / 100).await;
    ending.send_replace(Gate::Open);

    assert_eq!(first.await.unwrap(), Err("the gateway is gone"));
    assert_eq!(charge(&layer, "k", &Charges::free()).await, Ok(StatusCode::CREATED), "a retry runs at once");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_while_renewals_failed_is_not_taken_over_where_the_handler_still_runs() {
    for wait in [None, Some(LEASE)] {
        let (charges, store) = (Charges::held(), Watched::new());
        let mut layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE);
        if let Some(wait) = wait {
            layer = layer.wait(wait);
        }
        store.set(Call::Renew, Gate::BeforeEffect);
        let first = tokio::spawn(charge(&layer, "k", &charges));
        sleep(2 * LEASE).await;
        assert!(matches!(state(&store).await, State::Abandoned { .. }));

        assert_eq!(charge(&layer, "k", &charges).await, Ok(StatusCode::CONFLICT));

        store.set(Call::Renew, Gate::Open);
        sleep(LEASE).await;
        assert!(matches!(state(&store).await, State::InFlight { .. }), "it is renewed as soon as that works again");
        charges.let_go(1);
        assert_eq!(first.await.unwrap(), Ok(StatusCode::CREATED));
        assert_eq!(charges.runs.total(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_handler_still_runs_here_is_neither_unknown_nor_settled_nor_released() {
    let (charges, store) = (Charges::held(), Watched::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE).on_abandoned(OnAbandoned::Refuse);
    store.set(Call::Renew, Gate::BeforeEffect);
    let first = tokio::spawn(charge(&layer, "k", &charges));
    sleep(2 * LEASE).await;
    assert!(matches!(state(&store).await, State::Abandoned { .. }));

    let retry = layer.layer(service_fn(async |_: Request<Body<Full<Bytes>>>| Outcome::Err("it ran")));
    let request = Request::post("/pay").header("idempotency-key", "k").body(Full::from("{}")).unwrap();
    let refused = retry.oneshot(request).await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "1", "in flight, so that a retry helps");
    let answer = Response::new(Bytes::new());
    assert_eq!(layer.settle(&record("k"), &answer).await.unwrap(), Settled::InFlight);
    assert_eq!(layer.release(&record("k")).await.unwrap(), Settled::InFlight);

    charges.let_go(1);
    assert_eq!(first.await.unwrap(), Ok(StatusCode::CREATED));
    assert!(matches!(state(&store).await, State::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_keeps_an_unsettled_key_for_as_long_as_its_own_layer_says() {
    let (charges, store) = (Charges::held(), Watched::new());
    let rerun = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE).retention(LEASE);
    let refuse = rerun.clone().on_abandoned(OnAbandoned::Refuse);
    // The forgetful layer is the first at work, and starts the task that renews for both.
    let forgetful = tokio::spawn(charge(&rerun, "other", &charges));
    charges.runs.reach(1).await;
    let careful = tokio::spawn(charge(&refuse, "k", &charges));
    store.reach(Call::Renew, 6).await;

    store.set(Call::Renew, Gate::BeforeEffect);
    sleep(4 * LEASE).await;

    assert!(matches!(state(&store).await, State::Abandoned { .. }));
    charges.let_go(2);
    assert_eq!((forgetful.await.unwrap(), careful.await.unwrap()), (Ok(StatusCode::CREATED), Ok(StatusCode::CREATED)));
}
