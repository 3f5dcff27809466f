//! An operator settles an abandoned key while its late holder, in another process, is still at work.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, OnAbandoned, Settled, Store,
    store::{Fenced, Lease, State},
    testing::{Fault, Faulty, Operation},
};

use crate::support::{Call, Charges, Gate, PATIENCE, Watched, call, charge, record};

/// A layer whose leases are not renewed within a test.
fn process<S: Store>(store: &Arc<S>) -> IdempotencyLayer<Arc<S>> {
    IdempotencyLayer::new(Arc::clone(store)).lease(20 * PATIENCE).on_abandoned(OnAbandoned::Refuse)
}

/// Ends the lease of a run that goes on, as if its process had been stopped for longer.
async fn end_lease(store: &dyn Store) {
    let token = store.lookup(&record("k")).await.unwrap().unwrap().token;
    let over = Lease { term: Duration::ZERO, unsettled: Duration::MAX };
    assert_eq!(store.renew(&record("k"), token, over).await.unwrap(), Fenced::Applied);
}

fn settled() -> Response<Bytes> {
    Response::builder().status(402).body("no charge was made".into()).unwrap()
}

#[tokio::test]
async fn a_holder_that_is_late_for_a_settled_key_answers_what_was_settled() {
    let (charges, store) = (Charges::held(), Arc::new(MemoryStore::new()));
    let [here, there] = [process(&store), process(&store)];
    let late = tokio::spawn(charge(&here, "k", &charges));
    charges.runs.reach(1).await;
    end_lease(&store).await;

    assert_eq!(there.settle(&record("k"), &settled()).await.unwrap(), Settled::Done);
    charges.let_go(1);

    let late = late.await.unwrap();
    let retry = charge(&there, "k", &charges).await;
    for answer in [&late, &retry] {
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (402, &b"no charge was made"[..]));
        assert!(answer.is_replay());
    }
    assert_eq!(charges.runs.total(), 1);
}

#[tokio::test]
async fn a_holder_that_is_late_while_its_key_is_being_settled_does_not_answer_otherwise() {
    let (charges, store) = (Charges::held(), Watched::new());
    let [here, there] = [process(&store), process(&store)];
    let late = tokio::spawn(charge(&here, "k", &charges));
    charges.runs.reach(1).await;
    end_lease(&*store.inner).await;
    let gate = store.hold_next(Call::Complete, Gate::BeforeEffect);
    let operator = there.clone();
    let settling = tokio::spawn(async move { operator.settle(&record("k"), &settled()).await.unwrap() });
    store.reach(Call::Complete, 1).await;

    charges.let_go(1);
    let late = late.await.unwrap();
    gate.send_replace(Gate::Open);

    let settling = settling.await.unwrap();
    let retry = charge(&there, "k", &charges).await;
    assert!(retry.is_replay());
    let told_to_retry = late.status == StatusCode::CONFLICT && late.problem() == "in-flight";
    assert!(told_to_retry || late.body == retry.body, "{late:?} and {retry:?} under one key");
    assert_eq!(settling == Settled::Done, retry.body == "no charge was made", "{settling:?}");
}

#[tokio::test]
async fn a_settlement_that_failed_can_be_repeated_at_once() {
    for (operation, fault) in [
        (Operation::Lookup, Fault::BeforeEffect),
        (Operation::Claim, Fault::BeforeEffect),
        (Operation::Claim, Fault::AfterEffect),
        (Operation::Complete, Fault::BeforeEffect),
        (Operation::Complete, Fault::AfterEffect),
    ] {
        let (charges, store) = (Charges::free(), Arc::new(Faulty::new(MemoryStore::new())));
        let layer = process(&store);
        assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
        store.fail_next(operation, fault);

        let first = layer.settle(&record("k"), &settled()).await;
        let again = layer.settle(&record("k"), &settled()).await.unwrap();
        store.heal();

        let done = [first.ok(), Some(again)];
        assert!(
            done.contains(&Some(Settled::Done)) || again == Settled::Completed,
            "{operation:?} {fault:?}: {done:?}"
        );
        let retry = charge(&layer, "k", &charges).await;
        assert_eq!((retry.is_replay(), &retry.body[..]), (true, &b"no charge was made"[..]));
        assert_eq!(charges.runs.total(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_does_not_wait_for_ever_for_a_store_that_hangs() {
    for (operation, release) in [
        (Operation::Lookup, false),
        (Operation::Claim, false),
        (Operation::Complete, false),
        (Operation::Lookup, true),
        (Operation::Release, true),
    ] {
        let store = Arc::new(Faulty::new(MemoryStore::new()));
        let layer = process(&store);
        assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
        store.fail_all(operation, Fault::HangBefore);

        let tried = async {
            if release { layer.release(&record("k")).await } else { layer.settle(&record("k"), &settled()).await }
        };
        let tried = tokio::time::timeout(PATIENCE, tried).await.unwrap_or_else(|_| panic!("{operation:?} hangs"));
        assert!(tried.expect_err("the store hangs").is_unavailable());
    }
}

#[tokio::test]
async fn of_two_operators_at_once_one_settles_the_key() {
    let (charges, store) = (Charges::free(), Watched::new());
    let [here, there] = [process(&store), process(&store)];
    assert_eq!(call(&here, "k", async |_| Err("cut short")).await, Err("cut short"));
    // Both have seen the abandoned record before one of them changes it.
    store.set(Call::Lookup, Gate::AfterEffect);
    let operators = [("one", &here), ("two", &there)].map(|(answer, layer)| {
        let layer = layer.clone();
        tokio::spawn(async move { layer.settle(&record("k"), &Response::new(answer.into())).await.unwrap() })
    });
    store.reach(Call::Lookup, 2).await;
    store.set(Call::Lookup, Gate::Open);
    let [one, two] = operators;
    let outcomes = [one.await.unwrap(), two.await.unwrap()];

    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Settled::Done).count(), 1, "{outcomes:?}");
    let winner = if outcomes[0] == Settled::Done { "one" } else { "two" };
    assert_eq!(charge(&here, "k", &charges).await.body, winner);
}

#[tokio::test]
async fn a_settled_key_is_kept_for_the_retention_of_the_layer() {
    let (charges, store) = (Charges::free(), Arc::new(MemoryStore::new()));
    let layer = process(&store);
    assert_eq!(call(&layer, "k", async |_| Err("cut short")).await, Err("cut short"));
    assert_eq!(layer.settle(&record("k"), &settled()).await.unwrap(), Settled::Done);

    let kept = store.lookup(&record("k")).await.unwrap().unwrap();
    assert!(matches!(kept.state, State::Completed(answer) if answer.status() == 402));
    assert_eq!(layer.settle(&record("k"), &settled()).await.unwrap(), Settled::Completed);
    assert!(charge(&layer, "k", &charges).await.is_replay());
}
