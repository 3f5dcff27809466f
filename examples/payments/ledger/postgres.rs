//! A ledger in PostgreSQL, in the database of the store, so that a charge and the answer of its key commit together.

use async_trait::async_trait;
use axum::http::StatusCode;
use sqlx::{PgPool, Postgres, Row, postgres::PgArguments, postgres::PgRow, query::Query};
use tower_idempotency::TransactionError;

use super::{Ledger, Transaction};
use crate::{
    charge::{Amount, Charge, Currency, CustomerId},
    problem::Problem,
};

/// Makes the table. Several instances may start at once, and `if not exists` alone lets one of them fail. The last
/// statement fails if somebody else's table has this name.
const CREATE: &str = r#"
begin;
select pg_advisory_xact_lock(hashtextextended('the table charges of the payments example', 0));
create table if not exists charges (
    position bigint generated always as identity primary key,
    id text not null unique,
    amount bigint not null,
    currency text not null,
    customer_id text not null,
    created_at bigint not null,
    attempt bigint
);
select position, id, amount, currency, customer_id, created_at, attempt from charges limit 0;
commit
"#;

const INSERT: &str = r#"
insert into charges (id, amount, currency, customer_id, created_at, attempt) values ($1, $2, $3, $4, $5, $6)
"#;

const LIST: &str = r#"
select id, amount, currency, customer_id, created_at, attempt from charges order by position
"#;

const FIND: &str = r#"
select id, amount, currency, customer_id, created_at, attempt from charges where id = $1
"#;

pub(crate) struct PostgresLedger(PgPool);

impl PostgresLedger {
    /// Opens the ledger, and makes its table if it is not there.
    pub(crate) async fn open(pool: PgPool) -> Result<Self, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        let created = sqlx::raw_sql(CREATE).execute(&mut *connection).await;
        if let Err(error) = created {
            // A transaction that failed is still open on it.
            connection.close_on_drop();
            return Err(error);
        }
        drop(connection);
        Ok(Self(pool))
    }
}

#[async_trait]
impl Ledger for PostgresLedger {
    async fn insert(&self, charge: &Charge, transaction: Option<Transaction>) -> Result<(), Problem> {
        match transaction {
            Some(transaction) => {
                let mut tx = transaction.begin().await?;
                insert(charge).execute(&mut *tx).await.map_err(TransactionError::from)?;
                // The layer commits it, once the answer is written into it too.
            }
            None => {
                let mut connection = self.0.acquire().await.map_err(TransactionError::from)?;
                insert(charge).execute(&mut *connection).await.map_err(|error| cut_short(&error))?;
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Charge>, Problem> {
        let rows = sqlx::query(LIST).fetch_all(&self.0).await.and_then(|rows| rows.iter().map(read).collect());
        Ok(rows.map_err(TransactionError::from)?)
    }

    async fn find(&self, id: &str) -> Result<Option<Charge>, Problem> {
        let row =
            sqlx::query(FIND).bind(id).fetch_optional(&self.0).await.and_then(|row| row.as_ref().map(read).transpose());
        Ok(row.map_err(TransactionError::from)?)
    }
}

fn insert(charge: &Charge) -> Query<'_, Postgres, PgArguments> {
    sqlx::query(INSERT)
        .bind(&charge.id)
        .bind(charge.amount.0.cast_signed())
        .bind(&charge.currency.0)
        .bind(&charge.customer_id.0)
        .bind(charge.created_at.cast_signed())
        .bind(charge.attempt.map(i64::from))
}

fn read(row: &PgRow) -> Result<Charge, sqlx::Error> {
    let attempt: Option<i64> = row.try_get("attempt")?;
    Ok(Charge {
        id: row.try_get("id")?,
        amount: Amount(row.try_get::<i64, _>("amount")?.cast_unsigned()),
        currency: Currency(row.try_get("currency")?),
        customer_id: CustomerId(row.try_get("customer_id")?),
        created_at: row.try_get::<i64, _>("created_at")?.cast_unsigned(),
        attempt: attempt.and_then(|attempt| attempt.try_into().ok()),
    })
}

/// Without a transaction nobody knows whether a statement that failed had its effect: its answer may have been lost.
fn cut_short(error: &sqlx::Error) -> Problem {
    eprintln!("a charge may have been made or not: {error}");
    Problem::cut_short("It is not known whether the charge was made.")
}

impl From<TransactionError> for Problem {
    fn from(error: TransactionError) -> Self {
        if error.is_transient() {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "The database cannot be used now. Nothing was changed.")
        } else {
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "The database refused the request. Nothing was changed.")
        }
    }
}
