//! HTTP/1.1 as bytes: a client that sends what it is told and shows what came back, byte for byte.

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::support::{PATIENCE, Server};

/// One connection.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

/// A response as it came over the wire, its framing checked.
#[derive(Debug)]
pub(crate) struct WireAnswer {
    pub(crate) status: u16,
    /// The header lines in order, without their line ends.
    pub(crate) lines: Vec<Vec<u8>>,
    /// The body without its framing.
    pub(crate) body: Vec<u8>,
    /// The trailer lines in order.
    pub(crate) trailers: Vec<Vec<u8>>,
    /// Everything from the status line to the end of the framing, except `Date` and the marker of a replay.
    pub(crate) repeatable: Vec<u8>,
}

impl WireAnswer {
    pub(crate) fn is_replay(&self) -> bool {
        self.values("idempotent-replayed") == [b"true"]
    }

    /// The values of a header, in order.
    pub(crate) fn values(&self, name: &str) -> Vec<&[u8]> {
        values(&self.lines, name)
    }

    /// The last part of the problem type.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.values("content-type"), [b"application/problem+json"], "{self:?}");
        assert_eq!(self.values("cache-control"), [b"no-store"], "{self:?}");
        assert!(!self.is_replay(), "{self:?}");
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], self.status, "{self:?}");
        document["type"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
    }
}

impl Wire {
    pub(crate) async fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(PATIENCE, self.stream.get_mut().write_all(bytes.as_ref())).await.expect("room to write").unwrap();
    }

    /// Sends a whole POST request under a key and reads the answer.
    pub(crate) async fn post(&mut self, key: &str, body: &str) -> WireAnswer {
        self.send(post(key, body)).await;
        self.answer().await
    }

    /// Says that nothing more will be sent; the other direction stays open.
    pub(crate) async fn half_close(&mut self) {
        self.stream.get_mut().shutdown().await.unwrap();
    }

    /// Reads the answer to anything but HEAD.
    pub(crate) async fn answer(&mut self) -> WireAnswer {
        timeout(PATIENCE, self.read(false)).await.expect("an answer in time")
    }

    /// Reads the answer to HEAD.
    pub(crate) async fn answer_to_head(&mut self) -> WireAnswer {
        timeout(PATIENCE, self.read(true)).await.expect("an answer in time")
    }

    /// Reads what is left until the server closes the connection.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is an end too: it is what a close turns into while there is something left that nobody has read.
        let _ = timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.expect("an end in time");
        rest
    }

    async fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).await.unwrap();
        assert!(line.ends_with(b"\r\n"), "the connection ended within {:?}", String::from_utf8_lossy(&line));
        line
    }

    async fn lines(&mut self, raw: &mut Vec<u8>) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().await;
            let momentary = [&b"date:"[..], b"idempotent-replayed:"];
            if !momentary.iter().any(|name| line.to_ascii_lowercase().starts_with(name)) {
                raw.extend_from_slice(&line);
            }
            if line == b"\r\n" {
                return lines;
            }
            lines.push(line[..line.len() - 2].to_vec());
        }
    }

    async fn exactly(&mut self, len: usize, raw: &mut Vec<u8>) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).await.unwrap();
        raw.extend_from_slice(&bytes);
        bytes
    }

    async fn read(&mut self, to_head: bool) -> WireAnswer {
        let mut raw = self.line().await;
        let status: u16 = String::from_utf8_lossy(&raw).split(' ').nth(1).unwrap().parse().unwrap();
        let lines = self.lines(&mut raw).await;
        let mut answer = WireAnswer { status, lines, body: Vec::new(), trailers: Vec::new(), repeatable: Vec::new() };
        let length = answer.values("content-length");
        let coding = answer.values("transfer-encoding");
        assert!(length.len() + coding.len() <= 1, "one framing: {answer:?}");
        let empty = status < 200 || status == 204;
        assert!(!empty || length.is_empty() && coding.is_empty(), "no framing where there is no body: {answer:?}");
        if empty || status == 304 || to_head {
            // Nothing follows.
        } else if let [length] = length[..] {
            let length = std::str::from_utf8(length).unwrap().parse().unwrap();
            answer.body = self.exactly(length, &mut raw).await;
        } else if let [coding] = coding[..] {
            assert_eq!(coding, b"chunked");
            loop {
                let size = self.line().await;
                raw.extend_from_slice(&size);
                let size = std::str::from_utf8(&size).unwrap().trim_end();
                let size = usize::from_str_radix(size, 16).unwrap();
                if size == 0 {
                    break;
                }
                let chunk = self.exactly(size, &mut raw).await;
                answer.body.extend(chunk);
                assert_eq!(self.line().await, b"\r\n");
            }
            answer.trailers = self.lines(&mut raw).await;
        } else {
            answer.body = self.rest().await;
            raw.extend_from_slice(&answer.body);
        }
        answer.repeatable = raw;
        answer
    }
}

/// Writes a POST request under a key.
pub(crate) fn post(key: &str, body: &str) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nhost: a.example\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The values of a header among raw lines, in order.
pub(crate) fn values<'a>(lines: &'a [Vec<u8>], name: &str) -> Vec<&'a [u8]> {
    let named = lines.iter().filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':').unwrap();
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    });
    named.collect()
}
