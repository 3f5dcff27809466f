//! A claim whose answer comes late: the handler runs only under a lease that still holds. On Tokio's paused clock.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Store,
    store::{RecordId, State},
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Answer, Call, Charges, Gate, Watched, charge, record};

const LEASE: Duration = Duration::from_secs(3);

type Layer = IdempotencyLayer<Arc<Watched>>;

/// Two layers over one store, as if in two processes.
fn two(store: &Arc<Watched>) -> [Layer; 2] {
    [(); 2].map(|()| IdempotencyLayer::new(Arc::clone(store)).lease(LEASE).store_timeout(10 * LEASE))
}

/// Sends a request whose claim is made at once, but whose answer waits until the gate is opened.
async fn claim_late(store: &Watched, layer: &Layer, charges: &Charges) -> (JoinHandle<Answer>, watch::Sender<Gate>) {
    let gate = store.hold_next(Call::Claim, Gate::AfterEffect);
    let request = tokio::spawn(charge(layer, "k", charges));
    store.reach(Call::Claim, 1).await;
    (request, gate)
}

/// How long the lease of a record still runs; `None` if it ended.
async fn lease_left(store: &dyn Store, id: &RecordId) -> Option<Duration> {
    match store.lookup(id).await.unwrap().unwrap().state {
        State::InFlight { lease_left } => Some(lease_left),
        State::Abandoned { .. } => None,
        State::Completed(_) => panic!("nothing was answered yet"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_after_a_third_of_its_lease_is_renewed_before_the_handler_runs() {
    for late in [LEASE / 2, 2 * LEASE] {
        let (charges, store) = (Charges::held(), Watched::new());
        let [layer, _] = two(&store);
        let (request, answer) = claim_late(&store, &layer, &charges).await;
        let renewing = store.hold_next(Call::Renew, Gate::BeforeEffect);
        sleep(late).await;

        answer.send_replace(Gate::Open);
        store.reach(Call::Renew, 1).await;
        assert_eq!(charges.runs.total(), 0, "not before the lease is confirmed");
        renewing.send_replace(Gate::Open);
        charges.runs.reach(1).await;
        let left = lease_left(&*store.inner, &record("k")).await;
        assert!(left.is_some_and(|left| left > 2 * LEASE / 3), "{left:?} is left of the lease as the handler runs");

        charges.let_go(1);
        assert_eq!(request.await.unwrap().headers["x-attempt"], "1");
        assert!(charge(&layer, "k", &charges).await.is_replay());
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_in_time_is_not_renewed_before_the_handler_runs() {
    let (charges, store) = (Charges::held(), Watched::new());
    let [layer, _] = two(&store);
    let (request, answer) = claim_late(&store, &layer, &charges).await;
    sleep(LEASE / 4).await;

    answer.send_replace(Gate::Open);
    charges.runs.reach(1).await;

    assert_eq!(store.calls(Call::Renew), 0);
    charges.let_go(1);
    assert_eq!(request.await.unwrap().status, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_after_another_one_took_it_over_runs_nothing() {
    let (charges, store) = (Charges::held(), Watched::new());
    let [here, there] = two(&store);
    let (late, answer) = claim_late(&store, &here, &charges).await;
    sleep(2 * LEASE).await;
    let owner = tokio::spawn(charge(&there, "k", &charges));
    charges.runs.reach(1).await;

    answer.send_replace(Gate::Open);
    let late = late.await.unwrap();

    assert_eq!((late.status, late.problem().as_str()), (StatusCode::CONFLICT, "in-flight"));
    charges.let_go(1);
    assert_eq!(owner.await.unwrap().headers["x-attempt"], "2");
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_after_another_one_was_completed_gets_that_answer() {
    let (charges, store) = (Charges::free(), Watched::new());
    let [here, there] = two(&store);
    let (late, answer) = claim_late(&store, &here, &charges).await;
    sleep(2 * LEASE).await;
    let first = charge(&there, "k", &charges).await;

    answer.send_replace(Gate::Open);
    let late = late.await.unwrap();

    assert!(late.is_replay(), "{late:?}");
    assert_eq!((first.body, late.body), ("charge 1".into(), "charge 1".into()));
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_confirmation_is_late_too_is_confirmed_again() {
    let (charges, store) = (Charges::held(), Watched::new());
    let [here, there] = two(&store);
    let (late, answer) = claim_late(&store, &here, &charges).await;
    sleep(LEASE / 2).await;
    let confirmed = store.hold_next(Call::Renew, Gate::AfterEffect);
    answer.send_replace(Gate::Open);
    store.reach(Call::Renew, 1).await;
    sleep(2 * LEASE).await;
    let owner = tokio::spawn(charge(&there, "k", &charges));

    // Where the confirmation was given up meanwhile, the key may be held by the first request again, or be free.
    confirmed.send_replace(Gate::Open);
    charges.runs.reach(1).await;
    sleep(LEASE).await;

    assert_eq!(charges.runs.total(), 1, "two runs of one key at a time");
    charges.let_go(2);
    let answers = [late.await.unwrap(), owner.await.unwrap()];
    assert_eq!(answers.iter().filter(|answer| answer.status == StatusCode::CREATED).count(), 1, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_that_cannot_be_confirmed_is_refused_and_runs_nothing() {
    let charges = Charges::free();
    let store = Arc::new(Faulty::new(MemoryStore::new()));
    let layer = IdempotencyLayer::new(Arc::clone(&store)).lease(LEASE).store_timeout(10 * LEASE);
    store.fail_next(Operation::Claim, Fault::DelayAfter(LEASE / 2));
    store.fail_all(Operation::Renew, Fault::BeforeEffect);

    let refused = charge(&layer, "k", &charges).await;
    assert_eq!(refused.problem(), "store-unavailable");
    assert_eq!(charges.runs.total(), 0);
    store.heal();

    let retry = async || {
        loop {
            let retry = charge(&layer, "k", &charges).await;
            if retry.status != StatusCode::CONFLICT {
                return retry;
            }
            sleep(LEASE / 10).await;
        }
    };
    assert_eq!(retry().await.body, "charge 1");
}
