//! The support for tests on a real PostgreSQL: it starts, it is shared, and it leaves nothing behind.
#![cfg(unix)]

#[path = "support/postgres.rs"]
mod postgres;

use std::{
    env,
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use nix::{
    fcntl::OFlag,
    sys::signal::{Signal, kill},
    unistd::{Pid, User, geteuid},
};
use postgres::{PgBouncer, Server, wait_until};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

#[tokio::test]
async fn two_databases_are_apart() {
    let Some(server) = Server::shared() else { return };
    let (one, other) = tokio::join!(server.database(), server.database());
    let pool = one.pool(2).await;
    sqlx::query("create table only_here (id int)").execute(&pool).await.unwrap();
    sqlx::query("select id from only_here").execute(&pool).await.unwrap();
    let error = sqlx::query("select id from only_here").execute(&other.pool(1).await).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[tokio::test]
async fn a_database_is_dropped_with_its_value_though_a_pool_is_open() {
    let Some(server) = Server::shared() else { return };
    let database = server.database().await;
    let url = database.url().to_owned();
    let _pool = database.pool(2).await;
    drop(database);
    let error = PgConnection::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[tokio::test]
async fn a_private_server_keeps_its_data_and_its_port_when_it_crashes() {
    let Some(server) = Server::own() else { return };
    let database = server.database().await;
    let pool = database.pool(1).await;
    sqlx::query("create table kept (id int)").execute(&pool).await.unwrap();

    server.restart_immediate().await;
    sqlx::query("insert into kept values (1)").execute(&database.pool(1).await).await.unwrap();

    server.stop_immediate().await;
    PgConnection::connect(database.url()).await.unwrap_err();
    server.start().await;
    PgConnection::connect(database.url()).await.unwrap();
}

#[tokio::test]
async fn a_pooler_answers() {
    let Some(server) = Server::shared() else { return };
    let database = server.database().await;
    let Some(pooler) = PgBouncer::start(&database) else { return };
    let mut connection = PgConnection::connect(pooler.url()).await.unwrap();
    sqlx::raw_sql("select 1").execute(&mut connection).await.unwrap();
}

#[test]
fn processes_that_start_together_share_one_server_and_leave_nothing_when_they_are_killed() {
    if Server::shared().is_none() {
        return;
    }
    let folder = Folder::new();
    for _ in 0..3 {
        let starting: Vec<_> = (0..6).map(|_| Holder::spawn(holder_in(&folder, "holds_the_shared_server"))).collect();
        let mut holders: Vec<_> = starting.into_iter().map(Holder::ready).collect();
        let port = holders[0].port;
        assert!(holders.iter().all(|holder| holder.port == port));
        let last = holders.pop().unwrap();
        holders.into_iter().for_each(Holder::kill);
        assert!(listens(port));
        last.kill();
        wait_until("the server and its folder have gone", || !listens(port) && folder.is_empty());
    }
}

#[test]
fn processes_that_come_and_go_find_a_server_each_time() {
    if Server::shared().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut before = Holder::start(holder_in(&folder, "holds_the_shared_server"));
    for _ in 0..12 {
        let next = Holder::spawn(holder_in(&folder, "holds_the_shared_server"));
        before.kill();
        before = next.ready();
        assert!(listens(before.port));
    }
    before.kill();
    wait_until("the folder is empty", || folder.is_empty());
}

#[test]
fn a_process_that_is_killed_leaves_nothing_of_its_private_server_and_its_pooler() {
    if Server::shared().is_none() {
        return;
    }
    let folder = Folder::new();
    let holder = Holder::start(holder_in(&folder, "holds_a_private_server"));
    let port = holder.port;
    assert!(listens(port));
    holder.kill();
    wait_until("the server and its folder have gone", || !listens(port) && folder.is_empty());
}

#[test]
fn a_server_waits_for_the_next_process_and_is_replaced_when_its_supervisor_was_killed() {
    if Server::shared().is_none() {
        return;
    }
    let folder = Folder::new();
    let mut command = holder_in(&folder, "holds_the_shared_server");
    command.env("TOWER_IDEMPOTENCY_PG_LINGER", "30");
    let first = Holder::start(command);
    let port = first.port;
    first.kill();

    let second = Holder::start(holder_in(&folder, "holds_the_shared_server"));
    assert_eq!(second.port, port);
    second.kill();

    let dir = folder.entries().into_iter().find(|dir| dir.join("supervisor.pid").is_file()).unwrap();
    let pid = fs::read_to_string(dir.join("supervisor.pid")).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    let mut fifo = OpenOptions::new();
    fifo.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    wait_until("nobody reads the FIFO", || fifo.open(dir.join("fifo")).is_err());
    assert!(listens(port));

    let third = Holder::start(holder_in(&folder, "holds_the_shared_server"));
    assert_ne!(third.port, port);
    assert!(!listens(port));
    third.kill();
    wait_until("the folder is empty", || folder.is_empty());
}

#[test]
fn an_ordinary_user_needs_no_root() {
    // Where we are an ordinary user, every other test shows it.
    if Server::shared().is_none() || !geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    let program = Folder::new();
    let copy = program.0.join("postgres_support");
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    let user = User::from_name("nobody").unwrap().unwrap();
    chown(&folder.0, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();

    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={}", user.uid), &format!("--regid={}", user.gid), "--clear-groups", "--"]);
    command.arg(copy);
    let holder = Holder::start(hold(command, &folder, "holds_the_shared_server"));
    let port = holder.port;
    holder.kill();
    wait_until("the server and its folder have gone", || !listens(port) && folder.is_empty());
}

#[test]
fn a_missing_program_skips_a_test_aloud_or_fails_it_where_it_is_required() {
    let run = |required: &str| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env("CI", "true").env("TOWER_IDEMPOTENCY_REQUIRE_SERVERS", required);
        command.args(["--exact", "lacks_a_program", "--ignored", "--test-threads=2"]).output().unwrap()
    };
    let skipped = run("0");
    assert!(skipped.status.success());
    let line = "SKIPPED: lacks_a_program: no PostgreSQL server programs (Debian: apt-get install postgresql)\n";
    assert!(String::from_utf8_lossy(&skipped.stderr).contains(line), "{skipped:?}");
    let failed = run("1");
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stdout).contains("apt-get install postgresql"), "{failed:?}");
}

// ---- what the tests above run in processes of their own ----

#[tokio::test]
#[ignore = "a part of other tests"]
async fn holds_the_shared_server() {
    let server = Server::shared().unwrap();
    let database = server.database().await;
    PgConnection::connect(database.url()).await.unwrap();
    hold_until_input_ends(server);
}

#[tokio::test]
#[ignore = "a part of other tests"]
async fn holds_a_private_server() {
    let server = Server::own().unwrap();
    let database = server.database().await;
    let _pooler = PgBouncer::start(&database);
    hold_until_input_ends(&server);
}

#[test]
#[ignore = "a part of other tests"]
fn lacks_a_program() {
    assert!(postgres::found_or_skipped(None::<()>, "PostgreSQL server programs", "postgresql").is_none());
}

fn hold_until_input_ends(server: &Server) {
    println!("holding {}", server.url());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A process that has a server.
struct Holder {
    process: Child,
    port: u16,
}

impl Holder {
    fn start(command: Command) -> Self {
        Self::spawn(command).ready()
    }

    fn spawn(mut command: Command) -> Self {
        Self { process: command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap(), port: 0 }
    }

    fn ready(mut self) -> Self {
        let mut seen = String::new();
        let mut output = BufReader::new(self.process.stdout.as_mut().unwrap());
        while !seen.contains("holding postgres://") {
            assert_ne!(output.read_line(&mut seen).unwrap(), 0, "it ended: {seen}");
        }
        self.port = seen.trim().rsplit(['/', ':']).nth(1).unwrap().parse().unwrap();
        self
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn holder_in(folder: &Folder, test: &str) -> Command {
    hold(Command::new(env::current_exe().unwrap()), folder, test)
}

fn hold(mut command: Command, folder: &Folder, test: &str) -> Command {
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env("TMPDIR", &folder.0).env("TOWER_IDEMPOTENCY_PG_LINGER", "0").current_dir("/");
    command
}

/// A folder for temporary files, so that the processes in it meet no others.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("tower-idempotency-test-{}", Uuid::new_v4().simple()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
