//! A store whose calls are counted and can be held up.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::watch;
use tower_idempotency::{
    MemoryStore, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, StoreError, Token},
};

use super::eventually;

/// A memory store that a test watches.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) inner: Arc<MemoryStore>,
    watches: [Watch; 5],
    renewed: Mutex<Vec<RecordId>>,
    damaged: AtomicBool,
}

#[derive(Debug, Default)]
struct Watch {
    calls: AtomicUsize,
    done: AtomicUsize,
    all: watch::Sender<Gate>,
    next: Mutex<Option<watch::Receiver<Gate>>>,
}

/// The calls that are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    Claim,
    Renew,
    Complete,
    Release,
    Lookup,
}

/// Where calls wait until the gate is open again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    #[default]
    Open,
    BeforeEffect,
    AfterEffect,
}

impl Watched {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Holds up all calls of a kind, or lets them go.
    pub(crate) fn set(&self, call: Call, gate: Gate) {
        self.watches[call as usize].all.send_replace(gate);
    }

    /// Makes all records unreadable.
    pub(crate) fn damage(&self) {
        self.damaged.store(true, Ordering::SeqCst);
    }

    /// Holds up the next call of a kind alone, until the result opens its gate or is dropped.
    pub(crate) fn hold_next(&self, call: Call, gate: Gate) -> watch::Sender<Gate> {
        let (sender, receiver) = watch::channel(gate);
        *self.watches[call as usize].next.lock().unwrap() = Some(receiver);
        sender
    }

    /// How many calls of a kind have begun.
    pub(crate) fn calls(&self, call: Call) -> usize {
        self.watches[call as usize].calls.load(Ordering::SeqCst)
    }

    /// Tells whether no call of a kind is under way.
    pub(crate) fn idle(&self, call: Call) -> bool {
        let watch = &self.watches[call as usize];
        watch.done.load(Ordering::SeqCst) == watch.calls.load(Ordering::SeqCst)
    }

    /// Waits until so many calls of a kind have begun.
    pub(crate) async fn reach(&self, call: Call, calls: usize) {
        eventually(|| self.calls(call) >= calls).await;
    }

    /// Waits until so many calls of a kind have had their effect.
    pub(crate) async fn reach_end(&self, call: Call, calls: usize) {
        eventually(|| self.watches[call as usize].done.load(Ordering::SeqCst) >= calls).await;
    }

    /// How many renewals of a record have had their effect.
    pub(crate) fn renewals(&self, id: &RecordId) -> usize {
        self.renewed.lock().unwrap().iter().filter(|renewed| *renewed == id).count()
    }

    async fn pass<T>(&self, call: Call, effect: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let watch = &self.watches[call as usize];
        let next = watch.next.lock().unwrap().take();
        let mut gate = next.unwrap_or_else(|| watch.all.subscribe());
        watch.calls.fetch_add(1, Ordering::SeqCst);
        // A gate whose sender is gone is open.
        let _ = gate.wait_for(|gate| *gate != Gate::BeforeEffect).await;
        let damaged = self.damaged.load(Ordering::SeqCst);
        let outcome = if damaged { Err(StoreError::damaged("a bit flipped")) } else { effect.await };
        let _ = gate.wait_for(|gate| *gate != Gate::AfterEffect).await;
        watch.done.fetch_add(1, Ordering::SeqCst);
        outcome
    }
}

#[async_trait]
impl Store for Watched {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.pass(Call::Claim, self.inner.claim(id, claim)).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        let renewed = async {
            let renewed = self.inner.renew(id, token, lease).await;
            self.renewed.lock().unwrap().push(id.clone());
            renewed
        };
        self.pass(Call::Renew, renewed).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.pass(Call::Complete, self.inner.complete(id, token, response, retention)).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.pass(Call::Release, self.inner.release(id, token)).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.pass(Call::Lookup, self.inner.lookup(id)).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.inner.purge(limit).await
    }
}
