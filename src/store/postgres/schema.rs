//! The table: how it is made, and whether the one that is there is ours.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Connection, PgPool, Row};

use super::{
    failure::{Missing, shared, store_error},
    identifier::Identifier,
};
use crate::store::StoreError;

/// The format of the table, written into its comment. A newer one may mean something else by a column.
const FORMAT: u32 = 1;

const MARK: &str = "tower-idempotency table format ";

/// One lock for all who migrate at the same time.
const LOCK: i64 = 0x746f_7765_7269_6465;

/// Names and statements of one table.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    schema: Option<Identifier>,
    table: Identifier,
}

impl Schema {
    pub(super) fn new(schema: Option<Identifier>, table: Identifier) -> Self {
        Self { schema, table }
    }

    pub(super) fn with_table(self, table: Identifier) -> Self {
        Self { table, ..self }
    }

    pub(super) fn with_schema(self, schema: Identifier) -> Self {
        Self { schema: Some(schema), ..self }
    }

    /// Returns the name of the table as it stands in statements.
    pub(super) fn name(&self) -> String {
        match &self.schema {
            Some(schema) => format!("\"{}\".\"{}\"", schema.as_str(), self.table.as_str()),
            None => format!("\"{}\"", self.table.as_str()),
        }
    }

    /// Returns the statements that make the table; each can be repeated.
    ///
    /// The primary key compares bytes ("C"), whatever the collation of the database is. With this fill factor inserts
    /// leave room in each page for the responses, so that a completion changes its row within the page and needs no new
    /// index entries.
    pub(super) fn ddl(&self) -> String {
        let (name, table) = (self.name(), self.table.as_str());
        let schema = match &self.schema {
            Some(schema) => format!("create schema if not exists \"{}\";\n", schema.as_str()),
            None => String::new(),
        };
        format!(
            r#"{schema}create table if not exists {name} (
    scope text collate "C" not null,
    idempotency_key text collate "C" not null,
    status text not null check (status in ('STARTED', 'COMPLETED')),
    attempt int4 not null,
    token uuid not null,
    request_hash bytea not null,
    response_status int2,
    response_body bytea,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    lease_until timestamptz not null,
    expires_at timestamptz not null,
    purge_at timestamptz not null,
    primary key (scope, idempotency_key)
) with (fillfactor = {FILL_FACTOR});
create index if not exists "{table}_purge_at" on {name} (purge_at);
comment on table {name} is '{MARK}{FORMAT}';
"#
        )
    }

    /// Makes the table, one caller at a time. A table of a newer format, or somebody else's, is left alone.
    pub(super) async fn migrate(&self, pool: &PgPool) -> Result<(), StoreError> {
        let name = self.name();
        let failed = |error| store_error(&name, error);
        let mut connection = pool.acquire().await.map_err(failed)?;
        let mut transaction = connection.begin().await.map_err(failed)?;
        let lock = format!("select pg_advisory_xact_lock({LOCK})");
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await.map_err(failed)?;
        let comment =
            sqlx::raw_sql(AssertSqlSafe(self.comment())).fetch_optional(&mut *transaction).await.map_err(failed)?;
        match comment {
            Some(row) => self.judge(row.try_get(0).map_err(failed)?)?,
            None => {
                sqlx::raw_sql(AssertSqlSafe(self.ddl())).execute(&mut *transaction).await.map_err(failed)?;
            }
        }
        transaction.commit().await.map_err(failed)
    }

    /// Checks that the table is there and of this format.
    pub(super) async fn check(&self, pool: &PgPool) -> Result<(), StoreError> {
        let name = self.name();
        let row = sqlx::raw_sql(AssertSqlSafe(self.comment())).fetch_optional(pool).await;
        match row.map_err(|error| StoreError::unavailable(shared(&name, error)))? {
            Some(row) => self.judge(row.try_get(0).map_err(StoreError::unavailable)?),
            None => Err(StoreError::unavailable(Missing { table: name, source: None })),
        }
    }

    /// Returns a row with the comment of the table, or no row if there is no table.
    fn comment(&self) -> String {
        let name = self.name();
        format!("select obj_description(oid, 'pg_class') from pg_class where oid = to_regclass('{name}')")
    }

    fn judge(&self, comment: Option<String>) -> Result<(), StoreError> {
        let name = self.name();
        let format = comment.as_deref().and_then(|comment| comment.strip_prefix(MARK));
        match format.map(str::parse::<u32>) {
            Some(Ok(FORMAT)) => Ok(()),
            Some(Ok(newer)) => Err(StoreError::unavailable(format!(
                "the table {name} has format {newer}; this version of the crate knows format {FORMAT}: update the crate, or use another table"
            ))),
            Some(Err(_)) | None => Err(StoreError::unavailable(format!(
                "the table {name} was not made by this crate (its comment is not `{MARK}{FORMAT}`): use another table name"
            ))),
        }
    }
}

/// Per cent of a page that inserts fill.
const FILL_FACTOR: u32 = 20;

/// Checks a table once, however many ask.
#[derive(Debug, Clone, Default)]
pub(super) struct Checked(Arc<tokio::sync::OnceCell<()>>);

impl Checked {
    pub(super) async fn ensure(&self, schema: &Schema, pool: &PgPool) -> Result<(), StoreError> {
        self.0.get_or_try_init(|| schema.check(pool)).await.copied()
    }

    /// Forgets nothing: only says whether the check has passed.
    pub(super) fn has_passed(&self) -> bool {
        self.0.initialized()
    }
}
