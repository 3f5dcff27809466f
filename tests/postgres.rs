//! What only PostgreSQL can get wrong: its table, its locks, its clock, its connections.

#[path = "support/postgres.rs"]
mod postgres;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Response, StatusCode};
use postgres::{Database, Server};
use sqlx::{AssertSqlSafe, PgPool, Row, postgres::PgPoolOptions};
use tokio::runtime::Runtime;
use tower_idempotency::{
    Fingerprint, IdempotencyKey, PostgresStore, Purge, Scope, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, RecordId, State, StoreError, Token},
};

const LONG: Lease = Lease { term: Duration::from_secs(60), unsettled: Duration::from_secs(3600) };
const DAY: Duration = Duration::from_secs(86_400);

macro_rules! database {
    () => {
        match Server::shared() {
            Some(server) => server.database().await,
            None => return,
        }
    };
}

async fn migrated(database: &Database, connections: u32) -> (PostgresStore, PgPool) {
    let pool = database.pool(connections).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    (store, pool)
}

fn id(key: &str) -> RecordId {
    RecordId::new(Scope::new("tenant"), IdempotencyKey::new(key).unwrap())
}

fn claim() -> NewClaim {
    NewClaim::new(Token::random(), Fingerprint::from_bytes([7; 32]), LONG)
}

async fn claimed(store: &PostgresStore, key: &str) -> Token {
    let claim = claim();
    assert!(matches!(store.claim(&id(key), &claim).await.unwrap(), Claim::Acquired { attempt: 1 }));
    claim.token
}

fn answer(body: &str) -> StoredResponse {
    StoredResponse::of(&Response::builder().status(201).body(Bytes::copy_from_slice(body.as_bytes())).unwrap())
}

async fn run(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.unwrap();
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.unwrap().get(0)
}

