//! A store wrapper that injects faults.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, Store, StoreError, Token},
};

/// Wraps a store, and makes chosen calls fail, hang or take long.
///
/// What happens is planned per operation while the store is in use: [`fail_next`](Self::fail_next) for single calls,
/// [`fail_all`](Self::fail_all) until [`heal`](Self::heal). Share it as `Arc<Faulty<S>>`, which is a store too. An
/// injected failure is [`StoreError::is_unavailable`].
///
/// ```
/// # use tower_idempotency::{Fingerprint, IdempotencyKey, MemoryStore, Scope, Store};
/// # use tower_idempotency::store::{Lease, NewClaim, RecordId, Token};
/// use tower_idempotency::testing::{Fault, Faulty, Operation};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let id = RecordId::new(Scope::new(""), IdempotencyKey::new("k").unwrap());
/// # let lease = Lease { term: std::time::Duration::from_secs(9), unsettled: std::time::Duration::from_secs(9) };
/// # let claim = NewClaim::new(Token::random(), Fingerprint::from_bytes([0; 32]), lease);
/// let store = Faulty::new(MemoryStore::new());
/// store.fail_next(Operation::Claim, Fault::AfterEffect);
///
/// assert!(store.claim(&id, &claim).await.unwrap_err().is_unavailable());
/// assert_eq!(store.lookup(&id).await.unwrap().unwrap().token, claim.token);
/// assert_eq!(store.calls(Operation::Claim), 1);
/// # }
/// ```
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    plans: Mutex<[Plan; 6]>,
}

/// The operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Store::claim`].
    Claim,
    /// [`Store::renew`].
    Renew,
    /// [`Store::complete`].
    Complete,
    /// [`Store::release`].
    Release,
    /// [`Store::lookup`].
    Lookup,
    /// [`Store::purge`].
    Purge,
}

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails, and nothing was done.
    BeforeEffect,
    /// The call is done, but its answer gets lost: the caller sees a failure.
    AfterEffect,
    /// The call is done after this time.
    DelayBefore(Duration),
    /// The call is done, and its answer arrives after this time.
    DelayAfter(Duration),
    /// The call never ends, and nothing is done.
    HangBefore,
    /// The call is done, but never ends.
    HangAfter,
}

#[derive(Debug, Default)]
struct Plan {
    calls: usize,
    next: VecDeque<Fault>,
    all: Option<Fault>,
}

impl<S> Faulty<S> {
    /// Wraps a store; nothing fails yet.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, plans: Mutex::default() }
    }

    /// Makes the next call of the operation go wrong. Faults that were planned before come first, one a call.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.plan(operation, |plan| plan.next.push_back(fault));
    }

    /// Makes every call of the operation go wrong, from the next one on that has no fault of its own.
    pub fn fail_all(&self, operation: Operation, fault: Fault) {
        self.plan(operation, |plan| plan.all = Some(fault));
    }

    /// Forgets all planned faults. Calls that hang already go on hanging.
    pub fn heal(&self) {
        for plan in self.plans().iter_mut() {
            plan.next.clear();
            plan.all = None;
        }
    }

    /// Returns how many calls of the operation began, those that went wrong included.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> usize {
        self.plan(operation, |plan| plan.calls)
    }

    /// Returns the wrapped store, past all faults.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    async fn run<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let fault = self.plan(operation, |plan| {
            plan.calls += 1;
            plan.next.pop_front().or(plan.all)
        });
        match fault {
            Some(Fault::BeforeEffect) => return Err(StoreError::unavailable("an injected fault, before the effect")),
            Some(Fault::HangBefore) => pending().await,
            Some(Fault::DelayBefore(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        let outcome = call.await;
        match fault {
            Some(Fault::AfterEffect) => return Err(StoreError::unavailable("an injected fault, after the effect")),
            Some(Fault::HangAfter) => pending().await,
            Some(Fault::DelayAfter(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        outcome
    }

    fn plan<T>(&self, operation: Operation, change: impl FnOnce(&mut Plan) -> T) -> T {
        change(&mut self.plans()[operation as usize])
    }

    fn plans(&self) -> MutexGuard<'_, [Plan; 6]> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Faulty<S> {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.run(Operation::Claim, self.inner.claim(id, claim)).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        self.run(Operation::Renew, self.inner.renew(id, token, lease)).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.run(Operation::Complete, self.inner.complete(id, token, response, retention)).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.run(Operation::Release, self.inner.release(id, token)).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.run(Operation::Lookup, self.inner.lookup(id)).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.run(Operation::Purge, self.inner.purge(limit)).await
    }
}
