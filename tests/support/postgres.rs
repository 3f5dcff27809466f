//! A real PostgreSQL for tests, started from installed programs and stopped when the last test ends.

#![allow(dead_code)]

use std::{
    env,
    ffi::OsString,
    fs,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown, symlink},
        process::CommandExt,
    },
    panic::Location,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::Mode,
    unistd::{User, geteuid, mkfifo},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use uuid::Uuid;

/// A folder with `initdb` and `postgres`, asked first.
const PROGRAMS: &str = "TOWER_IDEMPOTENCY_PG_BIN";

/// Set to 1, a missing program is a failure and no reason to skip; set to 0, it is none even where `CI` is set.
const REQUIRE: &str = "TOWER_IDEMPOTENCY_REQUIRE_SERVERS";

/// Seconds for which the shared server waits for the next process.
const LINGER: &str = "TOWER_IDEMPOTENCY_PG_LINGER";

/// Another program may take a port between the choice and the start.
const STARTS: u32 = 5;

/// Bounds every wait on a server, so that a fault fails a test and does not hang it.
const PATIENCE: Duration = Duration::from_secs(30);

const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = '.'
max_connections = 300
shared_buffers = 128MB
fsync = off
full_page_writes = off
synchronous_commit = on
autovacuum_naptime = 10min
timezone = 'UTC'
";

/// Owns a server: starts it, obeys `start` and `stop` on its input, and ends it when nobody holds the other end.
///
/// A process that is killed closes what it held, so this needs no cooperation of the tests. A shared server (one with a
/// `link`) lingers, then is withdrawn by removing the link, and still waits for those who came before that.
const SUPERVISOR: &str = r#"
dir=$1 link=$2 linger=$3 bin=$4 settings=$5
control() { as "$bin/pg_ctl" -D "$dir/data" -w "$@" >>"$dir/log" 2>&1 </dev/null; }
start() { control -l "$dir/data/server.log" start; }
stop() { control -m immediate stop; }
create() {
    as "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >>"$dir/log" 2>&1 </dev/null &&
        printf '%s\n' "$settings" >>"$dir/data/postgresql.conf" &&
        start
}
answer() {
    if "$@"; then echo ok; else
        tail -n 40 "$dir/log" "$dir/data/server.log" 2>&1
        echo failed
        return 1
    fi
}
finish() {
    trap - EXIT
    if [ -f "$dir/data/postmaster.pid" ]; then stop; fi
    rm -rf "$dir"
}
obey() {
    came=no
    while read -r command; do
        came=yes
        case $command in start | stop) answer "$command" ;; esac
    done
}
trap finish EXIT
trap exit HUP INT TERM
trap '' PIPE
echo $$ >"$dir/supervisor.pid"
answer create || exit
obey
if [ -n "$link" ]; then
    while [ $came = yes ]; do
        # Who kills this shell leaves the sleep, which must not pass for a reader.
        sleep "$linger" </dev/null
        obey
    done
    if [ "$(readlink "$link")" = "$dir" ]; then rm -f "$link"; fi
    obey
fi
"#;

/// Owns a PgBouncer, in the same way.
const POOLER_SUPERVISOR: &str = r#"
dir=$1 program=$2
finish() {
    trap - EXIT
    if [ -f "$dir/pid" ]; then kill "$(cat "$dir/pid")"; fi
    rm -rf "$dir"
}
trap finish EXIT
trap exit HUP INT TERM
trap '' PIPE
is_up() {
    # It goes to the background first, and then takes its port.
    tries=0
    until grep -q 'process up' "$dir/pooler.log"; do
        if [ $tries = 200 ] || grep -q FATAL "$dir/pooler.log"; then return 1; fi
        tries=$((tries + 1))
        sleep 0.05 </dev/null
    done
}
if as "$program" -q -d "$dir/pgbouncer.ini" >>"$dir/log" 2>&1 </dev/null && is_up; then echo ok; else
    cat "$dir/log" "$dir/pooler.log"
    echo failed
    exit
fi
while read -r _; do :; done
"#;

/// A PostgreSQL server.
pub(crate) struct Server {
    port: u16,
    own: Option<Arc<Mutex<Supervisor>>>,
}

