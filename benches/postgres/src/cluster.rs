//! A PostgreSQL server of our own, thrown away at the end.

use std::{
    env, fs,
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::unistd::{Uid, User};
use sqlx::{
    AssertSqlSafe, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use uuid::Uuid;

use crate::Outcome;

/// Starts the server and waits for the end of its input, which comes however the bench ends: the kernel closes the pipe.
/// What is thrown away needs no checkpoint, hence SIGQUIT.
const KEEPER: &str = r#"
bin=$1 dir=$2 port=$3
server=
clean() {
    if [ -n "$server" ]; then kill -QUIT "$server" 2>/dev/null; wait "$server"; fi
    cd / && rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' HUP INT TERM
if ! "$bin/initdb" -D "$dir/data" -U bench --auth=scram-sha-256 --pwfile="$dir/password" \
    --encoding=UTF8 --locale=C >"$dir/log" 2>&1; then
    cat "$dir/log" >&2
    exit 1
fi
"$bin/postgres" -D "$dir/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c shared_buffers=512MB -c max_connections=200 >>"$dir/log" 2>&1 &
server=$!
cat >/dev/null
"#;

const START: Duration = Duration::from_secs(60);

/// A running server; stopped and removed when dropped.
pub struct Cluster {
    keeper: Child,
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
    password: String,
}

impl Cluster {
    pub async fn start() -> Outcome<Self> {
        let bin = binaries()?;
        let dir = env::temp_dir().join(format!("postgres-bench-{}", Uuid::new_v4()));
        let password = Uuid::new_v4().to_string();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        fs::write(dir.join("password"), &password)?;

        let mut command = Command::new("sh");
        command.arg("-c").arg(KEEPER).arg("keeper").arg(&bin).arg(&dir).arg(port.to_string());
        // A group of its own, so that Ctrl-C reaches the bench and not what has to clean up after it.
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        if Uid::effective().is_root() {
            let user = unprivileged()?;
            for path in [dir.clone(), dir.join("password")] {
                chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
            }
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        let keeper = match command.spawn() {
            Ok(keeper) => keeper,
            Err(error) => {
                fs::remove_dir_all(&dir)?;
                return Err(error.into());
            }
        };
        let mut cluster = Self { keeper, bin, dir, port, password };
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    async fn wait_until_ready(&mut self) -> Outcome<()> {
        let end = Instant::now() + START;
        loop {
            if let Some(status) = self.keeper.try_wait()? {
                return Err(format!("PostgreSQL did not start ({status})").into());
            }
            match self.pool("postgres", 1).await {
                Ok(pool) => {
                    pool.close().await;
                    return Ok(());
                }
                Err(error) if Instant::now() > end => {
                    let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                    return Err(format!("PostgreSQL is not ready after {START:?}: {error}\n{log}").into());
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    pub async fn create_database(&self, name: &str) -> Outcome<PgPool> {
        let admin = self.pool("postgres", 1).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&admin).await?;
        admin.close().await;
        self.pool(name, 4).await
    }

    async fn pool(&self, database: &str, size: u32) -> Outcome<PgPool> {
        pool(&self.url(database), size).await
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://bench:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// Prepares a client program of PostgreSQL.
    pub fn client(&self, program: &str, database: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "bench")
            .env("PGPASSWORD", &self.password)
            .env("PGDATABASE", database)
            .stdin(Stdio::null());
        command
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub async fn version(&self) -> Outcome<String> {
        let pool = self.pool("postgres", 1).await?;
        let version = sqlx::query_scalar("show server_version").fetch_one(&pool).await?;
        pool.close().await;
        Ok(version)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Opens connections that are not tried out before each use: a round trip more would be a cost of sqlx, and would hide
/// what the layer costs.
pub async fn pool(url: &str, size: u32) -> Outcome<PgPool> {
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPoolOptions::new()
        .max_connections(size)
        .min_connections(size)
        .test_before_acquire(false)
        .acquire_timeout(Duration::from_secs(10))
        .connect_with(options)
        .await?;
    Ok(pool)
}

/// Returns the directory of the newest installed PostgreSQL: Debian keeps the servers out of the PATH.
fn binaries() -> Outcome<PathBuf> {
    let mut installed: Vec<(u32, PathBuf)> = Vec::new();
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        for entry in versions {
            let entry = entry?;
            if let Some(version) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                installed.push((version, entry.path().join("bin")));
            }
        }
    }
    installed.sort();
    let newest_first = installed.into_iter().rev().map(|(_, bin)| bin);
    let path = env::var_os("PATH").unwrap_or_default();
    newest_first
        .chain(env::split_paths(&path))
        .find(|bin| ["initdb", "postgres", "pgbench"].iter().all(|program| bin.join(program).is_file()))
        .ok_or_else(|| "initdb, postgres and pgbench were not found; on Debian: apt-get install -y postgresql".into())
}

/// PostgreSQL refuses to run as root.
fn unprivileged() -> Outcome<User> {
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(user);
        }
    }
    Err("PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody".into())
}
