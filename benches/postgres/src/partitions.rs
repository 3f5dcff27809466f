//! Plain SQL: what it takes to be rid of expired rows, one by one or by the partition, and what partitions cost a claim.
//!
//! A unique constraint across partitions must contain the column that they are made by. So with partitions by day, a
//! claim must look into all that are alive, and needs more than the constraint to be safe at midnight; that is not
//! measured here, so that the partitions look better than they are.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, PgPool};

use crate::{
    Options, Outcome,
    cluster::Cluster,
    measured::{Case, print},
    pgbench, rows,
};

const DATABASE: &str = "partitions";
const ROWS: u32 = 10_000_000;
/// All but the last are expired: 95 %.
const DAYS: i32 = 20;

const COLUMNS: &str = "
    day int not null,
    scope text not null,
    key uuid not null,
    status text not null,
    hash bytea not null,
    body bytea,
    expires_at timestamptz not null";

const DELETE: &str = "
    delete from plain where ctid = any(array(
        select ctid from plain where expires_at <= now() order by expires_at limit 1000 for update skip locked))";

pub async fn run(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let pool = cluster.create_database(DATABASE).await?;
    let total = options.rows.unwrap_or(ROWS);
    in_batches(&pool, total).await?;
    by_partition(&pool, total).await?;
    claims(cluster, options, &pool).await
}

async fn in_batches(pool: &PgPool, total: u32) -> Outcome<()> {
    execute(pool, format!("create table plain ({COLUMNS}, primary key (scope, key))")).await?;
    execute(pool, "create index on plain (expires_at)").await?;
    fill(pool, "plain", total, DAYS).await?;
    let before = rows::size(pool, "plain").await?;
    println!("{total} rows in one table: {} MB with indexes; 95 % are expired", before >> 20);

    let work = Work::start(pool).await?;
    let mut removed = 0;
    loop {
        let batch = sqlx::query(DELETE).execute(pool).await?.rows_affected();
        removed += batch;
        if batch < 1000 {
            break;
        }
    }
    let deleted = work.end(pool).await?;
    deleted.print("deleted in batches of 1000", removed);
    let work = Work::start(pool).await?;
    execute(pool, "vacuum plain").await?;
    work.end(pool).await?.print("vacuum after it", removed);
    println!("  size after vacuum {} MB", rows::size(pool, "plain").await? >> 20);
    execute(pool, "drop table plain").await
}

async fn by_partition(pool: &PgPool, total: u32) -> Outcome<()> {
    create_partitioned(pool, "parted", DAYS).await?;
    execute(pool, "create index on parted (expires_at)").await?;
    fill(pool, "parted", total, DAYS).await?;
    let work = Work::start(pool).await?;
    for day in 0..DAYS - 1 {
        execute(pool, format!("drop table parted_{day}")).await?;
    }
    let removed = u64::from(total) * (DAYS as u64 - 1) / DAYS as u64;
    work.end(pool).await?.print(&format!("{} partitions dropped", DAYS - 1), removed);
    execute(pool, "drop table parted").await
}

async fn claims(cluster: &Cluster, options: &Options, pool: &PgPool) -> Outcome<()> {
    println!("{} clients, claims in {} rows (pgbench)", options.connections, options.hot_rows);
    execute(pool, format!("create table hot_1 ({COLUMNS}, primary key (scope, key))")).await?;
    fill(pool, "hot_1", options.hot_rows, 1).await?;
    let mut cases = vec![Case::new("one table, insert"), Case::new("one table, insert and look-up")];
    let mut scripts = vec![claim("hot_1", "(scope, key)", 1, false), claim("hot_1", "(scope, key)", 1, true)];
    for partitions in [2, 8, 25] {
        let table = format!("hot_{partitions}");
        create_partitioned(pool, &table, partitions).await?;
        fill(pool, &table, options.hot_rows, partitions).await?;
        cases.push(Case::new(format!("{partitions} partitions, insert and look-up in each")));
        scripts.push(claim(&table, "(scope, key, day)", partitions, true));
    }
    for _ in 0..options.rounds {
        for (case, script) in cases.iter_mut().zip(&scripts) {
            execute(pool, "checkpoint").await?;
            case.rounds.push(pgbench::run(cluster, DATABASE, script, &[], options.connections, options.seconds)?);
        }
    }
    print("claims/s", &cases, &[0, 1]);
    Ok(())
}

