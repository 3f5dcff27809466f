//! What a record takes in a `MemoryStore`, measured at the allocator, and that it is given back.

use std::{alloc::System, time::Duration};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tower_idempotency::{
    Fingerprint, IdempotencyKey, MemoryStore, Scope, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, RecordId, Token},
};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RECORDS: usize = 100_000;
const LEASE: Lease = Lease { term: Duration::from_secs(30), unsettled: Duration::from_secs(60) };
const RETENTION: Duration = Duration::from_secs(3600);

fn held() -> usize {
    let stats = HEAP.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn id(scope: &Scope, number: usize) -> RecordId {
    let key = format!("{number:036}");
    RecordId::new(scope.clone(), IdempotencyKey::new(&key).unwrap())
}

/// Claims as attempt 1 and completes with a response of its own, as the layer does.
async fn settle(store: &MemoryStore, id: &RecordId) -> usize {
    let claim = NewClaim::new(Token::random(), Fingerprint::from_bytes([1; 32]), LEASE);
    assert!(matches!(store.claim(id, &claim).await.unwrap(), Claim::Acquired { attempt: 1 }));
    let response = StoredResponse::of(&http::Response::new(vec![b'x'; 200].into()));
    assert_eq!(store.complete(id, claim.token, &response, RETENTION).await.unwrap(), Fenced::Applied);
    response.as_encoded().len()
}

// One test, since the heap is one.
#[tokio::test(start_paused = true)]
async fn a_record_takes_at_most_350_bytes_of_overhead_and_gives_them_back() {
    let scope = Scope::new("tenant");
    for own_scopes in [false, true] {
        let store = MemoryStore::new();
        let before = held();
        let (mut content, mut most) = (0, 0);
        for number in 0..RECORDS {
            let scope = if own_scopes { Scope::new(format!("tenant-{number:08}")) } else { scope.clone() };
            let id = id(&scope, number);
            content += 36 + settle(&store, &id).await + if own_scopes { scope.as_str().len() } else { 0 };
            // The overhead holds at every fill level, not only at the end.
            if number >= 20_000 && number.is_multiple_of(1000) {
                let overhead = (held() - before).saturating_sub(content) / (number + 1);
                most = most.max(overhead);
            }
        }
        let full = held() - before;
        println!("overhead: {} bytes a record, {most} at most", (full - content) / RECORDS);
        assert!(most <= 350.min(MemoryStore::RECORD_OVERHEAD), "{most} bytes of overhead a record");

        tokio::time::advance(RETENTION).await;
        let mut activity = 0;
        if own_scopes {
            assert_eq!(store.purge(usize::MAX).await.unwrap(), RECORDS);
        } else {
            // Nobody purges: claims alone give the memory back, of keys that are released again.
            while !store.is_empty() && activity < RECORDS {
                let (id, token) = (id(&scope, RECORDS + activity), Token::random());
                let claim = NewClaim::new(token, Fingerprint::from_bytes([1; 32]), LEASE);
                assert!(matches!(store.claim(&id, &claim).await.unwrap(), Claim::Acquired { attempt: 1 }));
                assert_eq!(store.release(&id, token).await.unwrap(), Fenced::Applied);
                activity += 1;
            }
        }
        let left = held() - before;
        println!("left after {activity} claims: {left} of {full} bytes");
        assert!(store.is_empty() && store.bytes() == 0, "{store:?}");
        assert!(left * 10 < full, "{left} of {full} bytes are left");
    }
}
