//! The shortest durations: what is refused when it is built, and what holds at the bounds. On Tokio's paused clock.

use std::{panic::catch_unwind, sync::Arc, time::Duration};

use http::{Response, StatusCode};
use tokio::time::sleep;
use tower_idempotency::{
    Attempt, IdempotencyLayer, MemoryStore,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Answer, Charges, call, charge};

const SHORTEST_LEASE: Duration = Duration::from_millis(100);
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

fn shortest() -> (Arc<Faulty<MemoryStore>>, IdempotencyLayer<Arc<Faulty<MemoryStore>>>) {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    (store, layer.lease(SHORTEST_LEASE).retention(SHORTEST_RETENTION))
}

#[test]
fn a_lease_below_a_tenth_of_a_second_and_a_retention_below_a_second_are_refused() {
    let just_below = Duration::from_nanos(1);
    let layer = || IdempotencyLayer::new(MemoryStore::new());
    let _ = layer().lease(SHORTEST_LEASE).retention(SHORTEST_RETENTION);
    for panic in [
        catch_unwind(|| drop(layer().lease(SHORTEST_LEASE - just_below))).expect_err("too short a lease"),
        catch_unwind(|| drop(layer().retention(SHORTEST_RETENTION - just_below))).expect_err("too short a retention"),
    ] {
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains("100 ms") || message.contains("1 s"), "{message:?} states the bound");
    }
}

#[tokio::test(start_paused = true)]
async fn the_shortest_lease_is_kept_by_a_handler_that_takes_its_time() {
    let (charges, (store, layer)) = (Charges::held(), shortest());
    let other_process = IdempotencyLayer::new(store);
    let first = tokio::spawn(charge(&layer, "k", &charges));
    charges.runs.reach(1).await;

    for _ in 0..50 {
        sleep(SHORTEST_LEASE / 5).await;
        assert_eq!(charge(&other_process, "k", &charges).await.problem(), "in-flight");
    }

    charges.let_go(1);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_short_is_remembered_for_a_minute_however_short_the_retention_is() {
    let (_, layer) = shortest();
    let attempt = async || -> Result<Answer, &'static str> {
        let handler = call(&layer, "k", |request| {
            let number = request.extensions().get::<Attempt>().unwrap().number();
            async move { if number == 1 { Err("cut short") } else { Ok(Response::new(number.to_string().into())) } }
        });
        handler.await
    };
    assert_eq!(attempt().await, Err("cut short"));

    sleep(Duration::from_secs(59)).await;

    assert_eq!(attempt().await.unwrap().body, "2", "the next run knows that there was one before");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_renewals_fail_for_a_minute_does_not_run_again_where_its_handler_still_runs() {
    let (charges, (store, layer)) = (Charges::held(), shortest());
    let first = tokio::spawn(charge(&layer, "k", &charges));
    charges.runs.reach(1).await;
    store.fail_all(Operation::Renew, Fault::BeforeEffect);

    for _ in 0..59 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(charge(&layer, "k", &charges).await.problem(), "in-flight");
    }

    store.heal();
    charges.let_go(1);
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(charge(&layer, "k", &charges).await.is_replay());
    assert_eq!(charges.runs.total(), 1);
}
