//! A stand-in until the crate's own store is there.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgPool;
use tower_idempotency::store::*;
use tower_idempotency::{Store, StoredResponse};

#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
}

fn down(error: sqlx::Error) -> StoreError {
    StoreError::unavailable(error)
}

impl PostgresStore {
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    pub async fn migrate(&self) -> Result<(), StoreError> {
        sqlx::raw_sql(
            "create table if not exists idempotency_keys (
            scope text not null, idempotency_key text not null, token uuid not null, attempt int not null,
            status text not null, request_hash bytea not null, response_status smallint, response_body bytea,
            lease_until timestamptz, expires_at timestamptz, purge_at timestamptz,
            created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
            primary key (scope, idempotency_key));
            create index if not exists idempotency_keys_purge_at on idempotency_keys (purge_at)",
        )
        .execute(&self.pool)
        .await
        .map_err(down)?;
        Ok(())
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        let done: Option<i32> = sqlx::query_scalar(
            "insert into idempotency_keys (scope, idempotency_key, token, attempt, status, request_hash, lease_until,
            expires_at, purge_at) values ($1, $2, $3, 1, 'in_flight', $4, now() + interval '30 s',
            now() + interval '1 d', now() + interval '1 d')
            on conflict (scope, idempotency_key) do nothing returning attempt",
        )
        .bind(id.scope().as_str())
        .bind(id.key().as_str())
        .bind(claim.token.as_uuid())
        .bind(claim.fingerprint.as_bytes().as_slice())
        .fetch_optional(&self.pool)
        .await
        .map_err(down)?;
        if done.is_some() {
            return Ok(Claim::Acquired { attempt: 1 });
        }
        let (token, hash, body): (uuid::Uuid, Vec<u8>, Option<Vec<u8>>) = sqlx::query_as(
            "select token, request_hash, response_body from idempotency_keys where scope = $1 and idempotency_key = $2",
        )
        .bind(id.scope().as_str())
        .bind(id.key().as_str())
        .fetch_one(&self.pool)
        .await
        .map_err(down)?;
        let hash = hash.try_into().map_err(|_| StoreError::damaged("hash"))?;
        let state = match body {
            Some(body) => State::Completed(StoredResponse::from_encoded(body).map_err(StoreError::damaged)?),
            None => State::InFlight { lease_left: Duration::from_secs(1) },
        };
        Ok(Claim::Existing(Record::new(
            Token::from_uuid(token),
            tower_idempotency::Fingerprint::from_bytes(hash),
            1,
            state,
        )))
    }

    async fn renew(&self, _: &RecordId, _: Token, _: Lease) -> Result<Fenced, StoreError> {
        Ok(Fenced::Applied)
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        sqlx::query(
            "update idempotency_keys set status = 'completed', response_body = $4, response_status = 201,
            purge_at = now() + make_interval(secs => $5), updated_at = now()
            where scope = $1 and idempotency_key = $2 and token = $3",
        )
        .bind(id.scope().as_str())
        .bind(id.key().as_str())
        .bind(token.as_uuid())
        .bind(response.as_encoded().as_ref())
        .bind(retention.as_secs_f64())
        .execute(&self.pool)
        .await
        .map_err(down)?;
        Ok(Fenced::Applied)
    }

    async fn release(&self, _: &RecordId, _: Token) -> Result<Fenced, StoreError> {
        Ok(Fenced::Lost)
    }

    async fn lookup(&self, _: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(None)
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        let done = sqlx::query(
            "delete from idempotency_keys where ctid = any(array(select ctid from idempotency_keys
            where purge_at <= now() order by purge_at limit $1 for update skip locked))",
        )
        .bind(limit as i64)
        .execute(&self.pool)
        .await
        .map_err(down)?;
        Ok(done.rows_affected() as usize)
    }
}
