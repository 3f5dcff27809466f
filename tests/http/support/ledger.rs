//! A store whose transactions take entries of a handler, which stand only once they are committed.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use http::Extensions;
use tower_idempotency::{
    MemoryStore, Store, StoredResponse,
    store::{
        Claim, Committed, Fenced, Lease, NewClaim, Record, RecordId, StoreError, StoreTransaction, Token,
        TransactionalStore,
    },
    testing::Faulty,
};

/// Records and entries, and the faults that are planned for the next calls of a transaction. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    pub(crate) records: Arc<Faulty<MemoryStore>>,
    entries: Arc<Mutex<Vec<String>>>,
    events: Arc<Mutex<Vec<&'static str>>>,
    faults: Arc<Mutex<VecDeque<Trouble>>>,
}

/// What goes wrong with a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Prepare,
    FailBefore,
    FailAfter,
    HangBefore,
    HangAfter,
    PanicBefore,
    PanicAfter,
    Reject,
    HangInRollback,
    PanicInRollback,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            records: Arc::new(Faulty::new(MemoryStore::new())),
            entries: Arc::default(),
            events: Arc::default(),
            faults: Arc::default(),
        }
    }

    /// Plans what goes wrong next.
    pub(crate) fn plan(&self, trouble: Trouble) {
        self.faults.lock().unwrap().push_back(trouble);
    }

    /// What stands.
    pub(crate) fn entries(&self) -> Vec<String> {
        self.entries.lock().unwrap().clone()
    }

    /// How transactions and claims ended, since it was asked last.
    pub(crate) fn events(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    fn note(&self, event: &'static str) {
        self.events.lock().unwrap().push(event);
    }

    /// Takes the next fault, if it is one of these.
    fn take(&self, of: &[Trouble]) -> Option<Trouble> {
        let mut faults = self.faults.lock().unwrap();
        let next = faults.front().copied().filter(|next| of.contains(next))?;
        faults.pop_front();
        Some(next)
    }
}

/// What a handler writes its entries with.
#[derive(Debug, Clone)]
pub(crate) struct Pen(Arc<Mutex<Page>>);

#[derive(Debug, Default)]
struct Page {
    entries: Vec<String>,
    is_over: bool,
}

impl Pen {
    pub(crate) fn write(&self, entry: impl Into<String>) {
        let mut page = self.page();
        assert!(!page.is_over, "the transaction is over");
        page.entries.push(entry.into());
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.0.lock().unwrap()
    }

    fn end(&self) -> Vec<String> {
        let mut page = self.page();
        page.is_over = true;
        std::mem::take(&mut page.entries)
    }
}

/// A transaction of the ledger that is open.
#[derive(Debug)]
struct Open {
    ledger: Ledger,
    id: RecordId,
    token: Token,
    pen: Pen,
}

#[async_trait]
impl Store for Ledger {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.records.claim(id, claim).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        if lease.term.is_zero() {
            self.note("abandoned");
        }
        self.records.renew(id, token, lease).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.note("completed");
        self.records.complete(id, token, response, retention).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.note("released");
        self.records.release(id, token).await
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.records.lookup(id).await
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        self.records.purge(limit).await
    }
}

impl TransactionalStore for Ledger {
    fn prepare(&self, id: &RecordId, token: Token, extensions: &mut Extensions) -> Box<dyn StoreTransaction> {
        assert_eq!(self.take(&[Trouble::Prepare]), None, "as planned");
        let pen = Pen(Arc::default());
        extensions.insert(pen.clone());
        Box::new(Open { ledger: self.clone(), id: id.clone(), token, pen })
    }
}

#[async_trait]
impl StoreTransaction for Open {
    async fn commit(&mut self, response: &StoredResponse, retention: Duration) -> Result<Committed, StoreError> {
        use Trouble::{FailAfter, FailBefore, HangAfter, HangBefore, PanicAfter, PanicBefore, Reject};
        if self.pen.page().entries.is_empty() {
            self.pen.end();
            return Ok(Committed::Untouched);
        }
        let trouble =
            self.ledger.take(&[FailBefore, FailAfter, HangBefore, HangAfter, PanicBefore, PanicAfter, Reject]);
        match trouble {
            Some(FailBefore) => return Err(StoreError::unavailable("the connection is closed")),
            Some(PanicBefore) => panic!("the transaction panicked before its effect"),
            Some(Reject) => return Err(StoreError::rejected("too long")),
            Some(HangBefore) => pending().await,
            _ => {}
        }
        let entries = self.pen.end();
        match self.ledger.records.inner().complete(&self.id, self.token, response, retention).await? {
            Fenced::Lost => return Ok(Committed::Lost),
            Fenced::Applied => self.ledger.entries.lock().unwrap().extend(entries),
        }
        self.ledger.note("committed");
        match trouble {
            Some(FailAfter) => Err(StoreError::unavailable("the connection is lost")),
            Some(PanicAfter) => panic!("the transaction panicked after its effect"),
            Some(HangAfter) => pending().await,
            _ => Ok(Committed::Applied),
        }
    }

    async fn rollback(&mut self) {
        match self.ledger.take(&[Trouble::HangInRollback, Trouble::PanicInRollback]) {
            Some(Trouble::HangInRollback) => pending().await,
            Some(_) => panic!("the transaction panicked in its rollback"),
            None => self.undo(),
        }
    }
}

impl Open {
    fn undo(&self) {
        if !self.pen.end().is_empty() {
            self.ledger.note("rolled back");
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.undo();
    }
}
