//! Leases hold whatever else a thread or another runtime does: each runtime renews its own, and none sleeps over it.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use http::{Response, StatusCode};
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};
use tower_idempotency::IdempotencyLayer;

use crate::support::{Charges, PATIENCE, Watched, call, charge, eventually, record};

const SHORT: Duration = Duration::from_millis(300);

type Layer = IdempotencyLayer<Arc<Watched>>;

/// A layer and its store.
fn watched() -> (Arc<Watched>, Layer) {
    let store = Watched::new();
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(SHORT);
    (store, layer)
}

/// Blocks the thread until a record was renewed a few times, and tells whether that came about.
fn block_until_renewed(store: &Watched, key: &str) -> bool {
    let (id, start) = (record(key), Instant::now());
    let enough = store.renewals(&id) + 3;
    while store.renewals(&id) < enough && start.elapsed() < PATIENCE / 3 {
        thread::sleep(Duration::from_millis(2));
    }
    store.renewals(&id) >= enough
}

/// Runs a handler that waits for a timer, and then blocks the thread that watched the timers. Tells whether the lease of
/// `key` was renewed meanwhile.
async fn block(layer: &Layer, own: &str, store: &Arc<Watched>, key: &'static str) -> bool {
    let store = Arc::clone(store);
    let handler = call(layer, own, move |_| {
        let store = Arc::clone(&store);
        async move {
            sleep(Duration::from_millis(20)).await;
            Ok(Response::new(block_until_renewed(&store, key).to_string().into()))
        }
    });
    tokio::spawn(handler).await.unwrap().unwrap().body == "true"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_after_a_wait_keeps_its_key() {
    let (store, layer) = watched();
    assert!(block(&layer, "k", &store, "k").await, "its lease is not renewed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_stalls_no_other_lease() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    let first = tokio::spawn(charge(&layer, "k", &charges));
    charges.runs.reach(1).await;

    for own in ["a", "b", "c"] {
        assert!(block(&layer, own, &store, "k").await, "the lease of another handler is not renewed");
    }

    charges.let_go(1);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_short_lease_is_renewed_beside_the_long_one_of_the_layer_that_it_was_made_from() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    let long = layer.clone().lease(Duration::from_secs(24 * 60 * 60));
    let first = tokio::spawn(charge(&long, "long", &charges));
    charges.runs.reach(1).await;

    assert!(block(&long.clone().lease(SHORT), "k", &store, "k").await, "its lease is not renewed");

    charges.let_go(1);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
}

/// A runtime of one thread on which a charge is under way, and which nobody drives any more.
fn stalled(layer: &Layer, charges: &Charges) -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(charge(layer, "stalled", charges));
        charges.runs.reach(1).await;
    });
    runtime
}

/// Charges on a runtime of its own, does something meanwhile, and waits until the lease was renewed several times.
fn charge_elsewhere(store: &Watched, layer: &Layer, meanwhile: impl FnOnce()) {
    let charges = Charges::held();
    Runtime::new().unwrap().block_on(async {
        let charging = tokio::spawn(charge(layer, "k", &charges));
        charges.runs.reach(1).await;
        meanwhile();
        let before = store.renewals(&record("k"));
        eventually(|| store.renewals(&record("k")) >= before + 5).await;
        charges.let_go(1);
        assert_eq!(charging.await.unwrap().status, StatusCode::CREATED);
    });
}

#[test]
fn a_runtime_that_stands_still_does_not_stop_the_renewals_of_another_one() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    let stalled = stalled(&layer, &charges);
    charge_elsewhere(&store, &layer, || {});
    drop(stalled);
}

#[test]
fn a_runtime_that_ended_does_not_stop_the_renewals_of_another_one() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    drop(stalled(&layer, &charges));
    charge_elsewhere(&store, &layer, || {});
}

#[test]
fn a_runtime_that_ends_meanwhile_does_not_stop_the_renewals_of_another_one() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    let stalled = stalled(&layer, &charges);
    charge_elsewhere(&store, &layer, || stalled.shutdown_background());
}

#[test]
fn a_runtime_that_goes_on_after_a_standstill_renews_its_own_leases_again() {
    let (charges, (store, layer)) = (Charges::held(), watched());
    let stalled = stalled(&layer, &charges);
    charge_elsewhere(&store, &layer, || {});
    let before = store.renewals(&record("stalled"));
    stalled.block_on(eventually(|| store.renewals(&record("stalled")) >= before + 5));
}
