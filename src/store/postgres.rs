//! Records in PostgreSQL: one table, shared by any number of instances.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Extensions;
use sqlx::PgPool;

use crate::{
    StoredResponse,
    store::{
        Claim, Fenced, Lease, NewClaim, Record, RecordId, Store, StoreError, StoreTransaction, Token,
        TransactionalStore, group::Lane,
    },
};

mod claims;
mod execute;
mod failure;
mod identifier;
mod record;
mod schema;
mod statements;
mod table;
mod transaction;
mod writes;

pub use identifier::InvalidIdentifier;
#[cfg(feature = "axum")]
pub use transaction::NoTransaction;
pub use transaction::{Isolation, PostgresTransaction, TransactionError, TransactionGuard};

use claims::{ClaimCall, Claims};
use execute::{Protocol, Value};
use identifier::Identifier;
use record::{Found, column, read};
use schema::{Checked, Schema};
use statements::Statements;
use table::{Table, identities, owned};
use transaction::{Begin, Run};
use writes::{CompleteCall, Completions, RenewCall, Renewals};

/// The longest stored response in bytes. A longer one is refused, and the layer keeps only that the request was done.
const LONGEST_RESPONSE: usize = 128 << 20;

/// Keeps records in a table of PostgreSQL 12 or newer, so that the promises hold across processes and crashes.
///
/// Clones share the pool and the groups: make one store for an application and clone it.
///
/// ```no_run
/// use axum::{Router, http::StatusCode, routing::post};
/// use sqlx::postgres::PgPoolOptions;
/// use tower_idempotency::{IdempotencyLayer, PostgresStore};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPoolOptions::new().max_connections(10).connect("postgres://localhost/shop").await?;
/// let store = PostgresStore::new(pool);
/// store.migrate().await?;
///
/// let app: Router = Router::new()
///     .route("/v1/charges", post(async || StatusCode::CREATED))
///     .route_layer(IdempotencyLayer::new(store));
/// # Ok(())
/// # }
/// ```
///
/// # Groups
///
/// Claims, completions and renewals that arrive while a statement of their kind is under way travel together in the next
/// one. So a store uses at most three connections for them, however many requests there are, and none while a handler
/// runs. An idle store adds no wait. At most 4,096 calls of a kind wait; more wait for room, and whoever waits longer than
/// the layer's [`store_timeout`](crate::IdempotencyLayer::store_timeout) is refused with 503.
///
/// # Operators
///
/// The table can be read: `scope`, `idempotency_key`, `status` (`STARTED` or `COMPLETED`), `attempt`, `response_status`,
/// `created_at`, `updated_at`, `lease_until`, `expires_at`. A scope with a NUL or a backslash is escaped by a backslash,
/// and one longer than 512 bytes is kept as its SHA-256 digest.
///
/// # Connections
///
/// Statements are sent prepared. Behind a pooler that keeps none, such as PgBouncer in transaction mode, set
/// [`without_prepared_statements`](Self::without_prepared_statements). No session state is used.
#[derive(Clone)]
pub struct PostgresStore {
    table: Table,
    begin: Begin,
    purge_time: Duration,
    lanes: Arc<Lanes>,
}

#[derive(Debug)]
struct Lanes {
    claims: Lane<Claims>,
    completions: Lane<Completions>,
    renewals: Lane<Renewals>,
}

impl Lanes {
    fn new(table: &Table) -> Arc<Self> {
        Arc::new(Self {
            claims: Lane::new(Claims(table.clone())),
            completions: Lane::new(Completions(table.clone())),
            renewals: Lane::new(Renewals(table.clone())),
        })
    }
}

