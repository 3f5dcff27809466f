//! The conformance kit on PostgreSQL: prepared, as text, in a schema of its own, and behind PgBouncer.

#[path = "support/postgres.rs"]
mod postgres;

use postgres::{Database, PgBouncer, Server};
use tower_idempotency::PostgresStore;

/// A store in a database of its own, which lives as long as the test.
async fn store(server: &Server) -> (PostgresStore, Database) {
    let database = server.database().await;
    let store = PostgresStore::new(database.pool(5).await);
    store.migrate().await.unwrap();
    (store, database)
}

macro_rules! server {
    () => {
        match Server::shared() {
            Some(server) => server,
            None => return,
        }
    };
}

mod prepared {
    use super::*;

    tower_idempotency::store_tests!({
        let (store, database) = super::store(server!()).await;
        Box::leak(Box::new(database));
        store
    });
}

mod as_text {
    use super::*;

    tower_idempotency::store_tests!({
        let (store, database) = super::store(server!()).await;
        Box::leak(Box::new(database));
        store.without_prepared_statements()
    });
}

mod behind_pgbouncer {
    use super::*;

    tower_idempotency::store_tests!({
        let (migrated, database) = super::store(server!()).await;
        drop(migrated);
        let Some(pooler) = PgBouncer::start(&database) else { return };
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(8).connect(pooler.url()).await.unwrap();
        Box::leak(Box::new((database, pooler)));
        PostgresStore::new(pool).without_prepared_statements()
    });
}
