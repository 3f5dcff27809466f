//! First requests: a new key each, so that each of them writes a record and completes it.

use sqlx::PgPool;
use tower_idempotency::PostgresStore;

use crate::{
    Options, Outcome,
    cluster::Cluster,
    load::{self, Keys},
    measured::{Case, Measured, print},
    pgbench,
    serve::{ANSWER, Process, Setup, Variant},
    textbook,
};

const DATABASE: &str = "first";
const POOLS: [u32; 5] = [4, 8, 16, 32, 64];

pub async fn run(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let bench = Bench::prepare(cluster).await?;
    let pool = bench.choose_pool(options).await?;
    println!("{} clients, answers of 1 KiB, {pool} connections to PostgreSQL for (b) and (c)", options.connections);
    let mut cases = [
        Case::new("plain statements, pgbench, no HTTP"),
        Case::new("axum, the flow by hand"),
        Case::new("axum, tower-idempotency"),
    ];
    for _ in 0..options.rounds {
        let [plain, by_hand, ours] = &mut cases;
        plain.rounds.push(bench.plain(options).await?);
        by_hand.rounds.push(bench.server(Variant::Textbook, pool, options.connections, options).await?);
        ours.rounds.push(bench.server(Variant::Ours, pool, options.connections, options).await?);
    }
    print("requests/s", &cases, &[0, 1]);
    Ok(())
}

pub async fn run_single(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let bench = Bench::prepare(cluster).await?;
    let pool = options.pool.unwrap_or(4);
    println!("1 client, answers of 1 KiB, {pool} connections to PostgreSQL");
    let mut cases = [Case::new("axum, the flow by hand"), Case::new("axum, tower-idempotency")];
    for _ in 0..options.rounds {
        let [by_hand, ours] = &mut cases;
        by_hand.rounds.push(bench.server(Variant::Textbook, pool, 1, options).await?);
        ours.rounds.push(bench.server(Variant::Ours, pool, 1, options).await?);
    }
    print("requests/s", &cases, &[0]);
    Ok(())
}

struct Bench<'a> {
    cluster: &'a Cluster,
    admin: PgPool,
}

impl<'a> Bench<'a> {
    async fn prepare(cluster: &'a Cluster) -> Outcome<Self> {
        let admin = cluster.create_database(DATABASE).await?;
        sqlx::raw_sql(textbook::TABLE).execute(&admin).await?;
        PostgresStore::new(admin.clone()).migrate().await?;
        Ok(Self { cluster, admin })
    }

    /// Gives each measurement the same start: empty tables, and no checkpoint that is due for what was before.
    async fn reset(&self) -> Outcome<()> {
        sqlx::raw_sql("truncate textbook, idempotency_keys").execute(&self.admin).await?;
        sqlx::raw_sql("checkpoint").execute(&self.admin).await?;
        Ok(())
    }

    async fn plain(&self, options: &Options) -> Outcome<Measured> {
        self.reset().await?;
        let body = [("body", &**ANSWER)];
        pgbench::run(self.cluster, DATABASE, textbook::PGBENCH, &body, options.connections, options.seconds)
    }

    async fn server(&self, variant: Variant, pool: u32, connections: usize, options: &Options) -> Outcome<Measured> {
        self.reset().await?;
        let server = Process::start(&self.cluster.url(DATABASE), Setup::new(variant, pool))?;
        load::measure(server.addr, Keys::New, connections, options.seconds).await
    }

    /// Chooses what serves the flow by hand best; this layer gets the same.
    async fn choose_pool(&self, options: &Options) -> Outcome<u32> {
        if let Some(pool) = options.pool {
            return Ok(pool);
        }
        let mut best = (0.0, POOLS[0]);
        for pool in POOLS {
            let rate = self.server(Variant::Textbook, pool, options.connections, options).await?.rate;
            println!("the flow by hand with {pool} connections to PostgreSQL: {rate:.0} requests/s");
            if rate > best.0 {
                best = (rate, pool);
            }
        }
        Ok(best.1)
    }
}