impl Server {
    /// The server of all test processes that run at the same time. The first one starts it.
    ///
    /// `None`, and a line that says so, where the programs are missing.
    #[track_caller]
    pub(crate) fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<(Server, Membership)> = OnceLock::new();
        let programs = found_or_skipped(server_programs(), "PostgreSQL server programs", "postgresql")?;
        let (server, _) = SHARED.get_or_init(|| {
            let membership = Membership::obtain(&programs);
            (Self { port: membership.port, own: None }, membership)
        });
        Some(server)
    }

    /// A server for one test, which may stop it.
    ///
    /// `None`, and a line that says so, where the programs are missing.
    #[track_caller]
    pub(crate) fn own() -> Option<Self> {
        let programs = found_or_skipped(server_programs(), "PostgreSQL server programs", "postgresql")?;
        let (supervisor, port) = with_free_port(|port| {
            let dir = new_dir();
            let input = Stdio::piped();
            Supervisor::start(SUPERVISOR, input, &server_arguments(&dir, Path::new(""), &programs, port))
        });
        Some(Self { port, own: Some(Arc::new(Mutex::new(supervisor))) })
    }

    /// The address of the database `postgres`.
    pub(crate) fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Creates an empty database.
    pub(crate) async fn database(&self) -> Database {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(&self.url()).await.unwrap();
        // Nobody can be connected to `template0`, so that any number of copies can be taken at once.
        let create = format!("create database {name} template template0");
        sqlx::query(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let drop_at = self.own.is_none().then(|| self.url());
        Database { url: self.url_of(&name), name, port: self.port, drop_at }
    }

    /// Stops the server as a crash does: no checkpoint, and clients lose their connections without a word.
    pub(crate) async fn stop_immediate(&self) {
        self.order("stop").await;
    }

    /// Starts the stopped server on the port that it had.
    pub(crate) async fn start(&self) {
        self.order("start").await;
    }

    /// Crashes the server and starts it again on the same port.
    pub(crate) async fn restart_immediate(&self) {
        self.stop_immediate().await;
        self.start().await;
    }

    async fn order(&self, command: &'static str) {
        let supervisor = Arc::clone(self.own.as_ref().expect("a shared server is stopped by nobody"));
        // The runtime of the test stays free for the requests that this interrupts.
        tokio::task::spawn_blocking(move || supervisor.lock().unwrap().order(command)).await.unwrap();
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

/// A database for one test. On a shared server it is dropped with this value, whoever is connected.
pub(crate) struct Database {
    name: String,
    url: String,
    port: u16,
    drop_at: Option<String>,
}

impl Database {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn pool(&self, max_connections: u32) -> PgPool {
        PgPoolOptions::new().max_connections(max_connections).connect(&self.url).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(url) = self.drop_at.take() else { return };
        let statement = format!("drop database if exists {} with (force)", self.name);
        // A thread, because the runtime of the test cannot be waited for from within. Failing here costs only room.
        let dropping = thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            let _ = runtime.block_on(async {
                tokio::time::timeout(PATIENCE, async {
                    let mut connection = PgConnection::connect(&url).await?;
                    sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await?;
                    connection.close().await
                })
                .await
            });
        });
        let _ = dropping.join();
    }
}

/// A PgBouncer before one database, in transaction pooling mode, with four connections to the server.
pub(crate) struct PgBouncer {
    url: String,
    supervisor: Supervisor,
}

