//! A claim that failed may stand all the same: it is given back until that works. On Tokio's paused clock.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tokio::time::sleep;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, OnAbandoned, StoreOutage,
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Answer, Charges, PATIENCE, call, charge};

type Layer = IdempotencyLayer<Arc<Faulty<MemoryStore>>>;

/// A layer whose lease is so long that a key blocked for it would stay blocked.
fn faulty() -> (Arc<Faulty<MemoryStore>>, Layer) {
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store));
    (store, layer.lease(20 * PATIENCE))
}

fn fail(store: &Faulty<MemoryStore>, operation: Operation, fault: Fault, times: usize) {
    (0..times).for_each(|_| store.fail_next(operation, fault));
}

/// Repeats a charge until its answer is not "in flight" any more, for much less than the lease.
async fn retry(layer: &Layer, charges: &Charges) -> Answer {
    for _ in 0..PATIENCE.as_secs() {
        let answer = charge(layer, "k", charges).await;
        if answer.status != StatusCode::CONFLICT {
            return answer;
        }
        assert_eq!(answer.problem(), "in-flight");
        sleep(Duration::from_secs(1)).await;
    }
    panic!("the key stays blocked");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_stands_without_a_word_is_released_when_the_store_is_back() {
    for policy in [OnAbandoned::Rerun, OnAbandoned::Refuse] {
        for (claimed, released) in [
            (Fault::AfterEffect, Fault::BeforeEffect),
            (Fault::HangAfter, Fault::BeforeEffect),
            (Fault::AfterEffect, Fault::HangBefore),
        ] {
            let (charges, (store, layer)) = (Charges::free(), faulty());
            let layer = layer.on_abandoned(policy.clone());
            store.fail_next(Operation::Claim, claimed);
            fail(&store, Operation::Release, released, 3);

            assert_eq!(charge(&layer, "k", &charges).await.problem(), "store-unavailable");

            let answer = retry(&layer, &charges).await;
            assert_eq!(answer.headers["x-attempt"], "1", "{policy:?} {claimed:?} {released:?}");
            assert!(charge(&layer, "k", &charges).await.is_replay());
            assert_eq!(charges.runs.total(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_under_which_nothing_ran_is_never_said_to_be_unknown() {
    let (charges, (store, layer)) = (Charges::free(), faulty());
    let layer = layer.lease(Duration::from_secs(1)).on_abandoned(OnAbandoned::Refuse);
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    fail(&store, Operation::Release, Fault::BeforeEffect, 8);
    assert_eq!(charge(&layer, "k", &charges).await.problem(), "store-unavailable");

    // For many leases, and beyond the time at which the release works.
    while store.calls(Operation::Release) < 9 {
        let answer = charge(&layer, "k", &charges).await;
        assert!(
            answer.status == StatusCode::CREATED || answer.problem() == "in-flight",
            "nothing ran, and the client is told {:?}",
            answer.problem()
        );
        sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(retry(&layer, &charges).await.headers["x-attempt"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_takeover_that_stands_without_a_word_is_abandoned_again_when_the_store_is_back() {
    let (charges, (store, layer)) = (Charges::free(), faulty());
    assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
    // The first claim finds the abandoned record, the second one takes it over.
    store.fail_next(Operation::Claim, Fault::DelayBefore(Duration::ZERO));
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    fail(&store, Operation::Renew, Fault::BeforeEffect, 3);

    assert_eq!(charge(&layer, "k", &charges).await.problem(), "store-unavailable");

    let answer = retry(&layer, &charges).await;
    assert_eq!(answer.headers["x-attempt"], "3", "an earlier run may have had its effect");
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_until_a_failed_claim_is_given_back() {
    let (charges, (store, layer)) = (Charges::free(), faulty());
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    fail(&store, Operation::Release, Fault::BeforeEffect, 3);
    assert_eq!(charge(&layer, "k", &charges).await.problem(), "store-unavailable");

    assert_eq!(layer.drain(PATIENCE).await, 0);

    assert!(store.inner().is_empty(), "the record is gone");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_stands_without_a_word_is_released_where_requests_proceed_without_a_store_too() {
    let (charges, (store, layer)) = (Charges::free(), faulty());
    let layer = layer.on_outage(StoreOutage::Proceed);
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    fail(&store, Operation::Release, Fault::BeforeEffect, 3);

    assert_eq!(charge(&layer, "k", &charges).await.status, StatusCode::CREATED);
    assert_eq!(layer.drain(PATIENCE).await, 0);

    assert!(store.inner().is_empty(), "the record is gone");
}
