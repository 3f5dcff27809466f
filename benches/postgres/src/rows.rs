//! Rows of the store's table, made by the database itself.

use sqlx::{AssertSqlSafe, PgPool};

use crate::Outcome;

/// How long the made responses are.
const BODY: i32 = 300;

/// Per cent of a page. The store's own is for rows that grow when they are completed; these are completed as they come,
/// and are to lie about as dense as completed rows do.
const FILL_FACTOR: &str = "alter table idempotency_keys set (fillfactor = 50)";

/// Inserts completed records whose time is over between `from` and `to` seconds from now.
///
/// They go in by key: in the order of creation ten million random places of the index would have to be read and written.
/// A claim meets the same index.
pub async fn insert(pool: &PgPool, rows: u32, from: f64, to: f64) -> Outcome<()> {
    let options: Option<String> = sqlx::query_scalar(
        "select array_to_string(reloptions, ', ') from pg_class where oid = 'idempotency_keys'::regclass",
    )
    .fetch_one(pool)
    .await?;
    sqlx::raw_sql(FILL_FACTOR).execute(pool).await?;
    sqlx::query(
        "insert into idempotency_keys (scope, idempotency_key, token, attempt, status, request_hash, response_status,
            response_body, lease_until, expires_at, purge_at, created_at, updated_at)
        select '', key, gen_random_uuid(), 1, 'COMPLETED', sha256(key::bytea), 201, convert_to(repeat('x', $4), 'utf8'),
            now(), due, due, now(), now()
        from (
            select gen_random_uuid()::text as key, now() + make_interval(secs => $2 + ($3 - $2) * random()) as due
            from generate_series(1, $1)
        ) made
        order by key",
    )
    .bind(i32::try_from(rows)?)
    .bind(from)
    .bind(to)
    .bind(BODY)
    .execute(pool)
    .await?;
    let restored = match options {
        Some(options) => format!("alter table idempotency_keys set ({options})"),
        None => "alter table idempotency_keys reset (fillfactor)".to_owned(),
    };
    sqlx::raw_sql(AssertSqlSafe(restored)).execute(pool).await?;
    sqlx::raw_sql("vacuum analyze idempotency_keys").execute(pool).await?;
    sqlx::raw_sql("checkpoint").execute(pool).await?;
    Ok(())
}

/// Returns the bytes of a table with its indexes.
pub async fn size(pool: &PgPool, table: &str) -> Outcome<i64> {
    Ok(sqlx::query_scalar("select pg_total_relation_size($1::regclass)").bind(table).fetch_one(pool).await?)
}