impl PgBouncer {
    /// `None`, and a line that says so, where the program is missing.
    #[track_caller]
    pub(crate) fn start(database: &Database) -> Option<Self> {
        let program = found_or_skipped(pooler_program(), "PgBouncer", "pgbouncer")?;
        let (supervisor, port) = with_free_port(|port| {
            let dir = new_dir();
            let settings = pooler_settings(&dir, database, port);
            fs::write(dir.join("pgbouncer.ini"), settings).unwrap();
            let arguments = [dir.as_os_str().to_owned(), program.as_os_str().to_owned()];
            Supervisor::start(POOLER_SUPERVISOR, Stdio::piped(), &arguments)
        });
        Some(Self { url: format!("postgres://postgres@127.0.0.1:{port}/{}", database.name), supervisor })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

fn pooler_settings(dir: &Path, database: &Database, port: u16) -> String {
    let Database { name, port: server_port, .. } = database;
    let dir = dir.display();
    format!(
        "[databases]
{name} = host=127.0.0.1 port={server_port} dbname={name} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 300
ignore_startup_parameters = extra_float_digits,options
pidfile = {dir}/pid
logfile = {dir}/pooler.log
"
    )
}

/// The `sh` that owns a server, and what it is told and answers.
struct Supervisor {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// `Err` has what the server wrote.
    fn start(script: &str, input: Stdio, arguments: &[OsString]) -> Result<Self, String> {
        let mut process = Command::new("sh")
            .arg("-c")
            .arg(format!("{}\n{script}", as_server_user()))
            .arg("supervisor")
            .args(arguments)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // An interrupt at the terminal is for the tests, this has to clean up after them.
            .process_group(0)
            .current_dir("/")
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().expect("the output is a pipe"));
        let mut supervisor = Self { process, answers };
        supervisor.answer().map(|()| supervisor)
    }

    fn order(&mut self, command: &str) {
        let input = self.process.stdin.as_mut().expect("the input is open until the drop");
        writeln!(input, "{command}").unwrap();
        if let Err(log) = self.answer() {
            panic!("the server did not {command}:\n{log}");
        }
    }

    fn answer(&mut self) -> Result<(), String> {
        let mut log = String::new();
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line).unwrap() {
                0 => return Err(log),
                _ if line == "ok\n" => return Ok(()),
                _ if line == "failed\n" => return Err(log),
                _ => log.push_str(&line),
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The right of this process to the shared server, which lives while anybody has one.
struct Membership {
    port: u16,
    /// The write end of the server's FIFO. The standard library opens it close-on-exec, so children do not inherit it.
    _fifo: File,
    /// Kept by the process that started it, so that a write into its output finds a reader.
    _supervisor: Option<Supervisor>,
}

impl Membership {
    fn obtain(programs: &Path) -> Self {
        // Where the path of the server changes with its user, two users never meet.
        let base = temp_dir().join(format!("tower-idempotency-pg-{}", geteuid()));
        if let Found::Live(membership) = Self::join(&base) {
            return membership;
        }
        let lock_path = base.with_extension("lock");
        let _lock = lock(&lock_path);
        let membership = loop {
            match Self::join(&base) {
                Found::Live(membership) => break membership,
                Found::Nothing => break Self::found(&base, programs),
                Found::Dead(dir) => remove_dead(&base, &dir, programs),
            }
        };
        // While it is held: whoever waits for it sees that the file has gone, and looks again.
        fs::remove_file(&lock_path).unwrap();
        membership
    }

    fn join(link: &Path) -> Found {
        loop {
            let Ok(dir) = fs::read_link(link) else { return Found::Nothing };
            assert_eq!(
                fs::symlink_metadata(link).map_or(geteuid().as_raw(), |link| link.uid()),
                geteuid().as_raw(),
                "{} belongs to somebody else",
                link.display()
            );
            // Without a reader this fails, with `ENXIO`: the supervisor has ended, or was killed.
            let fifo = OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(dir.join("fifo"));
            let joined = fifo.and_then(|mut fifo| fifo.write_all(b"join\n").map(|()| fifo));
            // A link that is there after the FIFO was opened was not withdrawn before, so the supervisor waits for us.
            let published = fs::read_link(link).is_ok_and(|now| now == dir);
            match joined {
                Ok(fifo) if published => {
                    let port = fs::read_to_string(dir.join("port")).unwrap().parse().unwrap();
                    return Found::Live(Self { port, _fifo: fifo, _supervisor: None });
                }
                Err(error) if published => {
                    let gone = [Errno::ENXIO as i32, Errno::ENOENT as i32].map(Some).contains(&error.raw_os_error());
                    assert!(gone, "cannot open the FIFO in {}: {error}", dir.display());
                    return Found::Dead(dir);
                }
                _ => {}
            }
        }
    }

    fn found(link: &Path, programs: &Path) -> Self {
        let ((fifo, dir, supervisor), port) = with_free_port(|port| {
            let dir = new_dir();
            let path = dir.join("fifo");
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            // Each end waits for the other, unless there is one who has both.
            let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let input = File::open(&path).unwrap();
            let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
            drop(both);
            let supervisor =
                Supervisor::start(SUPERVISOR, input.into(), &server_arguments(&dir, link, programs, port))?;
            fs::write(dir.join("port"), port.to_string()).unwrap();
            fifo.write_all(b"join\n").unwrap();
            Ok((fifo, dir, supervisor))
        });
        symlink(dir, link).unwrap();
        Self { port, _fifo: fifo, _supervisor: Some(supervisor) }
    }
}

enum Found {
    Nothing,
    Live(Membership),
    /// The supervisor was killed, and could remove nothing.
    Dead(PathBuf),
}

fn remove_dead(link: &Path, dir: &Path, programs: &Path) {
    let script = format!("{}\nas \"$1\" -D \"$2\" -m immediate -w stop", as_server_user());
    let mut stop = Command::new("sh");
    stop.args(["-c", &script, "stop"]).arg(programs.join("pg_ctl")).arg(dir.join("data"));
    // It may have ended too.
    let _ = stop.current_dir("/").stdin(Stdio::null()).output().unwrap();
    let _ = fs::remove_dir_all(dir);
    fs::remove_file(link).unwrap();
}

/// Locks a file that is removed by those who hold it.
fn lock(path: &Path) -> File {
    loop {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).unwrap();
        file.lock().unwrap();
        let held = file.metadata().unwrap();
        if fs::metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return file;
        }
    }
}

fn server_arguments(dir: &Path, link: &Path, programs: &Path, port: u16) -> [OsString; 5] {
    let linger = env::var(LINGER).unwrap_or_else(|_| "5".to_owned());
    [dir.into(), link.into(), linger.into(), programs.into(), format!("{SETTINGS}port = {port}").into()]
}

fn with_free_port<T>(start: impl Fn(u16) -> Result<T, String>) -> (T, u16) {
    let mut log = String::new();
    for _ in 0..STARTS {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        match start(port) {
            Ok(started) => {
                wait_until("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
                return (started, port);
            }
            Err(why) => log = why,
        }
    }
    panic!("the server did not start:\n{log}");
}

/// Waits for what gives no sign of its own.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A folder that the user of the server may write into.
fn new_dir() -> PathBuf {
    let dir = temp_dir().join(format!("tower-idempotency-pg-{}-{}", geteuid(), Uuid::new_v4().simple()));
    fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    if let Some(user) = server_user() {
        chown(&dir, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
    dir
}

fn temp_dir() -> PathBuf {
    env::temp_dir().canonicalize().unwrap()
}

/// Whom the servers run as, if not as ourselves: they refuse to be root.
fn server_user() -> Option<User> {
    if !geteuid().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten());
    Some(user.expect("root needs a user `postgres` or `nobody` to run the servers as"))
}

/// A function of `sh` that runs a command as the user of the server.
fn as_server_user() -> String {
    let Some(User { name, uid, gid, .. }) = server_user() else { return r#"as() { "$@"; }"#.to_owned() };
    if in_path("setpriv").is_some() {
        format!(r#"as() {{ setpriv --reuid={uid} --regid={gid} --clear-groups -- "$@"; }}"#)
    } else if in_path("runuser").is_some() {
        format!(r#"as() {{ runuser -u {name} -- "$@"; }}"#)
    } else {
        format!(r#"as() {{ su -s /bin/sh {name} -c 'exec "$0" "$@"' -- "$@"; }}"#)
    }
}

fn server_programs() -> Option<PathBuf> {
    let complete = |dir: &PathBuf| ["initdb", "pg_ctl", "postgres"].iter().all(|name| dir.join(name).is_file());
    if let Some(dir) = env::var_os(PROGRAMS) {
        let dir = PathBuf::from(dir);
        assert!(complete(&dir), "{PROGRAMS} names a folder without initdb, pg_ctl and postgres: {}", dir.display());
        return Some(dir);
    }
    let version = |dir: &PathBuf| -> u32 {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.trim_start_matches("postgresql@").parse().unwrap_or_default()
    };
    let installed = ["/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt"].into_iter().flat_map(fs::read_dir);
    let versions = installed.flatten().flatten().map(|entry| entry.path()).filter(|dir| complete(&dir.join("bin")));
    versions.max_by_key(version).map(|dir| dir.join("bin")).or_else(|| path().find(complete))
}

fn pooler_program() -> Option<PathBuf> {
    in_path("pgbouncer")
}

fn in_path(program: &str) -> Option<PathBuf> {
    path().map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The folders of `PATH`, and those that an ordinary user may lack.
fn path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/opt/homebrew/bin"].map(PathBuf::from);
    env::split_paths(&path).collect::<Vec<_>>().into_iter().chain(more)
}

/// What was found, or `None` and a line that says what is missing; a panic where servers are required.
#[track_caller]
pub(crate) fn found_or_skipped<T>(found: Option<T>, what: &str, package: &str) -> Option<T> {
    if found.is_none() {
        let how = format!("no {what} (Debian: apt-get install {package})");
        let required = [REQUIRE, "CI"].into_iter().find_map(env::var_os);
        let required = required.is_some_and(|value| !["", "0", "false"].map(OsString::from).contains(&value));
        assert!(!required, "{how}; it is required where {REQUIRE}, or else CI, is set");
        let line = format!("SKIPPED: {}: {how}\n", test_name(Location::caller()));
        // Not `eprintln`, which the test harness captures: a test that is skipped must not look like one that passed.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    found
}

/// The harness names threads after tests, unless it runs them one at a time.
fn test_name(caller: &Location<'_>) -> String {
    match thread::current().name() {
        Some(name) if name != "main" && !name.starts_with("tokio") => name.to_owned(),
        _ => caller.to_string(),
    }
}