/// Makes the script of a claim into the newest partition: one statement, so one round trip and one commit.
fn claim(table: &str, unique: &str, partitions: i32, with_lookup: bool) -> String {
    let newest = partitions - 1;
    let insert = format!(
        "insert into {table} (day, scope, key, status, hash, expires_at) select {newest}, '', new.key, 'started', \
         sha256('x'), now() + interval '1 day' from new"
    );
    let found = if with_lookup {
        format!(
            ", found as materialized (select old.status, old.hash, old.body from new cross join lateral \
             (select * from {table} old where old.scope = '' and old.key = new.key offset 0) old)"
        )
    } else {
        String::new()
    };
    let condition = if with_lookup { "where not exists (select from found)" } else { "" };
    let result = if with_lookup { "select status, hash, body from found union all" } else { "" };
    format!(
        "with new as materialized (select gen_random_uuid() as key){found}, \
         inserted as ({insert} {condition} on conflict {unique} do nothing returning status, hash, body) \
         {result} select status, hash, body from inserted;\n"
    )
}

async fn create_partitioned(pool: &PgPool, table: &str, partitions: i32) -> Outcome<()> {
    execute(pool, format!("create table {table} ({COLUMNS}, primary key (scope, key, day)) partition by range (day)"))
        .await?;
    for day in 0..partitions {
        let next = day + 1;
        execute(pool, format!("create table {table}_{day} partition of {table} for values from ({day}) to ({next})"))
            .await?;
    }
    Ok(())
}

/// Fills a table with rows of about 400 bytes, spread evenly over the days; the last day is not expired.
async fn fill(pool: &PgPool, table: &str, total: u32, days: i32) -> Outcome<()> {
    let last = days - 1;
    execute(
        pool,
        format!(
            "insert into {table}
            select number % {days}, '', gen_random_uuid(), 'done', sha256(number::text::bytea),
                convert_to(repeat('x', 300), 'utf8'), now() + (number % {days} - {last} + 0.5) * interval '1 day'
            from generate_series(1, {total}) number order by 1"
        ),
    )
    .await?;
    execute(pool, format!("vacuum analyze {table}")).await?;
    execute(pool, "checkpoint").await
}

async fn execute(pool: &PgPool, statement: impl Into<String>) -> Outcome<()> {
    sqlx::raw_sql(AssertSqlSafe(statement.into())).execute(pool).await?;
    Ok(())
}

/// Work under way: when it began, and where the log was.
struct Work {
    start: Instant,
    position: i64,
}

struct Done {
    time: Duration,
    wal: i64,
}

impl Work {
    async fn start(pool: &PgPool) -> Outcome<Self> {
        execute(pool, "checkpoint").await?;
        Ok(Self { position: position(pool).await?, start: Instant::now() })
    }

    async fn end(self, pool: &PgPool) -> Outcome<Done> {
        let time = self.start.elapsed();
        Ok(Done { time, wal: position(pool).await? - self.position })
    }
}

impl Done {
    fn print(&self, what: &str, rows: u64) {
        println!(
            "  {what}: {rows} rows, {:.2} s, {:.0} rows/s, WAL {:.1} MB ({:.1} bytes a row)",
            self.time.as_secs_f64(),
            rows as f64 / self.time.as_secs_f64(),
            self.wal as f64 / f64::from(1 << 20),
            self.wal as f64 / rows as f64
        );
    }
}

async fn position(pool: &PgPool) -> Outcome<i64> {
    Ok(sqlx::query_scalar("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8").fetch_one(pool).await?)
}