impl PostgresStore {
    /// Keeps records in the table `idempotency_keys` on the search path. Opens no connection.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let schema = Schema::new(None, Identifier::default_table());
        let table = Table {
            statements: Statements::new(&schema.name()),
            schema,
            protocol: Protocol::Prepared,
            statement_time: Duration::from_secs(5),
            checked: Checked::default(),
            pool: pool.clone(),
        };
        let lanes = Lanes::new(&table);
        Self { table, begin: Begin::new(pool), purge_time: Duration::from_secs(1), lanes }
    }

    /// Sets the name of the table. Default: `idempotency_keys`.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentifier`] if the name would need quotes, or is longer than 48 bytes.
    pub fn table(self, name: &str) -> Result<Self, InvalidIdentifier> {
        let table = Identifier::new(name)?;
        Ok(self.change(|own| own.schema = own.schema.clone().with_table(table)))
    }

    /// Sets the schema of the table. Default: none, so that the search path of the connection decides.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentifier`] if the name would need quotes, or is longer than 48 bytes.
    pub fn schema(self, name: &str) -> Result<Self, InvalidIdentifier> {
        let schema = Identifier::new(name)?;
        Ok(self.change(|own| own.schema = own.schema.clone().with_schema(schema)))
    }

    /// Sends statements as text, each in one message and without a prepared statement, for poolers such as PgBouncer in
    /// transaction mode. Default: prepared statements, which are faster.
    ///
    /// It is about the store's own statements. Those of a handler are the application's: sqlx prepares them, unless they
    /// are sent by `sqlx::raw_sql`. Within a transaction that works behind a pooler as well, if the pool is made with
    /// `PgConnectOptions::statement_cache_capacity(0)`.
    #[must_use]
    pub fn without_prepared_statements(self) -> Self {
        self.change(|own| own.protocol = Protocol::Text)
    }

    /// Sets how long a statement for a group may take; its connection is closed then. Default: 5 s.
    ///
    /// # Panics
    ///
    /// Panics if the time is zero.
    #[must_use]
    #[track_caller]
    pub fn statement_time(self, longest: Duration) -> Self {
        assert!(!longest.is_zero(), "a statement needs some time");
        self.change(|own| own.statement_time = longest)
    }

    /// Sets how long a batch of a purge may take, at least 1 ms; the server ends a longer one, and a smaller one follows.
    /// Default: 1 s.
    ///
    /// # Panics
    ///
    /// Panics if the time is below 1 ms or above 1 h.
    #[must_use]
    #[track_caller]
    pub fn purge_time(mut self, longest: Duration) -> Self {
        let bounds = Duration::from_millis(1)..=Duration::from_secs(60 * 60);
        assert!(bounds.contains(&longest), "a batch of a purge must take from 1 ms to 1 h, not {longest:?}");
        self.purge_time = longest;
        self
    }

    /// Takes the connections of handlers' transactions from another pool of the same database. Default: the pool of the
    /// store.
    ///
    /// A handler keeps its connection until it answers. With a pool of their own, slow handlers cannot keep the store from
    /// renewing their leases.
    #[must_use]
    pub fn transaction_pool(mut self, pool: PgPool) -> Self {
        self.begin.pool = pool;
        self
    }

    /// Sets the isolation level of handlers' transactions. Default: the database's, which is read committed if nobody
    /// changed it.
    ///
    /// Above read committed, a handler that takes longer than a third of its lease cannot commit: the renewal of its lease
    /// changes the record after the snapshot of the transaction. It is answered with 503 and runs again.
    #[must_use]
    pub fn isolation(mut self, level: Isolation) -> Self {
        self.begin.isolation = Some(level);
        self
    }

    /// Makes the table and its index, if they are not there. Any number of instances may do so at the same time.
    ///
    /// # Errors
    ///
    /// Fails if the database does, if the role may not make a table, if a table of this name is not this crate's, or if it
    /// is of a newer format.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.table.schema.migrate(&self.table.pool).await
    }

    /// Returns the statements that [`migrate`](Self::migrate) runs, for teams that run their own migrations. Each can be
    /// repeated.
    #[must_use]
    pub fn ddl(&self) -> String {
        self.table.schema.ddl()
    }

    /// Checks that the table is there and of the right format, for a clear error at the start of an application. The first
    /// call of the store checks it too.
    ///
    /// # Errors
    ///
    /// Fails if the database does, or if the table is missing, not this crate's, or of a newer format.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.table.schema.check(&self.table.pool).await
    }

    fn change(mut self, change: impl FnOnce(&mut Table)) -> Self {
        change(&mut self.table);
        self.table.statements = Statements::new(&self.table.schema.name());
        self.table.checked = Checked::default();
        self.lanes = Lanes::new(&self.table);
        self
    }
}

