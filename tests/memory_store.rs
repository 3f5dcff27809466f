//! The in-memory store: the conformance kit, and what only this store promises.

use std::{
    panic::catch_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Barrier, task::JoinSet, time::advance};
use tower_idempotency::{
    Fingerprint, IdempotencyKey, MemoryStore, Scope, Store, StoredResponse, WhenFull,
    store::{Claim, Fenced, Lease, NewClaim, RecordId, State, Token},
};

mod conformance {
    tower_idempotency::store_tests!(tower_idempotency::MemoryStore::new());
}

mod conformance_of_a_store_in_an_arc {
    use std::sync::Arc;

    use tower_idempotency::{MemoryStore, Store};

    tower_idempotency::store_tests!(Arc::new(MemoryStore::default()) as Arc<dyn Store>);
}

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Lease = Lease { term: Duration::from_secs(30), unsettled: Duration::from_secs(60) };

fn id(number: usize) -> RecordId {
    RecordId::new(Scope::new("tenant"), IdempotencyKey::new(&format!("key-{number}")).unwrap())
}

fn new_claim(lease: Lease) -> NewClaim {
    NewClaim::new(Token::random(), Fingerprint::from_bytes([1; 32]), lease)
}

fn response(len: usize) -> StoredResponse {
    StoredResponse::of(&http::Response::new(vec![b'x'; len].into()))
}

/// Claims a new record and returns its token; `None` if the store is full.
async fn claim(store: &MemoryStore, number: usize, lease: Lease) -> Option<Token> {
    let claim = new_claim(lease);
    match store.claim(&id(number), &claim).await {
        Ok(Claim::Acquired { attempt }) => {
            assert_eq!(attempt, 1);
            Some(claim.token)
        }
        Ok(Claim::Existing(record)) => panic!("record {number} exists: {record:?}"),
        Err(error) => {
            assert!(error.is_full(), "{error}");
            None
        }
    }
}

async fn complete(store: &MemoryStore, number: usize, token: Token, retention: Duration) {
    let outcome = store.complete(&id(number), token, &response(100), retention).await.unwrap();
    assert_eq!(outcome, Fenced::Applied);
}

async fn settle(store: &MemoryStore, number: usize, retention: Duration) {
    let token = claim(store, number, LEASE).await.unwrap();
    complete(store, number, token, retention).await;
}

