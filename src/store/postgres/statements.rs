//! The statements, each with the invariant that it keeps.
//!
//! Every parameter is an array, so that a group of one and a group of many are the same statement. Rows come in any order,
//! so that the first column of a group's row is the number of its member, from 1. Durations are
//! microseconds; null means "for ever". `clock_timestamp()` and not `now()`, which stands still in a transaction.

use std::sync::Arc;

/// Claims each record that is absent, and reads each that is not. Of concurrent claims the primary key lets one through.
///
/// A member that comes back neither as new nor with a record met one that came or went at this moment.
///
/// The limit means nothing but to the planner, here and below: it makes it expect few members. So it keeps one plan for
/// all groups, however small the table was, rather than plan each anew, which takes half as long as to run it. The lateral
/// look-up is not merged into the join, so that it uses the index.
const CLAIM: &str = r"
with inserted as (
    insert into {table}
        (scope, idempotency_key, status, attempt, token, request_hash, lease_until, expires_at, purge_at)
    select m.scope, m.key, 'STARTED', 1, m.token, m.hash, {m.term}, {m.life}, {m.purge}
    from {patience}, unnest($1::text[], $2::text[], $3::uuid[], $4::bytea[], $5::int8[], $6::int8[], $7::int8[])
        as m(scope, key, token, hash, term, life, purge)
    on conflict (scope, idempotency_key) do nothing
    returning scope, idempotency_key
)
select m.ord, m.new, {record}
from (
    select m.*, (m.scope, m.key) in (select scope, idempotency_key from inserted) as new
    from unnest($1::text[], $2::text[]) with ordinality as m(scope, key, ord)
    limit ($8::int8[])[1]
) m
left join lateral (
    select t.* from {table} t
    where t.scope = m.scope and t.idempotency_key = m.key and not m.new
    offset 0
) t on true";

/// Claims one record that stands there: an abandoned one under the token that the claim names, as the next attempt, or one
/// whose time is over, as a new one. Of concurrent takeovers one finds the record as it was.
const TAKE_OVER: &str = r"
with m as materialized (
    select * from {patience}, unnest($1::text[], $2::text[], $3::uuid[], $4::bytea[], $5::int8[], $6::int8[],
        $7::int8[], $8::uuid[]) as m(scope, key, token, hash, term, life, purge, replaces)
), taken as (
    update {table} t set
        attempt = case when t.expires_at <= clock_timestamp() then 1 else t.attempt + 1 end,
        created_at = case when t.expires_at <= clock_timestamp() then clock_timestamp() else t.created_at end,
        status = 'STARTED', token = m.token, request_hash = m.hash, response_status = null, response_body = null,
        lease_until = {m.term}, expires_at = {m.life}, purge_at = {m.purge}, updated_at = clock_timestamp()
    from m
    where t.scope = m.scope and t.idempotency_key = m.key
        and (t.expires_at <= clock_timestamp()
            or t.status = 'STARTED' and t.token = m.replaces and t.lease_until <= clock_timestamp())
    returning t.attempt
), inserted as (
    insert into {table}
        (scope, idempotency_key, status, attempt, token, request_hash, lease_until, expires_at, purge_at)
    select m.scope, m.key, 'STARTED', 1, m.token, m.hash, {m.term}, {m.life}, {m.purge}
    from m where not exists (select from taken)
    on conflict (scope, idempotency_key) do nothing
    returning attempt
)
select coalesce((select attempt from taken), (select attempt from inserted)), {record}
from m left join {table} t on t.scope = m.scope and t.idempotency_key = m.key";

/// Renews each lease whose record is still under its token and not completed. The record's life ends as much later.
const RENEW: &str = r"
update {table} t set
    lease_until = {m.term}, expires_at = {m.life}, updated_at = clock_timestamp(),
    purge_at = least(t.purge_at, {m.purge})
from (
    select m.* from {patience}, unnest($1::text[], $2::text[], $3::uuid[], $4::int8[], $5::int8[], $6::int8[])
        with ordinality as m(scope, key, token, term, life, purge, ord)
    limit ($7::int8[])[1]
) m
where t.scope = m.scope and t.idempotency_key = m.key and t.token = m.token
    and t.status = 'STARTED' and t.expires_at > clock_timestamp()
returning m.ord";

