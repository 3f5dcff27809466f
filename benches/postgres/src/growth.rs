//! One claim after the other, straight through the store, in a small table and in a large one.

use std::time::{Duration, Instant};

use tower_idempotency::{
    Fingerprint, IdempotencyKey, PostgresStore, Scope, Store,
    store::{Claim, Lease, NewClaim, RecordId, Token},
};
use uuid::Uuid;

use crate::{
    Options, Outcome,
    cluster::Cluster,
    measured::{Case, Measured, print},
    rows,
};

const SMALL: u32 = 10_000;
const LARGE: u32 = 10_000_000;
const WARM_UP: usize = 1_000;
const DAY: f64 = 24.0 * 3600.0;

pub async fn run(cluster: &Cluster, options: &Options) -> Outcome<()> {
    let mut cases = Vec::new();
    let mut stores = Vec::new();
    for (database, rows) in [("small", SMALL), ("large", options.rows.unwrap_or(LARGE))] {
        let start = Instant::now();
        let pool = cluster.create_database(database).await?;
        let store = PostgresStore::new(pool.clone());
        store.migrate().await?;
        rows::insert(&pool, rows, 3600.0, DAY).await?;
        let bytes = rows::size(&pool, "idempotency_keys").await?;
        println!("{rows} rows: {} MB with indexes, inserted in {} s", bytes >> 20, start.elapsed().as_secs());
        cases.push(Case::new(format!("claim of a new key, {rows} rows")));
        stores.push(store);
    }
    for store in &stores {
        claims(store, WARM_UP).await?;
    }
    for _ in 0..options.rounds {
        for (case, store) in cases.iter_mut().zip(&stores) {
            case.rounds.push(claims_for(store, options).await?);
        }
    }
    print("claims/s", &cases, &[0]);
    Ok(())
}

async fn claims(store: &PostgresStore, number: usize) -> Outcome<()> {
    for _ in 0..number {
        claim(store).await?;
    }
    Ok(())
}

async fn claims_for(store: &PostgresStore, options: &Options) -> Outcome<Measured> {
    let start = Instant::now();
    let mut latencies_us = Vec::new();
    while start.elapsed() < options.seconds {
        let start = Instant::now();
        claim(store).await?;
        latencies_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Measured::of(latencies_us, start.elapsed()))
}

async fn claim(store: &PostgresStore) -> Outcome<()> {
    let id = RecordId::new(Scope::new(""), IdempotencyKey::new(&Uuid::new_v4().to_string())?);
    let lease = Lease { term: Duration::from_secs(30), unsettled: Duration::from_secs(24 * 3600) };
    let new = NewClaim::new(Token::random(), Fingerprint::from_bytes([7; 32]), lease);
    match store.claim(&id, &new).await? {
        Claim::Acquired { .. } => Ok(()),
        Claim::Existing(_) => Err("a new key was not new".into()),
    }
}
