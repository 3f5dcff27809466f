//! Runs the payments example as a user does: over its socket, by its printed lines, stopped by signals.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

#[test]
fn a_charge_is_made_once_and_its_answer_is_repeated_to_the_byte() {
    let example = Example::start(&[]);
    let first = example.charge(Some("a"), 1999);
    assert_eq!(first.status, 201);
    let charge = first.json();
    let id = charge["id"].as_str().unwrap();
    assert_eq!(first.header("location"), Some(format!("/v1/charges/{id}").as_str()));
    assert_eq!(charge["amount"], 1999);
    assert_eq!(charge["currency"], "eur");
    assert_eq!(charge["customer_id"], "cus_7");
    assert_eq!(charge["attempt"], 1);
    assert_eq!(first.header("idempotent-replayed"), None);

    let retry = example.charge(Some("a"), 1999);
    assert_eq!(retry.header("idempotent-replayed"), Some("true"));
    assert_eq!((retry.status, &retry.body), (201, &first.body));
    assert_eq!(retry.header("location"), first.header("location"));

    assert_eq!(example.get(&format!("/v1/charges/{id}")).json(), charge);
    assert_eq!(example.ledger(), [charge]);
}

#[test]
fn what_is_not_there_is_told_as_a_problem() {
    let example = Example::start(&[]);
    for (method, path, status) in [
        ("GET", "/v1/charges/ch_0", 404),
        ("GET", "/v1/charges/%ff", 404),
        ("POST", "/v2", 404),
        ("PUT", "/v1/charges", 405),
    ] {
        let answer = example.send(method, path, Some("a"), "application/json", "{}");
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{method} {path}");
        assert_eq!(answer.json()["status"], status, "{method} {path}");
    }
}

#[test]
fn without_a_key_every_charge_is_a_new_one() {
    let example = Example::start(&[]);
    assert_eq!(example.charge(None, 5).json()["attempt"], Value::Null);
    assert_eq!(example.charge(None, 5).status, 201);
    assert_eq!(example.ledger().len(), 2);
}

#[test]
fn a_key_can_be_made_compulsory() {
    let example = Example::start(&["--require-key"]);
    let refused = example.charge(None, 5);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["type"], "urn:tower-idempotency:problem:key-missing");
    assert_eq!(example.charge(Some("a"), 5).status, 201);
    assert_eq!(example.ledger().len(), 1);
}

#[test]
fn another_charge_with_the_same_key_is_refused_as_the_profile_says() {
    for (profile, key, status) in [("default", "a", 400), ("ietf", "\"a\"", 422), ("stripe", "a", 400)] {
        let example = Example::start(&["--profile", profile]);
        assert_eq!(example.charge(Some(key), 1).status, 201, "{profile}");
        let refused = example.charge(Some(key), 2);
        assert_eq!(refused.status, status, "{profile}");
        assert_eq!(refused.json()["type"], "urn:tower-idempotency:problem:key-reused", "{profile}");
        let error = &refused.json()["error"];
        assert_eq!(error["type"].as_str(), (profile == "stripe").then_some("idempotency_error"), "{profile}");
        assert_eq!(example.ledger().len(), 1, "{profile}");
    }
}

