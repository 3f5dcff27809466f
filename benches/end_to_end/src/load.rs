//! Clients that each send one request after the other over a connection of their own.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{Outcome, answer};

#[derive(Debug, Clone, Copy)]
pub enum Keys {
    /// A new key with each request.
    New,
    /// Keys that were all sent before.
    Repeated,
}

#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub addr: SocketAddr,
    pub pid: u32,
    pub keys: Keys,
}

pub struct Measured {
    pub rate: f64,
    pub cpu_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub bytes_per_request: f64,
}

const WARM_UP: Duration = Duration::from_millis(500);
const REPEATED_KEYS: u32 = 100;

pub fn measure(target: Target, connections: usize, time: Duration) -> Outcome<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().event_interval(4).enable_all().build()?;
    runtime.block_on(async {
        // The clients never sleep: waking them up would be work of the server's core, and the more the slower a server
        // is, since its clients would sleep more often.
        tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let mut clients = Vec::new();
        for number in 0..connections {
            let mut client = Client::connect(target, number as u32).await?;
            if matches!(target.keys, Keys::Repeated) {
                for _ in 0..REPEATED_KEYS {
                    client.request().await?;
                }
            }
            clients.push(client);
        }
        clients = run(clients, WARM_UP).await?;
        clients.iter_mut().for_each(|client| client.latencies.clear());

        let (cpu, memory, start) = (cpu_time(target.pid)?, resident(target.pid)?, Instant::now());
        let clients = run(clients, time).await?;
        let (cpu, memory, elapsed) = (cpu_time(target.pid)? - cpu, resident(target.pid)? - memory, start.elapsed());

        let mut latencies: Vec<u32> = clients.into_iter().flat_map(|client| client.latencies).collect();
        latencies.sort_unstable();
        let requests = latencies.len() as f64;
        let at = |part: f64| f64::from(latencies[((requests * part) as usize).min(latencies.len() - 1)]) / 1e3;
        Ok(Measured {
            rate: requests / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / requests,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
            bytes_per_request: memory / requests,
        })
    })
}

async fn run(clients: Vec<Client>, time: Duration) -> Outcome<Vec<Client>> {
    let end = Instant::now() + time;
    let running: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                while Instant::now() < end {
                    client.request().await.map_err(|error| error.to_string())?;
                }
                Ok::<_, String>(client)
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
    number: u32,
    sent: u32,
    keys: Keys,
    buffer: Vec<u8>,
    latencies: Vec<u32>,
}

impl Client {
    async fn connect(target: Target, number: u32) -> Outcome<Self> {
        let stream = TcpStream::connect(target.addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, number, sent: 0, keys: target.keys, buffer: vec![0; 4096], latencies: Vec::new() })
    }

    async fn request(&mut self) -> Outcome<()> {
        let key = match self.keys {
            Keys::New => self.sent,
            Keys::Repeated => self.sent % REPEATED_KEYS,
        };
        let replay = matches!(self.keys, Keys::Repeated) && self.sent >= REPEATED_KEYS;
        self.sent += 1;
        let body = r#"{"amount":1299,"currency":"eur","customer_id":"c-17"}"#;
        let request = format!(
            "POST /v1/charges HTTP/1.1\r\nhost: localhost\r\nidempotency-key: {:08x}-0000-4000-8000-0000{:08x}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            key,
            self.number,
            body.len()
        );
        let start = Instant::now();
        self.stream.write_all(request.as_bytes()).await?;
        let length = answer::read(&mut self.stream, &mut self.buffer).await?;
        self.latencies.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        let received = &self.buffer[..length];
        if !received.starts_with(b"HTTP/1.1 201") || answer::contains(received, b"idempotent-replayed: true") != replay
        {
            return Err(format!("an answer that was not expected: {}", String::from_utf8_lossy(received)).into());
        }
        Ok(())
    }
}

/// Returns how long the only thread of a process has run.
fn cpu_time(pid: u32) -> Outcome<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanos = text.split_whitespace().next().ok_or("an empty schedstat file")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

/// Returns the bytes of memory that a process holds.
fn resident(pid: u32) -> Outcome<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: f64 = text.split_whitespace().nth(1).ok_or("an empty statm file")?.parse()?;
    Ok(pages * 4096.0)
}
