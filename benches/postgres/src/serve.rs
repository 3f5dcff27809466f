//! The servers that are compared, each a process of its own.

use std::{
    env,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio, exit},
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use tower_idempotency::{IdempotencyLayer, PostgresStore};

use crate::{Outcome, cluster, textbook};

/// A JSON document of 1 KiB.
pub static ANSWER: LazyLock<Arc<str>> =
    LazyLock::new(|| format!(r#"{{"id":"ch_17","amount":1299,"fee":29,"note":"{:x<978}"}}"#, "").into());

/// Where a server finds its database: not among the arguments, which everybody can read.
const URL: &str = "POSTGRES_BENCH_URL";

#[derive(Debug, Clone, Copy)]
pub enum Variant {
    Textbook,
    Ours,
}

impl Variant {
    fn parse(name: &str) -> Outcome<Self> {
        match name {
            "textbook" => Ok(Self::Textbook),
            "ours" => Ok(Self::Ours),
            _ => Err(format!("there is no server named {name}").into()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Textbook => "textbook",
            Self::Ours => "ours",
        }
    }
}

/// What a server is started with.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub variant: Variant,
    pub pool: u32,
    pub retention: Duration,
}

impl Setup {
    pub fn new(variant: Variant, pool: u32) -> Self {
        Self { variant, pool, retention: Duration::from_secs(24 * 3600) }
    }
}

/// Serves until the process is killed or its input ends.
pub fn run(arguments: &[String]) -> Outcome<()> {
    let [variant, pool, retention] = arguments else {
        return Err("a server needs its variant, its pool size and its retention in seconds".into());
    };
    let (variant, size) = (Variant::parse(variant)?, pool.parse()?);
    let retention = Duration::from_secs(retention.parse()?);
    let url = env::var(URL)?;
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        exit(0);
    });
    let runtime = if env::var("RT").is_ok() { tokio::runtime::Builder::new_current_thread().enable_all().build()? } else { tokio::runtime::Builder::new_multi_thread().enable_all().build()? };
    runtime.block_on(async {
        let pool = cluster::pool(&url, size).await?;
        let router = match variant {
            Variant::Textbook => Router::new().route("/v1/charges", post(textbook::charge)).with_state(pool),
            Variant::Ours => {
                let layer = IdempotencyLayer::new(PostgresStore::new(pool)).retention(retention);
                Router::new().route("/v1/charges", post(charge)).layer(layer)
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, router).await?;
        Ok(())
    })
}

async fn charge(body: String) -> Response {
    std::hint::black_box(body);
    (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], ANSWER.to_string()).into_response()
}

/// A running server; killed when dropped.
pub struct Process {
    child: Child,
    pub addr: SocketAddr,
}

impl Process {
    pub fn start(url: &str, setup: Setup) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["serve", setup.variant.name(), &setup.pool.to_string(), &setup.retention.as_secs().to_string()])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let addr = line.trim().parse().map_err(|error| format!("the server did not start ({error})"))?;
        Ok(Self { addr, child })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
