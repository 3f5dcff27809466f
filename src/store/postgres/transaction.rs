//! The transaction of one run: begun by the handler's first use, ended by the layer.

use std::{
    error::Error as StdError,
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::timeout,
};

use super::{
    check_length,
    execute::fetch,
    failure,
    table::Table,
    writes::{CompleteCall, completion},
};
use crate::{
    StoredResponse,
    store::{Committed, Fenced, RecordId, StoreError, StoreTransaction, Token},
};

/// How long a rollback is waited for. The connection is left to the pool after it, which closes it if it is broken.
const ROLLBACK: Duration = Duration::from_secs(2);

/// How transactions of handlers begin.
#[derive(Debug, Clone)]
pub(super) struct Begin {
    pub(super) pool: PgPool,
    pub(super) isolation: Option<Isolation>,
}

impl Begin {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, isolation: None }
    }

    async fn begin(&self) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        match self.isolation {
            None => self.pool.begin().await,
            Some(level) => self.pool.begin_with(level.begin()).await,
        }
    }
}

/// An isolation level of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// All statements see what was committed before the first one.
    RepeatableRead,
    /// As if transactions ran one after the other.
    Serializable,
}

impl Isolation {
    fn begin(self) -> &'static str {
        match self {
            Self::ReadCommitted => "begin isolation level read committed",
            Self::RepeatableRead => "begin isolation level repeatable read",
            Self::Serializable => "begin isolation level serializable",
        }
    }
}

/// The transaction of a guarded run, which commits together with the answer of the key, or not at all.
///
/// With [`IdempotencyLayer::transactional`](crate::IdempotencyLayer::transactional) it is in the extensions of each guarded
/// request that carries a key; with the feature `axum` it is an extractor too. Clones are the same transaction. It uses no
/// connection before [`begin`](Self::begin).
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::http::StatusCode;
/// use tower_idempotency::{PostgresTransaction, TransactionError};
///
/// async fn create_charge(transaction: PostgresTransaction, body: String) -> Result<(StatusCode, String), TransactionError> {
///     let mut tx = transaction.begin().await?;
///     sqlx::query("insert into charges (what) values ($1)").bind(&body).execute(&mut *tx).await?;
///     Ok((StatusCode::CREATED, body))
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(create_charge));
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresTransaction {
    run: Arc<Shared>,
}

struct Shared {
    begin: Begin,
    /// Set before the layer ends the transaction: what is begun or given back later is rolled back.
    ended: AtomicBool,
    slot: Arc<Mutex<Option<Transaction<'static, Postgres>>>>,
}

impl PostgresTransaction {
    /// Takes the transaction, and begins it if this is its first use. Waits while another guard of it is alive.
    ///
    /// The handler neither commits it nor rolls it back: the layer does. A transaction within it
    /// ([`sqlx::Connection::begin`] on the guard) is a savepoint.
    ///
    /// # Errors
    ///
    /// Fails if no connection can be had, or if the run is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transaction as it was.
    pub async fn begin(&self) -> Result<TransactionGuard, TransactionError> {
        let mut slot = Arc::clone(&self.run.slot).lock_owned().await;
        if self.run.ended.load(Ordering::SeqCst) {
            return Err(TransactionError(sqlx::Error::PoolClosed));
        }
        let transaction = match slot.take() {
            Some(transaction) => transaction,
            None => self.run.begin.begin().await?,
        };
        Ok(TransactionGuard { transaction: Some(transaction), slot, run: Arc::clone(&self.run) })
    }
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction").field("ended", &self.run.ended).finish_non_exhaustive()
    }
}

/// The transaction in use: a [`PgConnection`], for `&mut *guard` in queries. Dropped, it gives the transaction back to its run.
pub struct TransactionGuard {
    /// There until the guard is dropped.
    transaction: Option<Transaction<'static, Postgres>>,
    slot: OwnedMutexGuard<Option<Transaction<'static, Postgres>>>,
    run: Arc<Shared>,
}

const TAKEN: &str = "the transaction is there until the guard is dropped";