/// Completes each record that is still under its token and not completed.
///
/// `purge_at` is a lower bound of `expires_at`, at most an hour below it here. Left alone where it is good enough, no
/// indexed column changes, and the row version needs no new index entries.
const COMPLETE: &str = r"
update {table} t set
    status = 'COMPLETED', response_status = m.answered, response_body = m.body,
    expires_at = m.expires, updated_at = clock_timestamp(),
    purge_at = case when t.purge_at between m.expires - interval '1 hour' and m.expires
        then t.purge_at else m.expires end
from (
    select m.*, {m.retention} as expires
    from {patience}, unnest($1::text[], $2::text[], $3::uuid[], $4::int8[], $5::bytea[], $6::int8[])
        with ordinality as m(scope, key, token, answered, body, retention, ord)
    limit ($7::int8[])[1]
) m
where t.scope = m.scope and t.idempotency_key = m.key and t.token = m.token
    and t.status = 'STARTED' and t.expires_at > clock_timestamp()
returning m.ord";

/// Tells whether a record is already completed under its token.
const COMPLETED: &str = r"
select t.token from unnest($1::text[], $2::text[], $3::uuid[]) as m(scope, key, token)
join {table} t on t.scope = m.scope and t.idempotency_key = m.key and t.token = m.token
where t.status = 'COMPLETED' and t.expires_at > clock_timestamp()";

/// Removes a record that is still under its token and not completed. Waits for a transaction that is about to commit its
/// completion, so that a release that is applied proves that there is none.
const RELEASE: &str = r"
delete from {table} t using unnest($1::text[], $2::text[], $3::uuid[]) as m(scope, key, token)
where t.scope = m.scope and t.idempotency_key = m.key and t.token = m.token
    and t.status = 'STARTED' and t.expires_at > clock_timestamp()
returning t.token";

const LOOKUP: &str = r"
select {record}
from unnest($1::text[], $2::text[]) as m(scope, key)
join {table} t on t.scope = m.scope and t.idempotency_key = m.key";

/// Removes records whose time is over, by the index on `purge_at`, and leaves out what others are removing. `now()` and
/// not `clock_timestamp()`, which no index can be asked for.
const PURGE: &str = r"
with due as materialized (
    select ctid from {table}
    where purge_at <= now() and expires_at <= now()
    order by purge_at limit ($1::int8[])[1]
    for update skip locked
), removed as (
    delete from {table} t using due where t.ctid = due.ctid returning 1
)
select count(*) from removed";

/// The columns of a record, as `record::read` expects them.
const RECORD: &str = r"t.token, t.request_hash, t.attempt, t.status, t.response_body,
    t.expires_at <= clock_timestamp(),
    case when t.lease_until = 'infinity' then null
        else (extract(epoch from t.lease_until - clock_timestamp()) * 1000000)::int8 end";

/// Bounds the waiting for a lock, so that a member whose row somebody holds does not hold its neighbours up.
const PATIENCE: &str = "(select set_config('lock_timeout', '250ms', true) offset 0) patience";

/// The same for the completion within a handler's transaction, which is committed right after it: if the commit never
/// comes, because the process is stopped or the network gone, the server gives the record free again.
const PATIENCE_IN_TRANSACTION: &str = "(select set_config('lock_timeout', '250ms', true), \
    set_config('idle_in_transaction_session_timeout', '10s', true) offset 0) patience";

/// All statements for one table.
#[derive(Debug, Clone)]
pub(super) struct Statements {
    pub(super) claim: Arc<str>,
    pub(super) take_over: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) complete: Arc<str>,
    pub(super) complete_in_transaction: Arc<str>,
    pub(super) completed: Arc<str>,
    pub(super) release: Arc<str>,
    pub(super) lookup: Arc<str>,
    pub(super) purge: Arc<str>,
}

impl Statements {
    pub(super) fn new(table: &str) -> Self {
        let fill = |text: &str| {
            let mut text = text.replace("{table}", table).replace("{record}", RECORD).replace("{patience}", PATIENCE);
            for span in ["m.term", "m.life", "m.purge", "m.retention"] {
                let moment = format!(
                    "case when {span} is null then 'infinity' else clock_timestamp() + {span} * interval '1 microsecond' end"
                );
                text = text.replace(&format!("{{{span}}}"), &moment);
            }
            Arc::from(text)
        };
        Self {
            claim: fill(CLAIM),
            take_over: fill(TAKE_OVER),
            renew: fill(RENEW),
            complete: fill(COMPLETE),
            complete_in_transaction: fill(&COMPLETE.replace("{patience}", PATIENCE_IN_TRANSACTION)),
            completed: fill(COMPLETED),
            release: fill(RELEASE),
            lookup: fill(LOOKUP),
            purge: fill(PURGE),
        }
    }
}
