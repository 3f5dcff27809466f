//! The conformance kit on PostgreSQL.
use tower_idempotency::PostgresStore;
async fn store() -> PostgresStore {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(5)
        .connect("postgres://postgres@127.0.0.1:5599/postgres")
        .await
        .unwrap();
    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    store
}
mod prepared {
    tower_idempotency::store_tests!(super::store().await);
}
mod text {
    tower_idempotency::store_tests!(super::store().await.without_prepared_statements());
}
