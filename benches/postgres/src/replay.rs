//! Replays beside the least that PostgreSQL can do for one: a select by primary key.

use tower_idempotency::PostgresStore;

use crate::{
    Options, Outcome,
    cluster::Cluster,
    load::{self, Keys, REPEATED_KEYS},
    measured::{Case, print},
    pgbench,
    serve::{ANSWER, Process, Setup, Variant},
};

const DATABASE: &str = "replay";
const POOL: u32 = 16;

const SELECT: &str = "\
\\set number random(1, :rows)
select body from answers where number = :number;
";

pub async fn run(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let admin = cluster.create_database(DATABASE).await?;
    PostgresStore::new(admin.clone()).migrate().await?;
    sqlx::raw_sql("create table answers (number int primary key, body bytea not null)").execute(&admin).await?;
    let rows = options.connections * REPEATED_KEYS;
    sqlx::query("insert into answers select number, $2 from generate_series(1, $1) number")
        .bind(i32::try_from(rows)?)
        .bind(ANSWER.as_bytes())
        .execute(&admin)
        .await?;
    sqlx::raw_sql("vacuum analyze answers").execute(&admin).await?;

    let pool = options.pool.unwrap_or(POOL);
    println!(
        "{} clients, {rows} rows with answers of 1 KiB, {pool} connections to PostgreSQL for (b)",
        options.connections
    );
    let rows = rows.to_string();
    let mut cases =
        [Case::new("select by primary key, pgbench, no HTTP"), Case::new("axum, tower-idempotency, replays")];
    for _ in 0..options.rounds {
        let [select, ours] = &mut cases;
        let variables = [("rows", rows.as_str())];
        select.rounds.push(pgbench::run(cluster, DATABASE, SELECT, &variables, options.connections, options.seconds)?);
        sqlx::raw_sql("truncate idempotency_keys").execute(&admin).await?;
        let server = Process::start(&cluster.url(DATABASE), Setup::new(Variant::Ours, pool))?;
        ours.rounds.push(load::measure(server.addr, Keys::Repeated, options.connections, options.seconds).await?);
    }
    print("requests/s", &cases, &[0]);
    Ok(())
}
