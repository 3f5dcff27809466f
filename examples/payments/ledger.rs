//! The ledger: where charges are written down.

mod memory;
#[cfg(feature = "postgres")]
mod postgres;

use async_trait::async_trait;

pub(crate) use self::memory::MemoryLedger;
#[cfg(feature = "postgres")]
pub(crate) use self::postgres::PostgresLedger;

use crate::{charge::Charge, problem::Problem};

/// The transaction that commits a charge together with the answer of its key.
#[cfg(feature = "postgres")]
pub(crate) type Transaction = tower_idempotency::PostgresTransaction;

/// No request has this: only a ledger in PostgreSQL has transactions.
#[cfg(not(feature = "postgres"))]
pub(crate) type Transaction = axum::Extension<std::convert::Infallible>;

#[async_trait]
pub(crate) trait Ledger: Send + Sync + 'static {
    /// Writes a charge down, in the transaction if there is one.
    async fn insert(&self, charge: &Charge, transaction: Option<Transaction>) -> Result<(), Problem>;

    /// Returns all charges, oldest first.
    async fn list(&self) -> Result<Vec<Charge>, Problem>;

    async fn find(&self, id: &str) -> Result<Option<Charge>, Problem>;
}
