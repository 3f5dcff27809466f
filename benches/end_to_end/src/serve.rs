//! The servers that are compared, each a process of its own with one thread.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use axum::{Json, Router, http::StatusCode, routing::post};

use crate::Outcome;

#[derive(Debug, Clone, Copy)]
pub enum Variant {
    Bare,
    Ours,
    Idempotent,
}

impl Variant {
    pub fn parse(name: &str) -> Outcome<Self> {
        match name {
            "bare" => Ok(Self::Bare),
            "ours" => Ok(Self::Ours),
            "idempotent" => Ok(Self::Idempotent),
            _ => Err(format!("there is no server named {name}").into()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Ours => "ours",
            Self::Idempotent => "idempotent",
        }
    }
}

/// Serves until the process is killed.
pub fn run(variant: Variant) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let router = Router::new().route("/v1/charges", post(charge));
        let router = match variant {
            Variant::Bare => router,
            Variant::Ours => {
                use tower_idempotency::{IdempotencyLayer, MemoryStore};
                router.layer(IdempotencyLayer::new(MemoryStore::new().max_records(4_000_000)))
            }
            Variant::Idempotent => {
                use idempotent::{memory::MemoryStore, middleware::IdempotencyLayer};
                router.layer(IdempotencyLayer::new(MemoryStore::builder().try_build()?))
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        axum::serve(listener, router).await?;
        Ok(())
    })
}

async fn charge(body: String) -> (StatusCode, Json<&'static [(&'static str, u32)]>) {
    std::hint::black_box(body);
    (StatusCode::CREATED, Json(&[("amount", 1299), ("fee", 29)]))
}

/// A running server; killed when dropped.
pub struct Process {
    child: Child,
    pub addr: SocketAddr,
}

impl Process {
    pub fn start(variant: Variant) -> Outcome<Self> {
        let mut child =
            Command::new(env::current_exe()?).args(["serve", variant.name()]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        Ok(Self { addr: line.trim().parse()?, child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