/// The error and all its causes as one text.
fn told(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_instances_may_migrate_at_the_same_time() {
    let database = database!();
    let pool = database.pool(12).await;
    let store = PostgresStore::new(pool.clone()).schema("shop").unwrap().table("keys_of_shop").unwrap();
    for outcome in join_all((0..10).map(|_| store.migrate())).await {
        outcome.unwrap();
    }
    store.migrate().await.unwrap();
    store.check().await.unwrap();
    let _token = claimed(&store, "k").await;
    assert_eq!(number(&pool, "select count(*) from shop.keys_of_shop where status = 'STARTED'").await, 1);
}

#[tokio::test]
async fn the_printed_statements_make_the_table_and_can_be_repeated() {
    let database = database!();
    let pool = database.pool(2).await;
    let store = PostgresStore::new(pool.clone());
    for _ in 0..2 {
        run(&pool, &store.ddl()).await;
    }
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    let _token = claimed(&store, "k").await;
}

#[tokio::test]
async fn a_missing_table_is_an_error_that_says_what_to_do_and_heals_without_a_restart() {
    let database = database!();
    let pool = database.pool(2).await;
    let store = PostgresStore::new(pool.clone());
    for error in [store.check().await.unwrap_err(), store.claim(&id("k"), &claim()).await.unwrap_err()] {
        assert!(error.is_unavailable());
        assert!(told(&error).contains("run `PostgresStore::migrate`"), "{}", told(&error));
    }
    store.migrate().await.unwrap();
    let _token = claimed(&store, "k").await;
    run(&pool, "drop table idempotency_keys").await;
    let error = store.claim(&id("k"), &claim()).await.unwrap_err();
    assert!(told(&error).contains("run `PostgresStore::migrate`"), "{}", told(&error));
    store.migrate().await.unwrap();
    let _token = claimed(&store, "k").await;
}

#[tokio::test]
async fn a_table_of_a_newer_format_or_of_somebody_else_is_refused_and_left_alone() {
    let database = database!();
    let (_, pool) = migrated(&database, 2).await;
    run(&pool, "comment on table idempotency_keys is 'tower-idempotency table format 2'").await;
    let store = PostgresStore::new(pool.clone());
    let errors = [store.check().await, store.migrate().await, store.claim(&id("k"), &claim()).await.map(|_| ())]
        .map(Result::unwrap_err);
    for error in errors {
        assert!(told(&error).contains("has format 2; this version of the crate knows format 1"), "{}", told(&error));
    }
    run(&pool, "create table theirs (a int)").await;
    let store = PostgresStore::new(pool.clone()).table("theirs").unwrap();
    let error = store.migrate().await.unwrap_err();
    assert!(told(&error).contains("was not made by this crate"), "{}", told(&error));
    assert_eq!(number(&pool, "select count(*) from idempotency_keys").await, 0);
}

#[tokio::test]
async fn a_name_that_is_not_an_identifier_is_refused() {
    let pool = PgPoolOptions::new().connect_lazy("postgres://127.0.0.1:1/none").unwrap();
    for name in ["", "Upper", "a;drop table x", "a\"b", "a.b"] {
        assert!(PostgresStore::new(pool.clone()).table(name).is_err());
        assert!(PostgresStore::new(pool.clone()).schema(name).unwrap_err().to_string().contains("is not a name"));
    }
}

#[tokio::test]
async fn an_operator_can_read_status_attempt_times_and_response_status() {
    let database = database!();
    let (store, pool) = migrated(&database, 2).await;
    let token = claimed(&store, "k").await;
    let sql = "select count(*) from idempotency_keys where scope = 'tenant' and idempotency_key = 'k' and attempt = 1
        and created_at <= updated_at and lease_until between now() + interval '50 s' and now() + interval '61 s'
        and length(request_hash) = 32";
    assert_eq!(number(&pool, &format!("{sql} and status = 'STARTED' and response_status is null")).await, 1);
    assert_eq!(store.complete(&id("k"), token, &answer("x"), DAY).await.unwrap(), Fenced::Applied);
    assert_eq!(number(&pool, &format!("{sql} and status = 'COMPLETED' and response_status = 201")).await, 1);
    assert_eq!(number(&pool, "select count(*) from idempotency_keys where purge_at <= expires_at").await, 1);
}

#[tokio::test]
async fn no_time_zone_matters() {
    let database = database!();
    let (store, _) = migrated(&database, 2).await;
    for (key, zone) in [("a", "Pacific/Kiritimati"), ("b", "Pacific/Pago_Pago"), ("c", "Europe/Berlin")] {
        let options = database.url().parse::<sqlx::postgres::PgConnectOptions>().unwrap().options([("timezone", zone)]);
        let abroad = PostgresStore::new(PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap());
        let token = claimed(&abroad, key).await;
        for store in [&store, &abroad] {
            let record = store.lookup(&id(key)).await.unwrap().unwrap();
            let State::InFlight { lease_left } = record.state else { panic!("{record:?}") };
            assert!(lease_left <= LONG.term && lease_left > LONG.term / 2, "{zone}: {lease_left:?}");
        }
        assert_eq!(
            store.renew(&id(key), token, Lease { term: Duration::ZERO, ..LONG }).await.unwrap(),
            Fenced::Applied
        );
        let record = abroad.lookup(&id(key)).await.unwrap().unwrap();
        assert!(matches!(record.state, State::Abandoned { .. }), "{zone}: {record:?}");
    }
}

#[tokio::test]
async fn nul_bytes_and_header_values_that_are_not_utf_8_come_back_as_they_were() {
    let database = database!();
    let (store, _) = migrated(&database, 2).await;
    for store in [store.clone(), store.without_prepared_statements()] {
        let key = Token::random().as_uuid().to_string();
        let token = claimed(&store, &key).await;
        let mut response = Response::new(Bytes::from_static(b"\0a\0'\\\xff"));
        response.headers_mut().append("x-raw", HeaderValue::from_bytes(&[0x80, 0xff, b'\'', b'\\']).unwrap());
        let stored = StoredResponse::of(&response);
        assert_eq!(store.complete(&id(&key), token, &stored, DAY).await.unwrap(), Fenced::Applied);
        let record = store.lookup(&id(&key)).await.unwrap().unwrap();
        assert_eq!(record.state, State::Completed(stored));
    }
}

#[tokio::test]
async fn a_response_that_is_too_long_for_the_store_is_rejected_and_the_fact_can_be_kept() {
    let database = database!();
    let (store, _) = migrated(&database, 2).await;
    let token = claimed(&store, "k").await;
    let long = StoredResponse::of(&Response::new(Bytes::from(vec![0; (128 << 20) + 1])));
    assert!(store.complete(&id("k"), token, &long, DAY).await.unwrap_err().is_rejected());
    let fact = StoredResponse::not_replayable(StatusCode::OK);
    assert_eq!(store.complete(&id("k"), token, &fact, DAY).await.unwrap(), Fenced::Applied);
}

#[tokio::test]
async fn a_damaged_row_is_damaged_for_itself_and_not_for_its_neighbours() {
    let database = database!();
    let (store, pool) = migrated(&database, 4).await;
    let damages = [
        "response_body = null",
        "response_body = set_byte(response_body, 20, 1 + get_byte(response_body, 20) % 200)",
        "response_body = '\\x02'::bytea || substr(response_body, 2)",
        "response_body = substr(response_body, 1, 10)",
        "request_hash = '\\x00'",
        "attempt = -1",
    ];
    for damage in damages {
        let (sick, sound) = (format!("sick {damage}"), format!("sound {damage}"));
        for key in [&sick, &sound] {
            let token = claimed(&store, key).await;
            let _ = store.complete(&id(key), token, &answer("x"), DAY).await.unwrap();
        }
        sqlx::query(AssertSqlSafe(format!("update idempotency_keys set {damage} where idempotency_key = $1")))
            .bind(&sick)
            .execute(&pool)
            .await
            .unwrap();
        assert!(store.lookup(&id(&sick)).await.unwrap_err().is_damaged(), "{damage}");
        let (sick_id, sound_id, first, second) = (id(&sick), id(&sound), claim(), claim());
        let (sick, sound) = tokio::join!(store.claim(&sick_id, &first), store.claim(&sound_id, &second));
        assert!(sick.unwrap_err().is_damaged(), "{damage}");
        assert!(matches!(sound.unwrap(), Claim::Existing(record) if record.state == State::Completed(answer("x"))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_row_somebody_holds_does_not_hold_its_neighbours_up() {
    let database = database!();
    let (store, pool) = migrated(&database, 6).await;
    let held = claimed(&store, "held").await;
    let mut tokens = Vec::new();
    for number in 0..20 {
        tokens.push((format!("free {number}"), claimed(&store, &format!("free {number}")).await));
    }
    let mut holder = pool.begin().await.unwrap();
    sqlx::raw_sql("select 1 from idempotency_keys where idempotency_key = 'held' for update")
        .execute(&mut *holder)
        .await
        .unwrap();

    let neighbours = tokens.iter().map(|(key, token)| {
        let store = store.clone();
        async move {
            assert_eq!(store.renew(&id(key), *token, LONG).await.unwrap(), Fenced::Applied);
            store.complete(&id(key), *token, &answer(key), DAY).await.unwrap()
        }
    });
    let (held_id, held_answer) = (id("held"), answer("held"));
    let (stuck, renewed, applied) = tokio::join!(
        store.complete(&held_id, held, &held_answer, DAY),
        store.renew(&held_id, held, LONG),
        join_all(neighbours)
    );
    assert!(applied.iter().all(|outcome| *outcome == Fenced::Applied));
    assert!(stuck.unwrap_err().is_unavailable());
    assert!(renewed.unwrap_err().is_unavailable());
    drop(holder);
    assert_eq!(store.complete(&held_id, held, &held_answer, DAY).await.unwrap(), Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_claims_at_once_through_two_stores_exactly_one_is_acquired() {
    let database = database!();
    let (store, pool) = migrated(&database, 6).await;
    let other = PostgresStore::new(pool.clone());
    for round in 0..100 {
        let key = id(&format!("round {round}"));
        let claims = (0..64).map(|at| {
            let (store, key) = (if at % 2 == 0 { store.clone() } else { other.clone() }, key.clone());
            tokio::spawn(async move { store.claim(&key, &claim()).await.unwrap() })
        });
        let outcomes = join_all(claims).await;
        let acquired = outcomes.into_iter().filter(|it| matches!(it, Ok(Claim::Acquired { .. }))).count();
        assert_eq!(acquired, 1, "round {round}");
    }
    assert_eq!(number(&pool, "select count(*) from idempotency_keys").await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_vanishes_while_it_is_claimed_leaves_exactly_one_owner() {
    let database = database!();
    let (store, pool) = migrated(&database, 8).await;
    let other = PostgresStore::new(pool.clone());
    for round in 0..150 {
        let key = id(&format!("round {round}"));
        let first = claim();
        let _ = store.claim(&key, &first).await.unwrap();
        let claims = (0..8).map(|at| {
            let (store, key) = (if at % 2 == 0 { store.clone() } else { other.clone() }, key.clone());
            async move { store.claim(&key, &claim()).await.unwrap() }
        });
        let (released, outcomes) = tokio::join!(other.release(&key, first.token), join_all(claims));
        assert_eq!(released.unwrap(), Fenced::Applied);
        let acquired = outcomes.iter().filter(|it| matches!(it, Claim::Acquired { attempt: 1 })).count();
        assert!(acquired <= 1, "round {round}: {outcomes:?}");
        assert_eq!(store.lookup(&key).await.unwrap().is_some(), acquired == 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serialization_failures_and_deadlocks_never_reach_the_caller() {
    let database = database!();
    let (_, pool) = migrated(&database, 2).await;
    let strict = || {
        let options = database.url().parse::<sqlx::postgres::PgConnectOptions>().unwrap();
        options.options([("default_transaction_isolation", "serializable"), ("deadlock_timeout", "5ms")])
    };
    let stores = join_all((0..4).map(|_| async {
        PostgresStore::new(PgPoolOptions::new().max_connections(4).connect_with(strict()).await.unwrap())
    }))
    .await;
    for round in 0..20 {
        let work = (0..200).map(|at| {
            let store = stores[at % stores.len()].clone();
            // In another order in each store.
            let key = id(&format!("{round} {}", (at / 4 * (1 + at % 4 * 6)) % 50));
            async move {
                let claim = claim();
                let Claim::Acquired { .. } = store.claim(&key, &claim).await? else { return Ok(0) };
                let (renewed, completed) = (store.renew(&key, claim.token, LONG).await?, answer("x"));
                assert_eq!(renewed, Fenced::Applied);
                assert_eq!(store.complete(&key, claim.token, &completed, DAY).await?, Fenced::Applied);
                Ok::<_, StoreError>(1)
            }
        });
        for outcome in join_all(work).await {
            outcome.unwrap_or_else(|error| panic!("{}", told(&error)));
        }
    }
    let all = number(&pool, "select count(*) from idempotency_keys").await;
    assert_eq!(number(&pool, "select count(*) from idempotency_keys where status = 'COMPLETED'").await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_calls_at_once_wait_for_room_and_all_succeed() {
    let database = database!();
    let (store, pool) = migrated(&database, 3).await;
    let calls = (0..10_000).map(|at| {
        let store = store.clone();
        async move {
            let (key, claim) = (id(&format!("{at}")), claim());
            assert!(matches!(store.claim(&key, &claim).await.unwrap(), Claim::Acquired { attempt: 1 }));
            assert_eq!(store.complete(&key, claim.token, &answer("x"), DAY).await.unwrap(), Fenced::Applied);
        }
    });
    join_all(calls).await;
    assert_eq!(number(&pool, "select count(*) from idempotency_keys where status = 'COMPLETED'").await, 10_000);
}

#[test]
fn a_runtime_that_ends_amid_calls_ends_in_time_and_leaves_the_store_to_others() {
    let Some(server) = Server::shared() else { return };
    let [ending, lasting] = [(); 2].map(|()| Runtime::new().unwrap());
    let database = lasting.block_on(server.database());
    let (store, _pool) = ending.block_on(migrated(&database, 5));
    let answered = Arc::new(AtomicUsize::new(0));
    for client in 0..50 {
        let (store, answered) = (store.clone(), Arc::clone(&answered));
        ending.spawn(async move {
            for call in 0.. {
                let (id, claim) = (id(&format!("{client}-{call}")), claim());
                let _ = store.claim(&id, &claim).await;
                let _ = store.renew(&id, claim.token, LONG).await;
                let _ = store.complete(&id, claim.token, &answer("x"), DAY).await;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    postgres::wait_until("calls are under way", || answered.load(Ordering::Relaxed) > 200);
    let (tell, told) = mpsc::channel();
    let handle = ending.handle().clone();
    thread::spawn(move || {
        drop(ending);
        let _closed = handle.enter();
        let called = futures_executor::block_on(store.claim(&id("late"), &claim()));
        tell.send((called.map(|_| ()), store)).unwrap();
    });
    let (called, store) = told.recv_timeout(Duration::from_secs(60)).expect("the runtime ends");
    assert!(called.unwrap_err().to_string().contains("unavailable"));

    // Each connection that belonged to the ended runtime may fail one call.
    let claims = (0..6).map(|number| lasting.block_on(store.claim(&id(&format!("after-{number}")), &claim())).is_ok());
    assert!(claims.last().unwrap());
}

#[tokio::test]
async fn an_exhausted_pool_is_an_error_and_the_store_works_again_afterwards() {
    let database = database!();
    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_millis(200));
    let pool = options.connect(database.url()).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let taken = pool.acquire().await.unwrap();
    assert!(store.claim(&id("k"), &claim()).await.unwrap_err().is_unavailable());
    drop(taken);
    let _token = claimed(&store, "k").await;
}

async fn fill(pool: &PgPool, rows: u32, expired: bool, status: &str) {
    let moment = if expired { "now() - interval '1 minute'" } else { "now() + interval '1 day'" };
    run(
        pool,
        &format!(
            "insert into idempotency_keys (scope, idempotency_key, status, attempt, token, request_hash, response_status,
                 response_body, lease_until, expires_at, purge_at)
             select 'filled', gen_random_uuid()::text, '{status}', 1, gen_random_uuid(), sha256('x'), 200, '\\x00',
                 now() - interval '2 minutes', {moment}, {moment}
             from generate_series(1, {rows})"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_instances_purge_at_once_and_remove_each_expired_record_once() {
    let database = database!();
    let (store, pool) = migrated(&database, 8).await;
    fill(&pool, 20_000, true, "COMPLETED").await;
    fill(&pool, 500, false, "COMPLETED").await;
    let _token = claimed(&store, "in flight").await;
    let purges = (0..4).map(|_| {
        let purge = Purge::new(PostgresStore::new(pool.clone())).batch(500);
        async move { purge.run().await.unwrap() }
    });
    let removed: usize = join_all(purges).await.into_iter().sum();
    // A batch that found its rows taken by others stops early, so that one more looks after what is left.
    let rest = Purge::new(store.clone()).run().await.unwrap();
    assert_eq!(removed + rest, 20_000);
    assert_eq!(number(&pool, "select count(*) from idempotency_keys").await, 501);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_takes_too_long_is_ended_by_the_server_and_smaller_ones_follow() {
    let database = database!();
    let (store, pool) = migrated(&database, 4).await;
    // Each row takes 10 ms to delete.
    run(
        &pool,
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.01); return old; end $$;
         create trigger slow before delete on idempotency_keys for each row execute function slow()",
    )
    .await;
    fill(&pool, 40, true, "COMPLETED").await;
    let store = store.purge_time(Duration::from_millis(250));
    assert_eq!(store.purge(1000).await.unwrap(), 40);
    assert_eq!(number(&pool, "select count(*) from idempotency_keys").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_finds_what_is_due_by_the_index() {
    let database = database!();
    // One connection, so that the server counts what the purge did before it answers the next question.
    let (store, pool) = migrated(&database, 1).await;
    fill(&pool, 20_000, false, "COMPLETED").await;
    fill(&pool, 10, true, "COMPLETED").await;
    run(&pool, "analyze idempotency_keys").await;
    run(&pool, "select pg_stat_force_next_flush()").await;
    let by_index = "select idx_scan from pg_stat_user_indexes where indexrelname = 'idempotency_keys_purge_at'";
    let whole_table = "select seq_scan from pg_stat_user_tables where relname = 'idempotency_keys'";
    let before = (number(&pool, by_index).await, number(&pool, whole_table).await);
    assert_eq!(store.purge(1000).await.unwrap(), 10);
    run(&pool, "select pg_stat_force_next_flush()").await;
    let after = (number(&pool, by_index).await, number(&pool, whole_table).await);
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 0), "one scan of the index and none of the table");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_in_the_background_removes_what_is_due_tells_its_failures_and_stops() {
    let database = database!();
    let (store, pool) = migrated(&database, 4).await;
    fill(&pool, 3000, true, "COMPLETED").await;
    let purge = Purge::new(store).every(Duration::from_millis(20)).batch(100).spawn();
    until("all removed", || purge.status().removed == 3000).await;
    run(&pool, "alter table idempotency_keys rename to gone").await;
    until("a failure is told", || purge.status().last_error.is_some()).await;
    run(&pool, "alter table gone rename to idempotency_keys").await;
    fill(&pool, 10, true, "COMPLETED").await;
    until("it goes on", || purge.status().removed == 3010).await;
    assert_eq!(purge.stop().await.removed, 3010);
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_and_returns_fails_calls_for_a_while_and_loses_nothing() {
    let Some(server) = Server::own() else { return };
    let database = server.database().await;
    let (store, pool) = migrated(&database, 4).await;
    let store = Arc::new(store);
    let mut completed = Vec::new();
    for number in 0..50 {
        let key = format!("before {number}");
        let token = claimed(&store, &key).await;
        assert_eq!(store.complete(&id(&key), token, &answer(&key), DAY).await.unwrap(), Fenced::Applied);
        completed.push(key);
    }
    server.restart_immediate().await;
    let start = Instant::now();
    while store.lookup(&id("before 0")).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the store does not recover");
    }
    for key in completed {
        let record = store.lookup(&id(&key)).await.unwrap().unwrap();
        assert_eq!(record.state, State::Completed(answer(&key)));
    }
    drop(pool);
}