impl Deref for TransactionGuard {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.transaction.as_deref().expect(TAKEN)
    }
}

impl DerefMut for TransactionGuard {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.transaction.as_deref_mut().expect(TAKEN)
    }
}

impl Drop for TransactionGuard {
    fn drop(&mut self) {
        // After the end of the run it is dropped here, which rolls it back.
        *self.slot = self.transaction.take().filter(|_| !self.run.ended.load(Ordering::SeqCst));
    }
}

impl fmt::Debug for TransactionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransactionGuard")
    }
}

/// The layer's side of a [`PostgresTransaction`].
pub(super) struct Run {
    shared: Arc<Shared>,
    table: Table,
    id: RecordId,
    token: Token,
}

impl Run {
    pub(super) fn new(begin: Begin, table: Table, id: RecordId, token: Token) -> (PostgresTransaction, Self) {
        let shared = Arc::new(Shared { begin, ended: AtomicBool::new(false), slot: Arc::default() });
        (PostgresTransaction { run: Arc::clone(&shared) }, Self { shared, table, id, token })
    }

    /// Writes the completion into the transaction.
    async fn complete(
        &self,
        connection: &mut PgConnection,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        let (id, token, response) = (self.id.clone(), self.token, response.clone());
        let call = [CompleteCall { id, token, response, retention }];
        // Not sent again: after an error the transaction is of no use.
        let statement = &self.table.statements.complete_in_transaction;
        let rows = fetch(connection, self.table.protocol, statement, &completion(&call)).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        Ok(if rows.is_empty() { Fenced::Lost } else { Fenced::Applied })
    }

    fn failed(&self, error: sqlx::Error) -> StoreError {
        StoreError::unavailable(failure::shared(&self.table.schema.name(), error))
    }
}

#[async_trait]
impl StoreTransaction for Run {
    async fn commit(&mut self, response: &StoredResponse, retention: Duration) -> Result<Committed, StoreError> {
        // Before anything else, so that a refusal leaves the transaction usable.
        check_length(response)?;
        self.shared.ended.store(true, Ordering::SeqCst);
        let Ok(mut slot) = self.shared.slot.try_lock() else {
            return Err(StoreError::unavailable("the handler has answered, and something still holds its transaction"));
        };
        let Some(mut transaction) = slot.take() else { return Ok(Committed::Untouched) };
        drop(slot);
        let fenced = match self.complete(&mut transaction, response, retention).await {
            Ok(fenced) => fenced,
            Err(error) => {
                roll_back(transaction).await;
                return Err(error);
            }
        };
        if fenced == Fenced::Lost {
            roll_back(transaction).await;
            return Ok(Committed::Lost);
        }
        transaction.commit().await.map_err(|error| self.failed(error))?;
        Ok(Committed::Applied)
    }

    async fn rollback(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // If something holds it, it is rolled back when that lets go.
        let transaction = self.shared.slot.try_lock().ok().and_then(|mut slot| slot.take());
        if let Some(transaction) = transaction {
            roll_back(transaction).await;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let transaction = self.shared.slot.try_lock().ok().and_then(|mut slot| slot.take());
        drop(transaction);
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

async fn roll_back(transaction: Transaction<'static, Postgres>) {
    // Not done in time or not at all: the transaction is dropped, and the pool looks after its connection.
    let _ = timeout(ROLLBACK, transaction.rollback()).await;
}

/// A handler's transaction failed.
///
/// For handlers that answer with it (feature `axum`): what a repetition may heal, such as a serialization failure, a
/// deadlock, a broken connection or an exhausted pool, is a 503 with `Retry-After`, so that the layer frees the key;
/// anything else is a 500. Both roll the transaction back.
#[derive(Debug)]
pub struct TransactionError(sqlx::Error);

impl TransactionError {
    /// Tells whether the same request may succeed when it is repeated.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        failure::is_transient(&self.0)
    }
}

impl From<sqlx::Error> for TransactionError {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for TransactionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the transaction failed")
    }
}

impl StdError for TransactionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}
