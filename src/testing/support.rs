//! What the cases share: fresh names, waiting for a condition, many calls at once, and comparing records.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Barrier,
    task::Poll,
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::{
    Fingerprint, IdempotencyKey, Scope, StoredResponse,
    store::{Claim, Lease, NewClaim, Record, RecordId, State, Store, Token},
};

/// A lease that does not end while a case runs.
pub(super) const LONG: Lease = Lease { term: Duration::from_secs(1800), unsettled: Duration::from_secs(1800) };

/// A lease that ends at once, and leaves an abandoned record that stays while a case runs.
pub(super) const SHORT: Lease = Lease { term: Duration::from_millis(1), unsettled: Duration::from_secs(1800) };

/// A retention that does not end while a case runs.
pub(super) const RETENTION: Duration = Duration::from_secs(1800);

/// How long a case waits for what must come; generous, since a busy machine is no fault of the store.
const DEADLINE: Duration = Duration::from_secs(60);

/// A text that nobody used before.
pub(super) fn fresh() -> String {
    Uuid::new_v4().to_string()
}

pub(super) fn id(scope: impl Into<Scope>, key: &str) -> RecordId {
    RecordId::new(scope.into(), IdempotencyKey::new(key).expect("the kit uses valid keys"))
}

pub(super) fn fresh_id() -> RecordId {
    id(format!("kit-{}", fresh()), &fresh())
}

/// Makes a claim with a random token and fingerprint.
pub(super) fn new_claim(lease: Lease) -> NewClaim {
    let mut fingerprint = [0; 32];
    fingerprint[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    fingerprint[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    NewClaim::new(Token::random(), Fingerprint::from_bytes(fingerprint), lease)
}

pub(super) fn response(body: impl Into<Bytes>) -> StoredResponse {
    StoredResponse::of(&Response::new(body.into()))
}

/// Claims, and expects to acquire the given attempt.
#[track_caller]
pub(super) fn acquired(outcome: Claim, expected: u32) {
    match outcome {
        Claim::Acquired { attempt } => assert_eq!(attempt, expected, "the claim was acquired as a wrong attempt"),
        Claim::Existing(record) => {
            panic!("the claim should have been acquired, but this stands in its way: {record:?}")
        }
    }
}

#[track_caller]
pub(super) fn existing(outcome: Claim) -> Record {
    match outcome {
        Claim::Existing(record) => record,
        Claim::Acquired { attempt } => {
            panic!("the claim should have met a record, but was acquired, attempt {attempt}")
        }
    }
}

/// Makes a record in flight, and returns its token.
pub(super) async fn in_flight(store: &dyn Store, id: &RecordId) -> Token {
    let claim = new_claim(LONG);
    acquired(store.claim(id, &claim).await.expect("claim"), 1);
    claim.token
}

/// Makes an abandoned record, and returns its token.
pub(super) async fn abandoned(store: &dyn Store, id: &RecordId) -> Token {
    let claim = new_claim(SHORT);
    acquired(store.claim(id, &claim).await.expect("claim"), 1);
    until(store, id, "abandoned", is_abandoned).await;
    claim.token
}

pub(super) fn is_in_flight(record: Option<&Record>) -> bool {
    matches!(record, Some(Record { state: State::InFlight { .. }, .. }))
}

pub(super) fn is_abandoned(record: Option<&Record>) -> bool {
    matches!(record, Some(Record { state: State::Abandoned { .. }, .. }))
}

pub(super) async fn present(store: &dyn Store, id: &RecordId) -> Record {
    store.lookup(id).await.expect("lookup").expect("the record should be there")
}

/// Looks the record up until the condition holds.
pub(super) async fn until(store: &dyn Store, id: &RecordId, wanted: &str, holds: impl Fn(Option<&Record>) -> bool) {
    let waiting = Waiting::start();
    loop {
        let record = store.lookup(id).await.expect("lookup");
        if holds(record.as_ref()) {
            return;
        }
        waiting.for_what(wanted).await;
    }
}

/// Paces a loop that polls for a condition, and ends it with a panic when that takes too long.
pub(super) struct Waiting(Instant);

impl Waiting {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) async fn for_what(&self, wanted: &str) {
        assert!(self.0.elapsed() < DEADLINE, "after {DEADLINE:?} the record is still not {wanted}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Checks that nothing but time changed a record.
#[track_caller]
pub(super) fn assert_unchanged(before: &Record, after: &Record) {
    assert_eq!(before.token, after.token, "the token changed");
    assert_eq!(before.fingerprint, after.fingerprint, "the fingerprint changed");
    assert_eq!(before.attempt, after.attempt, "the attempt changed");
    match (&before.state, &after.state) {
        (State::InFlight { lease_left: before }, State::InFlight { lease_left: after }) => {
            assert!(after <= before, "the lease grew from {before:?} to {after:?}");
        }
        (State::Abandoned { since: before }, State::Abandoned { since: after }) => {
            assert!(after >= before, "the lease ended {before:?} ago, and later {after:?} ago");
        }
        (State::Completed(before), State::Completed(after)) => {
            assert_eq!(before.as_encoded(), after.as_encoded(), "the stored response changed");
        }
        (before, after) => panic!("the state changed from {before:?} to {after:?}"),
    }
}

/// Makes `8 * per_thread` calls at the same moment and returns all outcomes.
///
/// In a multi-threaded runtime eight threads start together; in another one the calls take turns in one task.
pub(super) async fn at_once<'a, F, T>(per_thread: usize, call: impl Fn() -> F + Sync) -> Vec<T>
where
    F: Future<Output = T> + Send + 'a,
    T: Send,
{
    const THREADS: usize = 8;
    let runtime = Handle::current();
    if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
        return together((0..THREADS * per_thread).map(|_| call()).collect()).await;
    }
    let barrier = Barrier::new(THREADS);
    let calls = || {
        let futures = (0..per_thread).map(|_| call()).collect();
        barrier.wait();
        runtime.block_on(together(futures))
    };
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(calls)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a call panicked")).collect()
        })
    })
}

/// Polls all futures until all are done.
async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut open: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done = Vec::new();
    poll_fn(move |cx| {
        open.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Ready(output) => {
                done.push(output);
                false
            }
            Poll::Pending => true,
        });
        if open.is_empty() { Poll::Ready(std::mem::take(&mut done)) } else { Poll::Pending }
    })
    .await
}

/// Polls a call at most `polls` times and then drops it; `None` if it was not done by then.
pub(super) async fn dropped_after<F: Future>(polls: usize, call: F) -> Option<F::Output> {
    let mut call = Box::pin(call);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match call.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