#[async_trait]
impl Store for PostgresStore {
    /// One round trip, unless the record is expired: then two.
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        if claim.replaces.is_some() {
            let mut connection = self.table.connect().await.map_err(StoreError::unavailable)?;
            return self.table.take_over(&mut connection, id, claim).await;
        }
        self.lanes.claims.call(ClaimCall { id: id.clone(), claim: claim.clone() }).await
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        self.lanes.renewals.call(RenewCall { id: id.clone(), token, lease }).await
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        check_length(response)?;
        self.lanes.completions.call(CompleteCall { id: id.clone(), token, response: response.clone(), retention }).await
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        let rows = self.table.single(&self.table.statements.release, &owned(id, token)).await?;
        Ok(if rows.is_empty() { Fenced::Lost } else { Fenced::Applied })
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let values = identities(std::iter::once(id));
        let rows = self.table.single(&self.table.statements.lookup, &values).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(match read(row, 0)? {
            Some(Found::Live(record)) => Some(record),
            Some(Found::Expired) | None => None,
        })
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        let mut removed = 0;
        let mut batch = limit;
        while removed < limit && batch > 0 {
            let wanted = batch.min(limit - removed);
            match self.purge_batch(wanted).await? {
                Batch::Removed(rows) => {
                    removed += rows;
                    if rows < wanted {
                        break;
                    }
                }
                Batch::TooLong if wanted == 1 => {
                    return Err(StoreError::unavailable("a purge of one record took too long"));
                }
                Batch::TooLong => batch = wanted.div_ceil(2),
            }
        }
        Ok(removed)
    }
}

enum Batch {
    Removed(usize),
    /// The server ended it, and nothing was removed.
    TooLong,
}

impl PostgresStore {
    async fn purge_batch(&self, rows: usize) -> Result<Batch, StoreError> {
        let table = &self.table;
        let mut connection = table.connect().await.map_err(StoreError::unavailable)?;
        let begin = format!("begin; set local statement_timeout = {}", self.purge_time.as_millis());
        let mut transaction = sqlx::Connection::begin_with(&mut *connection, sqlx::AssertSqlSafe(begin))
            .await
            .map_err(|error| table.failed(error))?;
        let limit = Value::Integers(vec![Some(i64::try_from(rows).unwrap_or(i64::MAX))]);
        let counted = execute::fetch(&mut transaction, table.protocol, &table.statements.purge, &[limit]).await;
        match counted {
            Ok(counted) => {
                let removed = counted.first().map_or(Ok(0), |row| column::<i64>(row, 0))?;
                transaction.commit().await.map_err(|error| table.failed(error))?;
                Ok(Batch::Removed(usize::try_from(removed).unwrap_or_default()))
            }
            Err(error) if error.as_database_error().is_some_and(|it| it.code().as_deref() == Some("57014")) => {
                Ok(Batch::TooLong)
            }
            Err(error) => Err(table.failed(error)),
        }
    }
}

impl TransactionalStore for PostgresStore {
    fn prepare(&self, id: &RecordId, token: Token, extensions: &mut Extensions) -> Box<dyn StoreTransaction> {
        let (handle, run) = Run::new(self.begin.clone(), self.table.clone(), id.clone(), token);
        extensions.insert(handle);
        Box::new(run)
    }
}

fn check_length(response: &StoredResponse) -> Result<(), StoreError> {
    let bytes = response.as_encoded().len();
    if bytes > LONGEST_RESPONSE {
        return Err(StoreError::rejected(format!("a stored response of {bytes} bytes is over {LONGEST_RESPONSE}")));
    }
    Ok(())
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("table", &self.table.schema.name())
            .field("protocol", &self.table.protocol)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}
