//! Processes of the payments example on one PostgreSQL: crashes of either, exhaustion and shutdown charge nobody twice.

#![cfg(unix)]

#[path = "support/postgres.rs"]
mod postgres;

use std::{
    collections::BTreeMap,
    future::Future,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use postgres::{Database, Server};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::{
    spawn,
    task::JoinHandle,
    time::{sleep, timeout},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_requests_of_a_key_over_two_instances_are_one_charge_and_one_answer() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        // Both make the tables.
        let instances = [Instance::spawn(&database, &[]), Instance::spawn(&database, &[])].map(Instance::ready);
        let call = |caller| {
            let addresses = instances.each_ref().map(Instance::address);
            spawn(async move {
                let http = Caller::new();
                for nth in 0..4 {
                    let key = key(caller, nth);
                    let answers = join_all((0..5).map(|copy| http.until_answered(&addresses, copy, &key))).await;
                    assert!(answers.iter().all(|answer| answer.body == answers[0].body), "{answers:?}");
                    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed).count(), 1, "{answers:?}");
                }
            })
        };
        for caller in (0..64).map(call).collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        let ledger = ledger(&database.pool(1).await).await;
        assert_eq!(ledger.len(), 64 * 4);
        assert_one_charge_a_key(&ledger);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_are_killed_at_any_moment_charge_once_in_transactional_mode() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        let answers = under_kills(&database, &[]).await;
        let ledger = ledger(&database.pool(1).await).await;
        assert_one_charge_a_key(&ledger);
        assert_answers_are_in(&answers, &ledger);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_are_killed_charge_twice_in_plain_mode_only_by_an_attempt_that_was_told() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        let answers = under_kills(&database, &["--plain"]).await;
        let ledger = ledger(&database.pool(1).await).await;
        assert_answers_are_in(&answers, &ledger);
        for (key, charges) in &ledger {
            let mut attempts: Vec<_> = charges.iter().map(|charge| charge.attempt.unwrap()).collect();
            attempts.sort_unstable();
            attempts.dedup();
            // So at most one of them is attempt 1, and each other one knew that it was a rerun.
            assert_eq!(attempts.len(), charges.len(), "{key}: {charges:?}");
            assert!(attempts[0] >= 1, "{key}: {charges:?}");
        }
        let twice = ledger.values().filter(|charges| charges.len() > 1).count();
        println!("{twice} of {} keys were charged more than once", ledger.len());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_database_charges_nobody_twice_and_the_service_returns_by_itself() {
    let Some(server) = Server::own() else { return };
    in_time(async {
        let database = server.database().await;
        let instance = Instance::spawn(&database, &["--lease-ms", "500", "--delay-ms", "2"]).ready();
        let addresses = [instance.address()];
        let load = Load::start(16, &addresses);
        let mut random = Random::seeded();
        for restart in 0..3 {
            sleep(Duration::from_millis(100 + random.below(500))).await;
            server.restart_immediate().await;
            let _ = Caller::new().until_answered(&addresses, 0, &key(1000, restart)).await;
        }
        let answers = load.stop().await;
        let ledger = ledger(&database.pool(1).await).await;
        assert_one_charge_a_key(&ledger);
        assert_answers_are_in(&answers, &ledger);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_connections_refuses_with_503_and_serves_again_when_it_has_some() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        let instance = Instance::spawn(&database, &["--pool", "1", "--lease-ms", "500"]).ready();
        let addresses = [instance.address()];
        let pool = database.pool(2).await;
        let lock = lock_charges(&pool).await;
        let holder = spawn({
            let addresses = addresses.clone();
            async move { Caller::new().until_answered(&addresses, 0, &key(0, 0)).await }
        });
        until_inserts_wait(&pool, 1).await;

        let http = Caller::new();
        // The first of them has the key of the one that holds the connection.
        let keys: Vec<_> = (0..6).map(|nth| key(0, nth)).collect();
        for answer in join_all(keys.iter().map(|key| http.send(&addresses[0], Some(key), key))).await {
            assert_eq!(answer.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert!(ledger(&pool).await.is_empty());

        lock.rollback().await.unwrap();
        let mut answers = BTreeMap::new();
        for key in keys {
            let answer = http.until_answered(&addresses, 0, &key).await;
            answers.insert(key, answer);
        }
        assert_eq!(holder.await.unwrap().body, answers[&key(0, 0)].body);
        let ledger = ledger(&pool).await;
        assert_eq!(ledger.len(), 6);
        assert_one_charge_a_key(&ledger);
        assert_answers_are_in(&answers, &ledger);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_lets_open_charges_commit_and_be_answered() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        let mut instance = Instance::spawn(&database, &[]).ready();
        let pool = database.pool(2).await;
        let lock = lock_charges(&pool).await;
        let requests: Vec<_> = (0..8)
            .map(|nth| {
                let address = instance.address();
                spawn(async move { Caller::new().send(&address, Some(&key(0, nth)), "c").await })
            })
            .collect();
        until_inserts_wait(&pool, 8).await;

        instance.signal(Signal::SIGTERM);
        instance.wait_for_line("stopping: ");
        lock.rollback().await.unwrap();
        for request in requests {
            assert_eq!(request.await.unwrap().unwrap().status, StatusCode::CREATED);
        }
        instance.wait_for_line("stopped; guarded requests left: 0");
        assert_eq!(instance.process.wait().unwrap().code(), Some(0));
        assert_eq!(ledger(&pool).await["c"].len(), 8);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_without_a_key_needs_no_transaction() {
    let Some(server) = Server::shared() else { return };
    in_time(async {
        let database = server.database().await;
        let instance = Instance::spawn(&database, &[]).ready();
        for _ in 0..2 {
            let answer = Caller::new().send(&instance.address(), None, "c").await.unwrap();
            assert_eq!(answer.status, StatusCode::CREATED);
        }
        let attempts: Vec<_> = ledger(&database.pool(1).await).await["c"].iter().map(|it| it.attempt).collect();
        assert_eq!(attempts, [None, None]);
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named_at_the_start() {
    let Some(server) = Server::shared() else { return };
    let url = server.url().replace("postgres@", "postgres:secret@");
    let url = url.rsplit_once('/').unwrap().0;
    assert_refused_at_the_start(&format!("{url}/nowhere"), "no database nowhere; make it with `createdb nowhere`");
}

#[test]
fn a_server_that_is_not_there_is_named_at_the_start() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_refused_at_the_start(
        &format!("postgres://u:secret@{unused}/shop"),
        &format!("cannot reach PostgreSQL at {unused}"),
    );
}

#[test]
fn a_wrong_password_is_not_printed() {
    // The servers of these tests believe everybody, so this one is a few bytes of the protocol.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let refusing = thread::spawn(move || {
        let (mut connection, _) = server.accept().unwrap();
        let mut length = [0; 4];
        connection.read_exact(&mut length).unwrap();
        let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
        connection.read_exact(&mut startup).unwrap();
        let fields = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0";
        let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        connection.write_all(&[b"E".as_slice(), &length, fields].concat()).unwrap();
    });
    let url = format!("postgres://u:secret@{address}/shop?sslmode=disable");
    assert_refused_at_the_start(&url, "refuses this password of the user u");
    refusing.join().unwrap();
}

#[test]
fn an_address_that_cannot_be_read_is_not_printed() {
    assert_refused_at_the_start("postgres://u:secret@[::/shop", "cannot be read");
}

/// How long a test may take, on a busy machine.
const TEST: Duration = Duration::from_secs(50);

/// How long an answer may take, or a line of output. The example gives the database up after 5 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a client waits before it sends a request again.
const PAUSE: Duration = Duration::from_millis(10);

async fn in_time(test: impl Future<Output = ()>) {
    timeout(TEST, test).await.expect("the test ends in time");
}

/// Kills instances under load, at moments that depend on the seed and the machine, and returns the answer of each key.
async fn under_kills(database: &Database, arguments: &[&str]) -> BTreeMap<String, Answer> {
    let arguments = [&["--lease-ms", "500", "--delay-ms", "2"], arguments].concat();
    let spawn = || Instance::spawn(database, &arguments);
    let mut instances = [spawn(), spawn()].map(Instance::ready);
    let load = Load::start(24, &instances.each_ref().map(Instance::address));
    let mut random = Random::seeded();
    for _ in 0..12 {
        sleep(Duration::from_millis(20 + random.below(400))).await;
        let victim = &mut instances[usize::from(random.below(2) == 1)];
        // A port of its own, because another process may have taken the one that is free now.
        let address = victim.address();
        victim.signal(Signal::SIGKILL);
        victim.process.wait().unwrap();
        *victim = spawn().at(address).ready();
    }
    load.stop().await
}

/// Clients that charge one key after the other, each until it is answered.
struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<BTreeMap<String, Answer>>>,
}

impl Load {
    fn start(callers: u64, addresses: &[Address]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let call = |caller| {
            let (stop, addresses) = (Arc::clone(&stop), addresses.to_vec());
            spawn(async move {
                let http = Caller::new();
                let mut answers = BTreeMap::new();
                let mut nth = 0;
                while !stop.load(Ordering::Relaxed) {
                    let key = key(caller, nth);
                    let answer = http.until_answered(&addresses, nth, &key).await;
                    answers.insert(key, answer);
                    nth += 1;
                }
                answers
            })
        };
        let callers = (0..callers).map(call).collect();
        Self { stop, callers }
    }

    async fn stop(self) -> BTreeMap<String, Answer> {
        self.stop.store(true, Ordering::Relaxed);
        let mut answers = BTreeMap::new();
        for caller in self.callers {
            answers.extend(caller.await.unwrap());
        }
        answers
    }
}

/// A key, which is also the customer of its charge, so that charges can be counted by it.
fn key(caller: u64, nth: u64) -> String {
    format!("key-{caller}-{nth}")
}

struct Caller(Client<HttpConnector, Full<Bytes>>);

#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    is_replayed: bool,
    body: Bytes,
}

impl Caller {
    fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// Sends a charge once. An error is what the network did.
    async fn send(&self, address: &Address, key: Option<&str>, customer: &str) -> Result<Answer, String> {
        let url = format!("http://{}/v1/charges", address.lock().unwrap());
        let mut request = Request::post(url).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let body = json!({ "amount": 5, "currency": "eur", "customer_id": customer }).to_string();
        let request = request.body(Full::from(body)).unwrap();
        let answer = async {
            let response = self.0.request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            Ok(Answer { status: head.status, is_replayed: head.headers.contains_key("idempotent-replayed"), body })
        };
        timeout(PATIENCE, answer).await.expect("no request hangs")
    }

    /// Sends the charge of a key again and again, to one address after the other, until it is answered.
    async fn until_answered(&self, addresses: &[Address], first: u64, key: &str) -> Answer {
        let start = usize::try_from(first).unwrap() % addresses.len();
        for address in addresses.iter().cycle().skip(start) {
            if let Ok(answer) = self.send(address, Some(key), key).await {
                match answer.status {
                    StatusCode::CREATED => return answer,
                    StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE => {}
                    _ => panic!("{key}: {answer:?}"),
                }
            }
            sleep(PAUSE).await;
        }
        unreachable!("the addresses are cycled")
    }
}

/// A charge in the database.
#[derive(Debug)]
struct Charge {
    id: String,
    attempt: Option<i64>,
}

/// The charges of each customer, which is a key.
async fn ledger(pool: &PgPool) -> BTreeMap<String, Vec<Charge>> {
    let query = "select customer_id, id, attempt from charges order by position";
    let rows: Vec<(String, String, Option<i64>)> = sqlx::query_as(query).fetch_all(pool).await.unwrap();
    let mut ledger = BTreeMap::<_, Vec<_>>::new();
    for (customer, id, attempt) in rows {
        ledger.entry(customer).or_default().push(Charge { id, attempt });
    }
    ledger
}

#[track_caller]
fn assert_one_charge_a_key(ledger: &BTreeMap<String, Vec<Charge>>) {
    let wrong: Vec<_> = ledger.iter().filter(|(_, charges)| charges.len() != 1).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:?}", wrong.len(), ledger.len());
}

/// Each answer names a charge of its key, and no key that was answered lacks a charge.
#[track_caller]
fn assert_answers_are_in(answers: &BTreeMap<String, Answer>, ledger: &BTreeMap<String, Vec<Charge>>) {
    for (key, answer) in answers {
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        let charges = ledger.get(key).unwrap_or_else(|| panic!("{key} has no charge"));
        assert!(charges.iter().any(|charge| body["id"] == charge.id.as_str()), "{key}: {body} not in {charges:?}");
    }
}

async fn lock_charges(pool: &PgPool) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut lock = pool.begin().await.unwrap();
    sqlx::query("lock table charges in exclusive mode").execute(&mut *lock).await.unwrap();
    lock
}

/// Waits until so many inserts wait for the lock, each holding its connection.
async fn until_inserts_wait(pool: &PgPool, number: i64) {
    let query = "select count(*) from pg_locks where relation = 'charges'::regclass and not granted";
    let waiting = async || sqlx::query_scalar::<_, i64>(query).fetch_one(pool).await.unwrap();
    while waiting().await != number {
        sleep(PAUSE).await;
    }
}

/// Where an instance listens, which changes when it is started again.
type Address = Arc<Mutex<String>>;

/// A process of the example; killed when it goes out of scope.
struct Instance {
    process: Child,
    address: Address,
    lines: Receiver<String>,
}

impl Instance {
    fn spawn(database: &Database, arguments: &[&str]) -> Self {
        let mut command = command(database.url());
        command.args(["--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { process, address: Address::default(), lines }
    }

    /// Tells those who know this address where it listens.
    fn at(mut self, address: Address) -> Self {
        self.address = address;
        self
    }

    fn ready(self) -> Self {
        let address = self.wait_for_line("listening on http://");
        *self.address.lock().unwrap() = address;
        self
    }

    fn address(&self) -> Address {
        Arc::clone(&self.address)
    }

    /// Returns what follows on the line.
    fn wait_for_line(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a line of output in time");
            if let Some(rest) = line.strip_prefix(start) {
                return rest.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Builds the command. Cargo builds the examples before it runs all tests, but not for a single `--test`.
fn command(store: &str) -> Command {
    let mut path = PathBuf::from(std::env::current_exe().unwrap().parent().unwrap().parent().unwrap());
    path.push("examples/payments");
    assert!(path.exists(), "run `cargo build --example payments --features postgres` first");
    let mut command = Command::new(path);
    command.args(["--store", store]).stdin(Stdio::null());
    command
}

#[track_caller]
fn assert_refused_at_the_start(store: &str, named: &str) {
    let output = command(store).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.starts_with("error: ") && message.contains(named), "{message}");
    assert!(!message.contains("secret"), "{message}");
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    /// Takes the seed from `SEED`, or a new one, and prints it.
    fn seeded() -> Self {
        let new = || SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into();
        let seed = std::env::var("SEED").map_or_else(|_| new(), |seed| seed.parse().unwrap());
        println!("SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
