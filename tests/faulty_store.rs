//! The fault-injecting wrapper of the testing kit.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::time::{Instant, timeout};
use tower_idempotency::{
    Fingerprint, IdempotencyKey, MemoryStore, Scope, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, RecordId, Token},
    testing::{Fault, Faulty, Operation},
};

const LEASE: Lease = Lease { term: Duration::from_secs(30), unsettled: Duration::from_secs(60) };
const OPERATIONS: [Operation; 6] =
    [Operation::Claim, Operation::Renew, Operation::Complete, Operation::Release, Operation::Lookup, Operation::Purge];

mod without_faults {
    use super::*;

    tower_idempotency::store_tests!(Faulty::new(MemoryStore::new()));
}

fn faulty() -> Faulty<MemoryStore> {
    Faulty::new(MemoryStore::new())
}

fn id() -> RecordId {
    RecordId::new(Scope::new("tenant"), IdempotencyKey::new("key").unwrap())
}

fn claim() -> NewClaim {
    NewClaim::new(Token::random(), Fingerprint::from_bytes([1; 32]), LEASE)
}

fn response() -> StoredResponse {
    StoredResponse::of(&http::Response::new("done".into()))
}

/// Calls the operation, and tells whether it failed as a store that is unavailable.
async fn fails(store: &dyn Store, operation: Operation) -> bool {
    let (id, token) = (id(), Token::random());
    let outcome = match operation {
        Operation::Claim => store.claim(&id, &claim()).await.map(drop),
        Operation::Renew => store.renew(&id, token, LEASE).await.map(drop),
        Operation::Complete => store.complete(&id, token, &response(), LEASE.term).await.map(drop),
        Operation::Release => store.release(&id, token).await.map(drop),
        Operation::Lookup => store.lookup(&id).await.map(drop),
        Operation::Purge => store.purge(1).await.map(drop),
    };
    outcome.is_err_and(|error| error.is_unavailable())
}

#[tokio::test]
async fn every_operation_fails_until_it_is_healed_and_no_other_does() {
    for chosen in OPERATIONS {
        let store = faulty();
        for fault in [Fault::BeforeEffect, Fault::AfterEffect] {
            store.fail_all(chosen, fault);
            for operation in OPERATIONS.into_iter().chain([chosen]) {
                assert_eq!(
                    fails(&store, operation).await,
                    operation == chosen,
                    "{operation:?} with {chosen:?} failing"
                );
            }
        }
        store.heal();
        assert!(!fails(&store, chosen).await);
    }
}

#[tokio::test]
async fn a_fault_before_the_effect_leaves_nothing_behind() {
    let store = faulty();
    store.fail_next(Operation::Claim, Fault::BeforeEffect);
    assert!(fails(&store, Operation::Claim).await);
    assert_eq!(store.lookup(&id()).await.unwrap(), None);
}

#[tokio::test]
async fn a_fault_after_the_effect_loses_only_the_answer() {
    let (store, claim) = (faulty(), claim());
    assert!(matches!(store.claim(&id(), &claim).await.unwrap(), Claim::Acquired { attempt: 1 }));
    store.fail_next(Operation::Complete, Fault::AfterEffect);
    assert!(store.complete(&id(), claim.token, &response(), LEASE.term).await.is_err());
    let repeated = store.complete(&id(), claim.token, &response(), LEASE.term).await.unwrap();
    assert_eq!(repeated, Fenced::Applied);
    assert_eq!(store.release(&id(), claim.token).await.unwrap(), Fenced::Lost);
}

#[tokio::test]
async fn single_faults_come_in_their_order_and_before_the_standing_one() {
    let store = faulty();
    store.fail_all(Operation::Claim, Fault::BeforeEffect);
    store.fail_next(Operation::Claim, Fault::DelayBefore(Duration::ZERO));
    store.fail_next(Operation::Claim, Fault::AfterEffect);
    assert!(!fails(&store, Operation::Claim).await);
    assert!(fails(&store, Operation::Claim).await);
    assert!(fails(&store, Operation::Claim).await);
}

#[tokio::test]
async fn calls_are_counted_per_operation_failed_ones_too() {
    let store = faulty();
    store.fail_next(Operation::Lookup, Fault::BeforeEffect);
    for _ in 0..3 {
        fails(&store, Operation::Lookup).await;
    }
    assert_eq!(OPERATIONS.map(|operation| store.calls(operation)), [0, 0, 0, 0, 3, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_before_or_after_the_effect() {
    for (fault, done_early) in
        [(Fault::DelayBefore(Duration::from_secs(5)), false), (Fault::DelayAfter(Duration::from_secs(5)), true)]
    {
        let (store, claim, id) = (faulty(), claim(), id());
        store.fail_next(Operation::Claim, fault);
        let start = Instant::now();
        let mut call = std::pin::pin!(store.claim(&id, &claim));
        poll_fn(|cx| {
            assert!(call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(store.inner().lookup(&id).await.unwrap().is_some(), done_early);
        assert!(matches!(call.await.unwrap(), Claim::Acquired { attempt: 1 }));
        assert!(start.elapsed() >= Duration::from_secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_never_ends_even_when_healed() {
    for (fault, done) in [(Fault::HangBefore, false), (Fault::HangAfter, true)] {
        let store = Arc::new(faulty());
        store.fail_next(Operation::Claim, fault);
        let caller = Arc::clone(&store);
        let call = tokio::spawn(async move { caller.claim(&id(), &claim()).await });
        while store.calls(Operation::Claim) == 0 {
            tokio::task::yield_now().await;
        }
        store.heal();
        assert!(timeout(LEASE.term, call).await.is_err());
        assert_eq!(store.lookup(&id()).await.unwrap().is_some(), done);
    }
}
