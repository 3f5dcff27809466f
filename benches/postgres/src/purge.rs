//! First requests while expired records are removed, and the size of the table over many purges.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use tower_idempotency::{PostgresStore, Store};

use crate::{
    Options, Outcome,
    cluster::Cluster,
    load::{self, Keys},
    measured::{Case, Measured, median, print},
    rows,
    serve::{Process, Setup, Variant},
};

const DATABASE: &str = "purge";
const ROWS: u32 = 1_000_000;
const BATCH: usize = 1_000;
const POOL: u32 = 16;

// The life of a day's retention with a purge each few hours and autovacuum each minute, in a minute.
const CYCLES: usize = 10;
const CYCLE: Duration = Duration::from_secs(5);
const RETENTION: Duration = Duration::from_secs(5);
const STEADY_RATE: u32 = 1_000;

pub async fn run(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let pool = cluster.create_database(DATABASE).await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await?;
    beside_a_purge(cluster, options, &pool, &store).await?;
    sizes(cluster, options, &pool, &store).await
}

async fn beside_a_purge(cluster: &Cluster, options: &Options, pool: &PgPool, store: &PostgresStore) -> Outcome<()> {
    let rows = options.rows.unwrap_or(ROWS);
    println!("{} clients; a purge of {rows} expired rows, {BATCH} at a time", options.connections);
    let mut cases = [Case::new("first requests"), Case::new("first requests while a purge runs")];
    let mut purge_rates = Vec::new();
    for _ in 0..options.rounds {
        let [without, with] = &mut cases;
        for purging in [false, true] {
            // Both measurements find the same table.
            sqlx::raw_sql("truncate idempotency_keys").execute(pool).await?;
            rows::insert(pool, rows, -3600.0, -1.0).await?;
            let server = Process::start(&cluster.url(DATABASE), Setup::new(Variant::Ours, pool_size(options)))?;
            let measuring = load::measure(server.addr, Keys::New, options.connections, options.seconds);
            if purging {
                let (measured, rate) = tokio::try_join!(measuring, purge_rate(store, options))?;
                with.rounds.push(measured);
                purge_rates.push(rate);
            } else {
                without.rounds.push(measuring.await?);
            }
        }
    }
    print("requests/s", &cases, &[0]);
    println!("The purge removed {:.0} rows/s.", median(purge_rates));
    Ok(())
}

/// Purges as long as requests are measured, the warm-up included; to end earlier would measure something else.
async fn purge_rate(store: &PostgresStore, options: &Options) -> Outcome<f64> {
    let start = Instant::now();
    let mut removed = 0;
    while start.elapsed() < options.seconds + load::WARM_UP {
        let batch = store.purge(BATCH).await?;
        removed += batch;
        if batch < BATCH {
            return Err(format!("the purge ended after {:?}: give --rows a larger number", start.elapsed()).into());
        }
    }
    Ok(removed as f64 / start.elapsed().as_secs_f64())
}

async fn sizes(cluster: &Cluster, options: &Options, pool: &PgPool, store: &PostgresStore) -> Outcome<()> {
    sqlx::raw_sql("alter system set autovacuum_naptime = 1").execute(pool).await?;
    sqlx::raw_sql("select pg_reload_conf()").execute(pool).await?;
    sqlx::raw_sql("truncate idempotency_keys").execute(pool).await?;
    println!(
        "{STEADY_RATE} first requests/s, retention {RETENTION:?}, a purge each {CYCLE:?}, autovacuum_naptime 1 s:"
    );
    let setup = Setup { retention: RETENTION, ..Setup::new(Variant::Ours, pool_size(options)) };
    let server = Process::start(&cluster.url(DATABASE), setup)?;
    // Two cycles until as much is removed as comes.
    let total = CYCLE * (CYCLES as u32 + 2) + CYCLE / 2;
    let load = load::steady(server.addr, options.connections, STEADY_RATE, total);
    let (load, sizes) = tokio::try_join!(load, cycles(pool, store))?;
    report(load, &sizes)
}

async fn cycles(pool: &PgPool, store: &PostgresStore) -> Outcome<Vec<i64>> {
    let mut sizes = Vec::new();
    let start = tokio::time::Instant::now();
    for cycle in 1..=CYCLES as u32 + 2 {
        tokio::time::sleep_until(start + CYCLE * cycle).await;
        let mut removed = 0;
        loop {
            let batch = store.purge(BATCH).await?;
            removed += batch;
            if batch < BATCH {
                break;
            }
        }
        let size = rows::size(pool, "idempotency_keys").await?;
        if cycle > 2 {
            println!("  purge {:>2}: {removed:>6} rows removed, table and indexes {} KiB", cycle - 2, size >> 10);
            sizes.push(size);
        }
    }
    Ok(sizes)
}

fn report(load: Measured, sizes: &[i64]) -> Outcome<()> {
    let least = *sizes.iter().min().ok_or("no size was measured")?;
    let most = *sizes.iter().max().ok_or("no size was measured")?;
    println!("  largest to smallest {:.2}; {:.0} requests/s came", most as f64 / least as f64, load.rate);
    Ok(())
}

fn pool_size(options: &Options) -> u32 {
    options.pool.unwrap_or(POOL)
}
