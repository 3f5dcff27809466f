//! Transactional mode on PostgreSQL, over real sockets: the handler's writes and the answer commit together, or neither.

#[path = "support/postgres.rs"]
mod postgres;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    routing::post,
};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use postgres::{Database, PgBouncer, Server};
use sqlx::{AssertSqlSafe, Connection, PgPool, Row, postgres::PgPoolOptions};
use tokio::sync::Semaphore;
use tower_idempotency::{Attempt, IdempotencyLayer, Isolation, PostgresStore, PostgresTransaction, TransactionError};

macro_rules! server {
    () => {
        match Server::shared() {
            Some(server) => server,
            None => return,
        }
    };
}

/// An application with a table of charges, and a client for it.
struct App {
    address: std::net::SocketAddr,
    pool: PgPool,
    runs: Arc<AtomicU32>,
    /// A handler of `/gated` waits here.
    gate: Arc<Semaphore>,
    _database: Option<Database>,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

impl App {
    async fn start(server: &Server) -> Self {
        let database = server.database().await;
        let pool = database.pool(8).await;
        let store = PostgresStore::new(pool.clone());
        Self::with(store, pool, Some(database), |layer| layer).await
    }

    async fn with(
        store: PostgresStore,
        pool: PgPool,
        database: Option<Database>,
        set: impl FnOnce(IdempotencyLayer<PostgresStore>) -> IdempotencyLayer<PostgresStore>,
    ) -> Self {
        store.migrate().await.unwrap();
        sqlx::raw_sql(
            "create table if not exists charges (key text not null, unique (key) deferrable initially deferred)",
        )
        .execute(&pool)
        .await
        .unwrap();
        let (runs, gate) = (Arc::<AtomicU32>::default(), Arc::new(Semaphore::new(0)));
        let router = router(pool.clone(), Arc::clone(&runs), Arc::clone(&gate));
        let router = router.layer(set(IdempotencyLayer::new(store).transactional()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, pool, runs, gate, _database: database }
    }

    async fn send(&self, path: &str, key: &str) -> Answer {
        let request = Request::post(format!("http://{}{path}", self.address))
            .header("idempotency-key", key)
            .body(Body::empty())
            .unwrap();
        let response = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn charges(&self) -> i64 {
        self.number("select count(*) from charges").await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn until_runs(&self, runs: u32) {
        let start = Instant::now();
        while self.runs() < runs {
            assert!(start.elapsed() < Duration::from_secs(60), "{} runs and not {runs}", self.runs());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn insert(transaction: &PostgresTransaction, attempt: &Attempt) -> Result<(), TransactionError> {
    let mut tx = transaction.begin().await?;
    sqlx::query("insert into charges values ($1)").bind(attempt.key().as_str()).execute(&mut *tx).await?;
    Ok(())
}

type Handled = Result<(StatusCode, String), TransactionError>;

fn router(pool: PgPool, runs: Arc<AtomicU32>, gate: Arc<Semaphore>) -> Router {
    let count = {
        let runs = Arc::clone(&runs);
        move || runs.fetch_add(1, Ordering::SeqCst) + 1
    };
    let (c1, c2, c3, c4, c5, c6, c7) =
        (count.clone(), count.clone(), count.clone(), count.clone(), count.clone(), count.clone(), count.clone());
    let ok = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        Ok((StatusCode::CREATED, format!("charge {}", c1())))
    });
    let declined = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        Ok((StatusCode::PAYMENT_REQUIRED, format!("declined {}", c2())))
    });
    let untouched = post(async move |_: PostgresTransaction| (StatusCode::CREATED, format!("nothing {}", c3())));
    // The second insert breaks a rule that is checked at the commit.
    let deferred = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        if c4() == 1 {
            insert(&tx, &attempt).await?;
        }
        Ok((StatusCode::CREATED, "charged".to_owned()))
    });
    // The handler overlooks an error of the database, and answers with success.
    let swallowed = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        if c5() == 1 {
            let mut tx = tx.begin().await?;
            let _ = sqlx::query("select 1 / 0").execute(&mut *tx).await;
        }
        Ok((StatusCode::CREATED, "charged".to_owned()))
    });
    // The first run loses its connection after its write.
    let severed = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        if c6() == 1 {
            let mut tx = tx.begin().await?;
            let pid: i32 = sqlx::query("select pg_backend_pid()").fetch_one(&mut *tx).await?.get(0);
            drop(tx);
            sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&pool).await?;
        }
        Ok((StatusCode::CREATED, "charged".to_owned()))
    });
    let gated = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        insert(&tx, &attempt).await?;
        let run = c7();
        gate.acquire().await.unwrap().forget();
        Ok((StatusCode::CREATED, format!("run {run}, attempt {}", attempt.number())))
    });
    let savepoint = post(async move |tx: PostgresTransaction, attempt: Attempt| -> Handled {
        let mut outer = tx.begin().await?;
        let mut inner = outer.begin().await?;
        sqlx::query("insert into charges values ('undone')").execute(&mut *inner).await?;
        inner.rollback().await?;
        drop(outer);
        insert(&tx, &attempt).await?;
        Ok((StatusCode::CREATED, "charged".to_owned()))
    });
    Router::new()
        .route("/ok", ok)
        .route("/declined", declined)
        .route("/untouched", untouched)
        .route("/deferred", deferred)
        .route("/swallowed", swallowed)
        .route("/severed", severed)
        .route("/gated", gated)
        .route("/savepoint", savepoint)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_commits_the_writes_and_the_answer_together() {
    let app = App::start(server!()).await;
    let first = app.send("/ok", "k").await;
    assert_eq!((first.status, &*first.body), (StatusCode::CREATED, "charge 1"));
    let retry = app.send("/ok", "k").await;
    assert!(retry.is_replay());
    assert_eq!((retry.status, &*retry.body), (StatusCode::CREATED, "charge 1"));
    assert_eq!((app.charges().await, app.runs()), (1, 1));
    // One transaction wrote both.
    let shared = "select count(*) from charges c, idempotency_keys k where c.xmin = k.xmin and k.status = 'COMPLETED'";
    assert_eq!(app.number(shared).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_answer_rolls_the_writes_back_and_is_recorded() {
    let app = App::start(server!()).await;
    let first = app.send("/declined", "k").await;
    assert_eq!((first.status, &*first.body), (StatusCode::PAYMENT_REQUIRED, "declined 1"));
    assert!(app.send("/declined", "k").await.is_replay());
    assert_eq!((app.charges().await, app.runs()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_when_says_which_answers_commit() {
    let database = server!().database().await;
    let pool = database.pool(8).await;
    let store = PostgresStore::new(pool.clone());
    let set = |layer: IdempotencyLayer<_>| layer.commit_when(|head| head.status == StatusCode::PAYMENT_REQUIRED);
    let app = App::with(store, pool, Some(database), set).await;
    assert_eq!(app.send("/declined", "a").await.status, StatusCode::PAYMENT_REQUIRED);
    assert_eq!(app.send("/ok", "b").await.status, StatusCode::CREATED);
    assert_eq!(app.number("select count(*) from charges where key = 'a'").await, 1);
    assert_eq!(app.charges().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_never_touches_the_transaction_costs_no_connection() {
    let database = server!().database().await;
    let pool = database.pool(8).await;
    // A pool that would fail if it were asked.
    let none = PgPoolOptions::new().acquire_timeout(Duration::from_secs(1)).connect_lazy("postgres://127.0.0.1:1/x");
    let store = PostgresStore::new(pool.clone()).transaction_pool(none.unwrap());
    let app = App::with(store, pool, Some(database), |layer| layer).await;
    let first = app.send("/untouched", "k").await;
    assert_eq!((first.status, &*first.body), (StatusCode::CREATED, "nothing 1"));
    assert!(app.send("/untouched", "k").await.is_replay());
    // And one that touches it gets a 503 and can be retried.
    assert_eq!(app.send("/ok", "other").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(app.number("select count(*) from idempotency_keys where idempotency_key = 'other'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_the_commit_is_a_503_with_nothing_done_and_the_key_free() {
    let app = App::start(server!()).await;
    for (at, path) in ["/deferred", "/swallowed", "/severed"].into_iter().enumerate() {
        app.runs.store(0, Ordering::SeqCst);
        let refused = app.send(path, path).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", refused.body);
        assert!(refused.headers.contains_key("retry-after"), "{path}");
        assert_eq!(app.charges().await, at as i64, "{path}: nothing was done");
        let retry = app.send(path, path).await;
        assert_eq!((retry.status, retry.is_replay()), (StatusCode::CREATED, false), "{path}: {}", retry.body);
        assert_eq!(app.number("select count(*) from idempotency_keys where attempt > 1").await, 0, "{path}");
        assert!(app.send(path, path).await.is_replay(), "{path}");
        assert_eq!(app.charges().await, at as i64 + 1, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serialization_failure_at_the_commit_is_a_503_and_the_retry_succeeds() {
    let database = server!().database().await;
    let pool = database.pool(8).await;
    let store = PostgresStore::new(pool.clone()).isolation(Isolation::Serializable);
    let app = Arc::new(App::with(store, pool, Some(database), |layer| layer).await);
    // Two transactions that would each read what the other one writes.
    sqlx::raw_sql(
        "create table seen (n int); create function skew() returns trigger language plpgsql as
        $$ begin insert into seen select count(*) from charges; return new; end $$;
        create trigger skew before insert on charges for each row execute function skew()",
    )
    .execute(&app.pool)
    .await
    .unwrap();
    let send = |key: &'static str| {
        let app = Arc::clone(&app);
        tokio::spawn(async move { app.send("/gated", key).await })
    };
    let both = [send("a"), send("b")];
    app.until_runs(2).await;
    app.gate.add_permits(2);
    let mut statuses = Vec::new();
    for answer in both {
        statuses.push(answer.await.unwrap().status);
    }
    statuses.sort();
    assert_eq!(statuses, [StatusCode::CREATED, StatusCode::SERVICE_UNAVAILABLE]);
    assert_eq!(app.charges().await, 1);
    app.gate.add_permits(2);
    for key in ["a", "b"] {
        assert_eq!(app.send("/gated", key).await.status, StatusCode::CREATED);
    }
    assert_eq!(app.charges().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_lost_its_lease_cannot_commit() {
    let app = Arc::new(App::start(server!()).await);
    let late = tokio::spawn({
        let app = Arc::clone(&app);
        async move { app.send("/gated", "k").await }
    });
    app.until_runs(1).await;
    // What a takeover by another instance leaves.
    let stolen = "update idempotency_keys set token = gen_random_uuid(), attempt = 2 where idempotency_key = 'k'";
    sqlx::raw_sql(stolen).execute(&app.pool).await.unwrap();
    let before = app.number("select hashtext(k::text)::bigint from idempotency_keys k").await;
    app.gate.add_permits(1);
    let answer = late.await.unwrap();
    assert_ne!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(app.charges().await, 0);
    assert_eq!(app.number("select hashtext(k::text)::bigint from idempotency_keys k").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_slower_than_its_lease_commits_and_its_client_may_be_gone() {
    let database = server!().database().await;
    let pool = database.pool(8).await;
    let store = PostgresStore::new(pool.clone());
    let app = App::with(store, pool, Some(database), |layer| layer.lease(Duration::from_millis(300))).await;
    let renewed = "select count(*) from idempotency_keys where updated_at > created_at + interval '700 ms'";
    let gone = tokio::time::timeout(Duration::from_millis(50), app.send("/gated", "k")).await;
    assert!(gone.is_err());
    app.until_runs(1).await;
    let start = Instant::now();
    while app.number(renewed).await == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the lease is not renewed");
    }
    assert_eq!(app.send("/gated", "k").await.status, StatusCode::CONFLICT);
    app.gate.add_permits(1);
    let start = Instant::now();
    while app.charges().await == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the run whose client went away does not commit");
    }
    let retry = app.send("/gated", "k").await;
    assert_eq!((retry.is_replay(), &*retry.body), (true, "run 1, attempt 1"));
    assert_eq!(app.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_within_the_transaction_is_a_savepoint() {
    let app = App::start(server!()).await;
    assert_eq!(app.send("/savepoint", "k").await.status, StatusCode::CREATED);
    assert_eq!(app.number("select count(*) from charges where key = 'k'").await, 1);
    assert_eq!(app.charges().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_work_behind_pgbouncer_in_transaction_mode() {
    let database = server!().database().await;
    let Some(pooler) = PgBouncer::start(&database) else { return };
    let options: sqlx::postgres::PgConnectOptions = pooler.url().parse().unwrap();
    let pool = PgPoolOptions::new().max_connections(8).connect_with(options.statement_cache_capacity(0)).await.unwrap();
    let store = PostgresStore::new(pool.clone()).without_prepared_statements();
    let app = Arc::new(App::with(store, pool, Some(database), |layer| layer).await);
    let sent = (0..60).map(|at| {
        let app = Arc::clone(&app);
        tokio::spawn(async move {
            let key = format!("k{}", at / 3);
            loop {
                let answer = app.send("/ok", &key).await;
                if answer.status == StatusCode::CREATED {
                    return;
                }
                assert!(
                    [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status),
                    "{}: {}",
                    answer.status,
                    answer.body
                );
            }
        })
    });
    for sent in sent.collect::<Vec<_>>() {
        sent.await.unwrap();
    }
    assert_eq!((app.charges().await, app.runs()), (20, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_held_while_a_handler_runs_that_has_not_begun() {
    let database = server!().database().await;
    let pool = database.pool(5).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let (entered, gate) = (Arc::<AtomicU32>::default(), Arc::new(Semaphore::new(0)));
    let handler = {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        post(async move || {
            entered.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            StatusCode::CREATED
        })
    };
    let layer = IdempotencyLayer::new(store).lease(Duration::from_millis(500));
    let router = Router::new().route("/slow", handler).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let app = Arc::new(App { address, pool: pool.clone(), runs: entered, gate, _database: Some(database) });
    let sent: Vec<_> = (0..50)
        .map(|at| {
            let app = Arc::clone(&app);
            tokio::spawn(async move { app.send("/slow", &format!("k{at}")).await.status })
        })
        .collect();
    app.until_runs(50).await;
    // All connections can be had at once, and the leases are renewed all the same.
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(pool.acquire().await.unwrap());
    }
    let renewed = "select count(*) from idempotency_keys where updated_at > created_at + interval '1 s'";
    let start = Instant::now();
    while sqlx::raw_sql(renewed).fetch_one(&mut *all[0]).await.unwrap().get::<i64, _>(0) < 50 {
        assert!(start.elapsed() < Duration::from_secs(60), "the leases are not renewed");
    }
    drop(all);
    app.gate.add_permits(50);
    for status in sent {
        assert_eq!(status.await.unwrap(), StatusCode::CREATED);
    }
}
