//! Clients that each send one request after the other over a connection of their own.
//!
//! They all share one thread, and it sleeps when nothing is to be read: PostgreSQL needs the processor.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{io::AsyncWriteExt, net::TcpStream};
use uuid::Uuid;

use crate::{Outcome, answer, measured::Measured};

#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// A new key with each request.
    New,
    /// Keys that were all sent before.
    Repeated,
}

pub const WARM_UP: Duration = Duration::from_secs(1);
pub const REPEATED_KEYS: usize = 100;

/// Measures as many requests as the server answers in `time`.
pub async fn measure(addr: SocketAddr, keys: Keys, connections: usize, time: Duration) -> Outcome<Measured> {
    let clients = run(connect(addr, keys, connections).await?, WARM_UP, None).await?;
    let clients: Vec<_> = clients.into_iter().map(Client::forget).collect();
    let start = Instant::now();
    let clients = run(clients, time, None).await?;
    let elapsed = start.elapsed();
    Ok(Measured::of(clients.into_iter().flat_map(|client| client.latencies_us).collect(), elapsed))
}

/// Sends `rate` requests a second with new keys, for `time`, and measures their latencies.
pub async fn steady(addr: SocketAddr, connections: usize, rate: u32, time: Duration) -> Outcome<Measured> {
    let clients = connect(addr, Keys::New, connections).await?;
    let pause = Duration::from_secs(1) * connections as u32 / rate;
    let clients = run(clients, time, Some(pause)).await?;
    Ok(Measured::of(clients.into_iter().flat_map(|client| client.latencies_us).collect(), time))
}

async fn connect(addr: SocketAddr, keys: Keys, connections: usize) -> Outcome<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = Client::connect(addr).await?;
        if matches!(keys, Keys::Repeated) {
            for _ in 0..REPEATED_KEYS {
                let key = Uuid::new_v4();
                client.request(key, false).await?;
                client.repeated.push(key);
            }
        }
        clients.push(client);
    }
    Ok(clients)
}

async fn run(clients: Vec<Client>, time: Duration, pause: Option<Duration>) -> Outcome<Vec<Client>> {
    let start = Instant::now();
    let end = start + time;
    let running: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                let mut next = start;
                while Instant::now() < end {
                    if let Some(pause) = pause {
                        next += pause;
                        tokio::time::sleep_until(next.into()).await;
                    }
                    client.next_request().await?;
                }
                Outcome::Ok(client)
            })
        })
        .collect();
    let mut done = Vec::new();
    for client in running {
        done.push(client.await??);
    }
    Ok(done)
}

struct Client {
    stream: TcpStream,
    repeated: Vec<Uuid>,
    sent: usize,
    buffer: Vec<u8>,
    latencies_us: Vec<f64>,
}

impl Client {
    async fn connect(addr: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, repeated: Vec::new(), sent: 0, buffer: vec![0; 8192], latencies_us: Vec::new() })
    }

    fn forget(mut self) -> Self {
        self.latencies_us.clear();
        self
    }

    async fn next_request(&mut self) -> Outcome<()> {
        self.sent += 1;
        if self.repeated.is_empty() {
            self.request(Uuid::new_v4(), false).await
        } else {
            self.request(self.repeated[self.sent % self.repeated.len()], true).await
        }
    }

    async fn request(&mut self, key: Uuid, replay: bool) -> Outcome<()> {
        let body = r#"{"amount":1299,"currency":"eur","customer_id":"c-17"}"#;
        let request = format!(
            "POST /v1/charges HTTP/1.1\r\nhost: localhost\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let start = Instant::now();
        self.stream.write_all(request.as_bytes()).await?;
        let length = answer::read(&mut self.stream, &mut self.buffer).await?;
        self.latencies_us.push(start.elapsed().as_secs_f64() * 1e6);
        let received = &self.buffer[..length];
        let replayed = answer::contains(received, b"idempotent-replayed: true");
        if !received.starts_with(b"HTTP/1.1 201") || replayed != replay {
            return Err(format!("an answer that was not expected: {}", String::from_utf8_lossy(received)).into());
        }
        Ok(())
    }
}