#[test]
fn bad_input_is_refused_by_the_name_of_the_field_and_charges_nothing() {
    let example = Example::start(&[]);
    let json = "application/json";
    let long = "c".repeat(65);
    let large = json!({ "amount": 1, "currency": "eur", "customer_id": "c".repeat(20_000) }).to_string();
    let cases = [
        (json, "{\"amount\": 1,", 400, "JSON"),
        (json, "", 400, "JSON"),
        (json, "[]", 400, "object"),
        (json, r#"[1, "eur", "c"]"#, 400, "object"),
        (json, "null", 400, "object"),
        (json, r#"{"currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": 1, "customer_id": "c"}"#, 400, "currency"),
        (json, r#"{"amount": 1, "currency": "eur"}"#, 400, "customer_id"),
        (json, r#"{"amount": 1, "currency": "eur", "customer_id": "c", "tip": 1}"#, 400, "tip"),
        (json, r#"{"amount": 1, "amount": 2, "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": "1", "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": 1.5, "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": -1, "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": 0, "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": 100000000, "currency": "eur", "customer_id": "c"}"#, 400, "amount"),
        (json, r#"{"amount": 1, "currency": "euro", "customer_id": "c"}"#, 400, "currency"),
        (json, r#"{"amount": 1, "currency": "e r", "customer_id": "c"}"#, 400, "currency"),
        (json, r#"{"amount": 1, "currency": 978, "customer_id": "c"}"#, 400, "currency"),
        (json, r#"{"amount": 1, "currency": "eur", "customer_id": ""}"#, 400, "customer_id"),
        (json, r#"{"amount": 1, "currency": "eur", "customer_id": "a b"}"#, 400, "customer_id"),
        (json, &format!(r#"{{"amount": 1, "currency": "eur", "customer_id": "{long}"}}"#), 400, "customer_id"),
        ("text/plain", r#"{"amount": 1, "currency": "eur", "customer_id": "c"}"#, 415, "application/json"),
        (json, &large, 413, ""),
    ];
    for (media_type, body, status, named) in cases {
        for key in [None, Some("bad")] {
            let answer = example.send("POST", "/v1/charges", key, media_type, body);
            assert_eq!(answer.status, status, "{body}");
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{body}");
            let problem = answer.json();
            assert_eq!(problem["status"], status, "{body}");
            assert!(problem["detail"].as_str().unwrap().contains(named), "{body}: {problem}");
        }
    }
    assert_eq!(example.ledger(), [] as [Value; 0]);
    // None of them used the key up.
    assert_eq!(example.charge(Some("bad"), 1).status, 201);
}

#[test]
fn amounts_at_the_bounds_are_accepted() {
    let example = Example::start(&[]);
    assert_eq!(example.charge(None, 1).status, 201);
    assert_eq!(example.charge(None, 99_999_999).status, 201);
}

#[test]
fn twenty_at_once_with_one_key_are_one_charge() {
    let example = Example::start(&["--delay-ms", "300"]);
    let answers = example.charge_at_once(20);
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 409)));
    assert_eq!(answers.iter().filter(|answer| answer.is_first()).count(), 1);
    assert_eq!(example.ledger().len(), 1);
}

#[test]
fn retries_can_wait_for_the_answer() {
    let example = Example::start(&["--delay-ms", "200", "--wait-ms", "10000"]);
    let answers = example.charge_at_once(5);
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body));
    assert_eq!(example.ledger().len(), 1);
}

#[test]
fn the_log_names_the_attempt_and_never_the_key() {
    let example = Example::start(&[]);
    example.charge(Some("hush-hush"), 7);
    example.charge(None, 8);
    let first = example.next_line();
    assert!(first.starts_with("charge ch_") && first.ends_with(" of 7 eur, attempt 1"), "{first}");
    let second = example.next_line();
    assert!(second.ends_with(" of 8 eur, without a key"), "{second}");
}

#[test]
fn what_cannot_be_started_is_told_and_ends_with_code_2() {
    let example = Example::start(&[]);
    let taken = example.address.as_str();
    let unusable = if cfg!(feature = "postgres") { "cannot reach PostgreSQL" } else { "add `--features postgres`" };
    let cases: [(&[&str], &str); 22] = [
        (&["--store", "carrier-pigeon://u:secret@host/db"], "carrier-pigeon"),
        (&["--store", "carrier-pigeon:"], "supported: memory: and postgres:"),
        (&["--store", "nonsense"], "memory:"),
        (&["--store", "postgres:"], "createdb payments"),
        (&["--store", "PostgreSQL://"], "postgres://USER:PASSWORD@localhost:5432/payments"),
        (&["--store", "postgres://u:secret@127.0.0.1:0/shop"], unusable),
        (&["--pool", "0"], "--pool"),
        (&["--store", "memory:x"], "`--store memory:`"),
        (&["--store", "memory://secret"], "`--store memory:`"),
        (&["--store", "memory"], "`--store memory:`"),
        (&["--listen", taken], taken),
        (&["--listen", taken], "`--listen 127.0.0.1:0`"),
        (&["--listen", "nowhere"], "nowhere"),
        (&["--listen", "nowhere"], "HOST:PORT, such as `--listen 127.0.0.1:3000`"),
        (&["--listen", "127.0.0.1:99999"], "99999"),
        (&["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (&["--listen", ""], "HOST:PORT"),
        (&["--lease-ms", "99"], "--lease-ms"),
        (&["--lease-ms", "soon"], "whole number of milliseconds from 100 to 86400000"),
        (&["--wait-ms", "-1"], "'-1' for '--wait-ms <N>': must be a whole number of milliseconds"),
        (&["--delay-ms", "-1"], "milliseconds from 0 to"),
        (&["--colour"], "--colour"),
    ];
    for (arguments, named) in cases {
        let output = run(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.starts_with("error: ") && message.contains(named), "{arguments:?}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn the_case_of_the_stores_scheme_does_not_matter() {
    let example = Example::start(&["--store", "Memory:"]);
    assert_eq!(example.charge(Some("a"), 1).status, 201);
}

#[test]
fn help_names_every_option() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout);
    for option in ["listen", "store", "pool", "plain", "profile", "require-key", "delay-ms", "lease-ms", "wait-ms"] {
        assert!(help.contains(&format!("--{option}")), "{option} is not in {help}");
    }
}

#[cfg(unix)]
#[test]
fn the_printed_lines_work_when_pasted() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return;
    }
    for profile in ["default", "ietf", "stripe"] {
        let example = Example::start(&["--profile", profile]);
        let lines: Vec<_> = example.greeting.iter().filter(|line| line.contains("curl ")).collect();
        let outputs: Vec<_> = lines
            .iter()
            .map(|line| {
                let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
                assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
                String::from_utf8(output.stdout).unwrap()
            })
            .collect();
        let [first, retry, other, at_once, ledger] = &outputs[..] else { panic!("other lines than five: {lines:?}") };
        let refused = if profile == "ietf" { "HTTP/1.1 422 " } else { "HTTP/1.1 400 " };
        assert!(first.starts_with("HTTP/1.1 201 ") && !first.contains("idempotent-replayed"), "{first}");
        assert!(retry.starts_with("HTTP/1.1 201 ") && retry.contains("idempotent-replayed: true"), "{retry}");
        assert!(other.starts_with(refused), "{other}");
        assert_eq!(at_once.lines().count(), 20, "{at_once}");
        assert!(at_once.lines().all(|status| matches!(status, "201" | "409")), "{at_once}");
        let ledger: Value = serde_json::from_str(ledger).unwrap();
        assert_eq!(ledger.as_array().unwrap().len(), 2, "{ledger}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_lets_a_slow_charge_end() {
    for signal in ["TERM", "INT", "HUP"] {
        let mut example = Example::start(&["--delay-ms", "1000"]);
        let connection = example.start_charge();
        example.signal(signal);
        assert_eq!(read(connection).status, 201, "{signal}");
        assert_eq!(example.exit_code(), Some(0), "{signal}");
        assert!(TcpStream::connect(&example.address).is_err(), "{signal}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_lets_a_charge_end_whose_client_went_away() {
    let mut example = Example::start(&["--delay-ms", "1500"]);
    drop(example.start_charge());
    example.signal("TERM");
    assert!(example.next_line().starts_with("stopping: "));
    let line = example.next_line();
    assert!(line.starts_with("charge ch_"), "{line}");
    assert_eq!(example.next_line(), "stopped; guarded requests left: 0");
    assert_eq!(example.exit_code(), Some(0));
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_at_once_with_the_exit_code_of_its_number() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut example = Example::start_with(&["--delay-ms", "60000"], Stdio::piped());
        let _connection = example.start_charge();
        example.signal(signal);
        assert!(example.next_line().starts_with("stopping: "), "{signal}");
        let second = Instant::now();
        example.signal(signal);
        assert_eq!(example.exit_code(), Some(code), "{signal}");
        assert!(second.elapsed() < Duration::from_secs(5), "{signal}");
        let mut complaint = String::new();
        example.process.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        assert!(complaint.contains("ending at once"), "{signal}: {complaint}");
    }
}

/// How long anything here may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Builds the command. Cargo builds the examples before it runs all tests, but not for a single `--test`.
fn command(arguments: &[&str]) -> Command {
    let mut path = PathBuf::from(std::env::current_exe().unwrap().parent().unwrap().parent().unwrap());
    path.push(format!("examples/payments{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "run `cargo build --example payments` first");
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The example at work on a port of its own; killed when it goes out of scope.
struct Example {
    process: Child,
    address: String,
    greeting: Vec<String>,
    lines: Receiver<String>,
}

impl Example {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Stdio::inherit())
    }

    fn start_with(arguments: &[&str], stderr: Stdio) -> Self {
        let mut command = command(arguments);
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(stderr);
        let mut process = command.spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut example = Self { process, address: String::new(), greeting: Vec::new(), lines };
        while !example.greeting.last().is_some_and(|line| line.ends_with("/v1/charges")) {
            let line = example.next_line();
            if let Some(address) = line.strip_prefix("listening on http://") {
                example.address = address.to_owned();
            }
            example.greeting.push(line);
        }
        assert_eq!(example.next_line(), "");
        example
    }

    fn next_line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line of output in time")
    }

    fn charge(&self, key: Option<&str>, amount: u64) -> Answer {
        self.send("POST", "/v1/charges", key, "application/json", &charge(amount))
    }

    /// Sends the same charge on many connections, then reads the answers.
    fn charge_at_once(&self, times: usize) -> Vec<Answer> {
        let connect = |_| self.connect("POST", "/v1/charges", Some("a"), "application/json", &charge(500));
        let connections: Vec<_> = (0..times).map(connect).collect();
        connections.into_iter().map(read).collect()
    }

    /// Sends a charge, and returns when it runs. What tells that is a retry: it is refused as long as the first one runs.
    #[cfg(unix)]
    fn start_charge(&self) -> TcpStream {
        let connection = self.connect("POST", "/v1/charges", Some("a"), "application/json", &charge(7));
        thread::sleep(Duration::from_millis(100));
        assert_eq!(self.charge(Some("a"), 7).status, 409);
        connection
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None, "text/plain", "")
    }

    fn ledger(&self) -> Vec<Value> {
        self.get("/v1/charges").json().as_array().unwrap().clone()
    }

    fn send(&self, method: &str, path: &str, key: Option<&str>, media_type: &str, body: &str) -> Answer {
        read(self.connect(method, path, key, media_type, body))
    }

    /// Sends a request and leaves its answer on the connection.
    fn connect(&self, method: &str, path: &str, key: Option<&str>, media_type: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        let host = &self.address;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{key}\
             content-type: {media_type}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).unwrap();
        connection
    }

    #[cfg(unix)]
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").arg("-c").arg(kill).status().unwrap().success());
    }

    #[cfg(unix)]
    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the example did not end in time");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn charge(amount: u64) -> String {
    json!({ "amount": amount, "currency": "EUR", "customer_id": "cus_7" }).to_string()
}

/// An answer over a connection that the server closes behind it.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

fn read(mut connection: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A server that refuses a large body may reset the connection behind its answer.
    let end = connection.read_to_end(&mut bytes);
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let split = split.unwrap_or_else(|| panic!("an answer, not {end:?} after {} bytes", bytes.len()));
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: bytes[split + 4..].to_vec() }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name)).map(|(_, v)| v)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn is_first(&self) -> bool {
        self.status == 201 && self.header("idempotent-replayed").is_none()
    }
}