async fn state(store: &MemoryStore, number: usize) -> Option<State> {
    store.lookup(&id(number)).await.unwrap().map(|record| record.state)
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_at_its_last_nanosecond_and_not_before() {
    let store = MemoryStore::new();
    let term = Duration::from_millis(1500);
    claim(&store, 1, Lease { term, unsettled: SECOND }).await.unwrap();
    advance(Duration::from_millis(1499)).await;
    assert_eq!(state(&store, 1).await, Some(State::InFlight { lease_left: Duration::from_millis(1) }));
    advance(Duration::from_millis(1)).await;
    assert_eq!(state(&store, 1).await, Some(State::Abandoned { since: Duration::ZERO }));
    advance(Duration::from_millis(999)).await;
    assert_eq!(state(&store, 1).await, Some(State::Abandoned { since: Duration::from_millis(999) }));
    advance(Duration::from_millis(1)).await;
    assert_eq!(state(&store, 1).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_can_be_taken_over_at_once() {
    let store = MemoryStore::new();
    let first = claim(&store, 1, LEASE).await.unwrap();
    advance(LEASE.term - Duration::from_millis(1)).await;
    let next = new_claim(LEASE).replacing(first);
    assert!(matches!(store.claim(&id(1), &next).await.unwrap(), Claim::Existing(_)));
    advance(Duration::from_millis(1)).await;
    assert!(matches!(store.claim(&id(1), &next).await.unwrap(), Claim::Acquired { attempt: 2 }));
    assert_eq!(state(&store, 1).await, Some(State::InFlight { lease_left: LEASE.term }));
}

#[tokio::test(start_paused = true)]
async fn a_retention_counts_from_the_completion() {
    let store = MemoryStore::new();
    let token = claim(&store, 1, LEASE).await.unwrap();
    advance(20 * SECOND).await;
    complete(&store, 1, token, 50 * SECOND).await;
    advance(50 * SECOND - Duration::from_millis(1)).await;
    assert_eq!(state(&store, 1).await, Some(State::Completed(response(100))));
    advance(Duration::from_millis(1)).await;
    assert_eq!(state(&store, 1).await, None);
    claim(&store, 1, LEASE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn durations_of_nothing_and_of_for_ever_are_exact() {
    let store = MemoryStore::new();
    let lease = |term, unsettled| Lease { term, unsettled };
    claim(&store, 1, lease(Duration::MAX, Duration::MAX)).await.unwrap();
    claim(&store, 2, lease(SECOND, Duration::MAX)).await.unwrap();
    claim(&store, 3, lease(Duration::from_nanos(1), 9 * SECOND)).await.unwrap();
    claim(&store, 4, lease(Duration::ZERO, 9 * SECOND)).await.unwrap();
    claim(&store, 5, lease(Duration::ZERO, Duration::ZERO)).await.unwrap();
    settle(&store, 6, Duration::MAX).await;
    settle(&store, 7, Duration::ZERO).await;
    assert_eq!(state(&store, 3).await, Some(State::InFlight { lease_left: Duration::from_nanos(1) }));
    assert_eq!(state(&store, 4).await, Some(State::Abandoned { since: Duration::ZERO }));
    assert_eq!(state(&store, 5).await, None);
    assert_eq!(state(&store, 7).await, None);
    advance(Duration::from_nanos(1_000_000)).await;
    assert_eq!(state(&store, 3).await, Some(State::Abandoned { since: Duration::from_nanos(999_999) }));
    advance(100 * 365 * 86_400 * SECOND).await;
    // A claim may have removed one of the four that are over already.
    let over = store.len() - 3;
    assert_eq!(store.purge(usize::MAX).await.unwrap(), over);
    assert_eq!(store.len(), 3);
    assert!(matches!(state(&store, 1).await, Some(State::InFlight { .. })));
    assert!(matches!(state(&store, 2).await, Some(State::Abandoned { .. })));
    assert!(matches!(state(&store, 6).await, Some(State::Completed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_records_and_nothing_else() {
    let store = MemoryStore::new().max_records(3);
    let abandoned = claim(&store, 1, Lease { term: SECOND, ..LEASE }).await.unwrap();
    let live = claim(&store, 2, LEASE).await.unwrap();
    settle(&store, 3, 50 * SECOND).await;
    advance(SECOND).await;
    assert_eq!(claim(&store, 4, LEASE).await, None);
    assert_eq!(state(&store, 4).await, None);
    let takeover = new_claim(LEASE).replacing(abandoned);
    assert!(matches!(store.claim(&id(1), &takeover).await.unwrap(), Claim::Acquired { attempt: 2 }));
    assert!(matches!(store.claim(&id(3), &new_claim(LEASE)).await.unwrap(), Claim::Existing(_)));
    assert_eq!(store.renew(&id(2), live, LEASE).await.unwrap(), Fenced::Applied);
    complete(&store, 2, live, 50 * SECOND).await;
    assert_eq!(store.release(&id(1), takeover.token).await.unwrap(), Fenced::Applied);
    claim(&store, 4, LEASE).await.unwrap();
    assert_eq!(claim(&store, 5, LEASE).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_makes_room_of_expired_records_wherever_they_are() {
    let store = MemoryStore::new().max_records(500);
    for number in 0..499 {
        settle(&store, number, 20 * SECOND).await;
    }
    settle(&store, 499, 10 * SECOND).await;
    advance(10 * SECOND).await;
    // One record in one of many shards has expired: there is room for exactly one.
    claim(&store, 1000, LEASE).await.unwrap();
    assert_eq!(claim(&store, 1001, LEASE).await, None);
    assert_eq!(store.len(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_expired_record_itself_finds_room() {
    let store = MemoryStore::new().max_records(1);
    for round in 0..5 {
        settle(&store, 1, SECOND).await;
        assert_eq!(claim(&store, 2, LEASE).await, None, "round {round}");
        advance(SECOND).await;
    }
}

#[tokio::test]
async fn bytes_are_bounded_but_an_answer_is_never_lost() {
    let record = MemoryStore::RECORD_OVERHEAD + "tenant".len() + "key-1".len();
    let store = MemoryStore::new().max_bytes(2 * record);
    let token = claim(&store, 1, LEASE).await.unwrap();
    claim(&store, 2, LEASE).await.unwrap();
    assert_eq!(store.bytes(), 2 * record);
    assert_eq!(claim(&store, 3, LEASE).await, None);
    complete(&store, 1, token, SECOND).await;
    assert_eq!(state(&store, 1).await, Some(State::Completed(response(100))));
    assert_eq!(store.bytes(), 2 * record + response(100).as_encoded().len());
}

#[tokio::test(start_paused = true)]
async fn eviction_forgets_the_completed_record_that_expires_first() {
    let store = MemoryStore::new().max_records(4).when_full(WhenFull::EvictOldestCompleted);
    settle(&store, 1, 30 * SECOND).await;
    settle(&store, 2, 10 * SECOND).await;
    settle(&store, 3, Duration::MAX).await;
    settle(&store, 4, 20 * SECOND).await;
    for (new, forgotten) in [(5, 2), (6, 4), (7, 1), (8, 3)] {
        claim(&store, new, LEASE).await.unwrap();
        assert_eq!(state(&store, forgotten).await, None);
        assert_eq!(store.len(), 4);
    }
    assert_eq!(claim(&store, 9, LEASE).await, None);
}

#[tokio::test(start_paused = true)]
async fn eviction_spares_what_is_in_flight_or_abandoned() {
    let store = MemoryStore::new().max_records(2).when_full(WhenFull::EvictOldestCompleted);
    claim(&store, 1, Lease { term: SECOND, ..LEASE }).await.unwrap();
    claim(&store, 2, LEASE).await.unwrap();
    advance(SECOND).await;
    assert_eq!(claim(&store, 3, LEASE).await, None);
    assert!(matches!(state(&store, 1).await, Some(State::Abandoned { .. })));
    assert!(matches!(state(&store, 2).await, Some(State::InFlight { .. })));
}

#[tokio::test(start_paused = true)]
async fn eviction_takes_expired_records_before_living_ones() {
    let store = MemoryStore::new().max_records(2).when_full(WhenFull::EvictOldestCompleted);
    settle(&store, 1, 500 * SECOND).await;
    claim(&store, 2, LEASE).await.unwrap();
    advance(LEASE.term + LEASE.unsettled).await;
    claim(&store, 3, LEASE).await.unwrap();
    assert!(matches!(state(&store, 1).await, Some(State::Completed(_))));
}

#[tokio::test]
async fn a_record_larger_than_the_store_evicts_nothing() {
    let store = MemoryStore::new().max_bytes(4096).when_full(WhenFull::EvictOldestCompleted);
    settle(&store, 1, 50 * SECOND).await;
    let large = RecordId::new(Scope::new("x".repeat(4096)), IdempotencyKey::new("key").unwrap());
    assert!(store.claim(&large, &new_claim(LEASE)).await.unwrap_err().is_full());
    assert!(matches!(state(&store, 1).await, Some(State::Completed(_))));
}

#[tokio::test]
async fn eviction_makes_room_for_bytes_too() {
    let store = MemoryStore::new().max_bytes(4096).when_full(WhenFull::EvictOldestCompleted);
    for number in 0..100 {
        settle(&store, number, (50 + number as u32) * SECOND).await;
    }
    assert!(store.len() > 5 && store.bytes() <= 4096 + response(100).as_encoded().len(), "{store:?}");
    assert!(matches!(state(&store, 99).await, Some(State::Completed(_))));
    assert_eq!(state(&store, 0).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_purge_removes_exactly_what_is_over_up_to_its_limit() {
    let store = MemoryStore::new();
    for number in 0..1000 {
        settle(&store, number, if number < 900 { SECOND } else { 50 * SECOND }).await;
    }
    for number in 1000..1010 {
        claim(&store, number, LEASE).await.unwrap();
    }
    assert_eq!(store.purge(usize::MAX).await.unwrap(), 0);
    advance(SECOND).await;
    assert_eq!(store.purge(0).await.unwrap(), 0);
    assert_eq!(store.purge(7).await.unwrap(), 7);
    assert_eq!(store.len(), 1003);
    assert_eq!(store.purge(893).await.unwrap(), 893);
    assert_eq!(store.purge(100).await.unwrap(), 0);
    assert_eq!(store.len(), 110);
    advance(LEASE.term).await;
    assert_eq!(store.purge(usize::MAX).await.unwrap(), 0, "abandoned records are kept for their unsettled term");
    advance(LEASE.unsettled).await;
    assert_eq!(store.purge(usize::MAX).await.unwrap(), 110);
    assert_eq!((store.len(), store.bytes()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_tasks_exactly_one_acquires_each_key() {
    let (store, barrier, won) = (Arc::new(MemoryStore::new()), Arc::new(Barrier::new(64)), Arc::default());
    let won: Arc<AtomicUsize> = won;
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (store, barrier, won) = (Arc::clone(&store), Arc::clone(&barrier), Arc::clone(&won));
        tasks.spawn(async move {
            for round in 0..500 {
                barrier.wait().await;
                let claim = new_claim(LEASE);
                if let Claim::Acquired { attempt } = store.claim(&id(round), &claim).await.unwrap() {
                    assert_eq!(attempt, 1);
                    won.fetch_add(1, Ordering::Relaxed);
                    complete(&store, round, claim.token, 50 * SECOND).await;
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(won.load(Ordering::Relaxed), 500);
    assert_eq!(store.len(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_limit_holds_and_eviction_goes_on_under_concurrency() {
    let store = Arc::new(MemoryStore::new().max_records(100).when_full(WhenFull::EvictOldestCompleted));
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for round in 0..500 {
                let number = task * 1000 + round;
                // At most 16 records are in flight, so that there is always something to evict.
                let token = claim(&store, number, LEASE).await.expect("room is made");
                assert!(store.len() <= 100);
                complete(&store, number, token, 50 * SECOND).await;
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(store.len(), 100);
}

#[test]
fn the_store_works_outside_of_a_runtime() {
    let store = MemoryStore::new();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let (id, claim) = (id(1), new_claim(LEASE));
    let outcome = store.claim(&id, &claim).as_mut().poll(&mut context);
    assert!(matches!(outcome, std::task::Poll::Ready(Ok(Claim::Acquired { attempt: 1 }))));
}

#[test]
fn limits_that_make_no_sense_are_refused_when_they_are_set() {
    for nonsense in [
        catch_unwind(|| drop(MemoryStore::new().max_records(0))),
        catch_unwind(|| drop(MemoryStore::new().max_bytes(0))),
        catch_unwind(|| drop(MemoryStore::new().max_bytes(MemoryStore::RECORD_OVERHEAD))),
    ] {
        let message = nonsense.unwrap_err();
        let text = message.downcast_ref::<String>().cloned();
        let text = text.or_else(|| message.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap();
        assert!(text.starts_with("a memory store"), "{text}");
    }
}

#[tokio::test]
async fn a_limit_changed_later_loses_no_record() {
    let store = MemoryStore::new().max_records(10);
    settle(&store, 1, 50 * SECOND).await;
    let store = store.max_records(5_000_000).max_bytes(1 << 20);
    assert!(matches!(state(&store, 1).await, Some(State::Completed(_))));
    assert_eq!(store.len(), 1);
}
