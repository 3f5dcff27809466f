//! A drain waits for every execution, those whose client went away included, and says what is left.

use std::{pin::pin, sync::Arc, time::Duration};

use axum::{Router, routing::post};
use futures_util::{FutureExt, future::join_all};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Store, StoreOutage,
    store::State,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{
    Call, Charges, Gate, Http, PATIENCE, Runs, VERSIONS, Version, Visits, Watched, eventually, go_away, keyed, pay,
    record, serve,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_with_nothing_to_wait_for_ends_at_once() {
    let (charges, layer) = (Charges::free(), IdempotencyLayer::new(MemoryStore::new()));
    assert_eq!(layer.drain(PATIENCE).now_or_never(), Some(0));

    let server = serve(pay(&charges, &layer)).await;
    Http::new(Version::Http1).pay(&server, "k").await;
    Http::new(Version::Http1).pay(&server, "k").await;

    assert_eq!(layer.drain(PATIENCE).now_or_never(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_runs_whose_client_went_away() {
    let (charges, visits) = (Charges::held(), Visits::default());
    let store = Arc::new(MemoryStore::new());
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    let server = serve(visits.watch(pay(&charges, &layer))).await;
    go_away(Version::Http2, &server, "k", charges.runs.reach(1)).await;
    visits.dropped.reach(1).await;

    let mut drain = pin!(layer.drain(PATIENCE));
    assert_eq!(drain.as_mut().now_or_never(), None);
    charges.let_go(1);

    assert_eq!(drain.await, 0);
    let stored = store.lookup(&record("k")).await.unwrap().unwrap();
    assert!(matches!(stored.state, State::Completed(_)), "{stored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_until_the_answer_is_stored() {
    for gate in [Gate::BeforeEffect, Gate::AfterEffect] {
        let (charges, store) = (Charges::free(), Watched::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(pay(&charges, &layer)).await;
        store.set(Call::Complete, gate);
        go_away(Version::Http1, &server, "k", store.reach(Call::Complete, 1)).await;

        let mut drain = pin!(layer.drain(PATIENCE));
        assert_eq!(drain.as_mut().now_or_never(), None);
        store.set(Call::Complete, Gate::Open);

        assert_eq!(drain.await, 0);
        let stored = store.inner.lookup(&record("k")).await.unwrap().unwrap();
        assert!(matches!(stored.state, State::Completed(_)), "{stored:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_runs_without_protection() {
    let (charges, visits) = (Charges::held(), Visits::default());
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    store.fail_all(Operation::Claim, Fault::BeforeEffect);
    let layer = IdempotencyLayer::new(store).on_outage(StoreOutage::Proceed);
    let ended = Runs::default();
    let (charging, counted) = (charges.clone(), ended.clone());
    let handler = post(async move || {
        charging.charge().await;
        counted.count();
    });
    let server = serve(visits.watch(Router::new().route("/pay", handler).layer(layer.clone()))).await;
    go_away(Version::Http2, &server, "k", charges.runs.reach(1)).await;
    visits.dropped.reach(1).await;

    let mut drain = pin!(layer.drain(PATIENCE));
    assert_eq!(drain.as_mut().now_or_never(), None);
    charges.let_go(1);

    assert_eq!(drain.await, 0);
    assert_eq!(ended.total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_says_at_its_deadline_how_many_are_left_and_can_be_repeated() {
    let (charges, layer) = (Charges::held(), IdempotencyLayer::new(MemoryStore::new()));
    let server = serve(pay(&charges, &layer)).await;
    go_away(Version::Http2, &server, "a", charges.runs.reach(1)).await;
    go_away(Version::Http2, &server, "b", charges.runs.reach(2)).await;

    assert_eq!(layer.drain(Duration::from_millis(10)).await, 2);
    charges.let_go(1);
    eventually(|| layer.drain(Duration::ZERO).now_or_never() != Some(2)).await;
    assert_eq!(layer.drain(Duration::from_millis(10)).await, 1);
    charges.let_go(1);
    assert_eq!(layer.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_covers_the_clones_of_the_layer() {
    let (charges, layer) = (Charges::held(), IdempotencyLayer::new(MemoryStore::new()));
    let clone = layer.clone();
    let server = serve(pay(&charges, &clone)).await;
    go_away(Version::Http2, &server, "k", charges.runs.reach(1)).await;

    assert_eq!(layer.drain(Duration::from_millis(10)).await, 1);
    charges.let_go(1);
    assert_eq!(layer.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_dropped_at_random_moments_leave_no_record_or_a_completed_one() {
    const BATCH: usize = 200;
    for version in VERSIONS {
        let (charges, visits) = (Charges::free(), Visits::default());
        let runs = charges.runs.clone();
        let handler = post(async move || {
            let run = runs.count();
            for _ in 0..run % 4 {
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            run.to_string()
        });
        let store = Arc::new(MemoryStore::new());
        let layer = IdempotencyLayer::new(Arc::clone(&store));
        let server = serve(visits.watch(Router::new().route("/pay", handler).layer(layer.clone()))).await;
        let mut sent = 0;

        // How far a request gets in its time depends on the machine.
        while visits.dropped.total() < 50 {
            let http = Http::new(version);
            join_all((sent..sent + BATCH).map(|number| {
                let time = Duration::from_micros(random_below(100 * BATCH as u64));
                let request = keyed(&server, "/pay", &format!("k-{number}")).body("{}".into()).unwrap();
                // Many resets make the server close a connection of HTTP/2, so that a request may also fail.
                tokio::time::timeout(time, http.send(request))
            }))
            .await;
            sent += BATCH;
        }

        let completed = || {
            let lookup = |number| store.lookup(&record(&format!("k-{number}"))).now_or_never().unwrap();
            let states = (0..sent).filter_map(|number| lookup(number).unwrap()).map(|record| record.state);
            states.map(|state| usize::from(matches!(state, State::Completed(_)))).collect::<Vec<_>>()
        };
        eventually(|| {
            let over = visits.over(0) && layer.drain(PATIENCE).now_or_never() == Some(0);
            let completed = completed();
            over && completed.iter().sum::<usize>() == completed.len() && completed.len() == charges.runs.total()
        })
        .await;
    }
}

fn random_below(end: u64) -> u64 {
    tower_idempotency::store::Token::random().as_uuid().as_u128() as u64 % end
}
