//! The flow that textbooks show, by hand: insert the key, do the work, update the row.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use sqlx::PgPool;
use uuid::Uuid;

use crate::serve::ANSWER;

pub const TABLE: &str = "
    create table textbook (
        scope text not null,
        key uuid not null,
        status text not null,
        response_status smallint,
        response_body bytea,
        created_at timestamptz not null default now(),
        primary key (scope, key)
    )";

const INSERT: &str = "
    insert into textbook (scope, key, status) values ($1, $2, 'started')
    on conflict (scope, key) do nothing returning true";

const UPDATE: &str = "
    update textbook set status = 'done', response_status = $3, response_body = $4 where scope = $1 and key = $2";

const SELECT: &str = "select response_status, response_body from textbook where scope = $1 and key = $2";

/// The same two statements as a script of pgbench.
pub const PGBENCH: &str = "\
insert into textbook (scope, key, status) values ('', gen_random_uuid(), 'started') \
on conflict (scope, key) do nothing returning key \\gset
update textbook set status = 'done', response_status = 201, response_body = :body where scope = '' and key = :key;
";

pub async fn charge(State(pool): State<PgPool>, headers: HeaderMap, body: String) -> Response {
    match answer(&pool, &headers, body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn answer(pool: &PgPool, headers: &HeaderMap, body: String) -> Result<Response, sqlx::Error> {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    let Some(key) = key.and_then(|text| Uuid::try_parse(text).ok()) else {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    };
    let inserted: Option<bool> = sqlx::query_scalar(INSERT).bind("").bind(key).fetch_optional(pool).await?;
    if inserted.is_none() {
        let (status, body): (Option<i16>, Option<Vec<u8>>) =
            sqlx::query_as(SELECT).bind("").bind(key).fetch_one(pool).await?;
        return Ok(match (status, body) {
            (Some(_), Some(body)) => {
                let headers = [(CONTENT_TYPE.as_str(), "application/json"), ("idempotent-replayed", "true")];
                (StatusCode::CREATED, headers, body).into_response()
            }
            _ => StatusCode::CONFLICT.into_response(),
        });
    }
    std::hint::black_box(body);
    let response: Arc<str> = Arc::clone(&ANSWER);
    sqlx::query(UPDATE).bind("").bind(key).bind(201_i16).bind(response.as_bytes()).execute(pool).await?;
    Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], response.to_string()).into_response())
}
