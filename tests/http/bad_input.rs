//! Bad input costs nothing: no run, no record, and a connection that is usable or closed properly.

use std::sync::Arc;

use http::Response;
use http_body_util::Full;
use tower_idempotency::{IdempotencyLayer, KeySyntax, MemoryStore, Profile, Rejection, Store};

use crate::{
    support::{Answer, Http, Runs, Seen, Server, VERSIONS, guard, keyed, reply},
    wire::Wire,
};

/// What a client must not send, as the value of the header: one member and more of each kind.
fn malformed() -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = [
        "\"abc",
        "\"",
        "\"abc\\\"",
        "\"a\\bc\"",
        "\"abc\\",
        "\"abc\"x",
        "\"abc\" \"abc\"",
        "\"abc\";",
        "\"abc\";A",
        "\"abc\"; =1",
        "a, a",
        "a,b",
        ",",
        "\"a\", \"a\"",
        "\"a\",\"b\"",
        "",
        "   ",
        "\"\"",
        "\"  \"",
        "a b",
        "a\"b",
        "a;b",
        "a\\b",
        "\t",
        "a\tb",
        "\"a\tb\"",
    ]
    .iter()
    .map(|line| line.as_bytes().to_vec())
    .collect();
    lines.extend([&b"\xC3\xA9"[..], b"\"\xC3\xA9\"", b"a\xFF", b"\x80"].map(<[u8]>::to_vec));
    lines.push("a".repeat(256).into_bytes());
    lines.push(format!("\"{}\"", "a".repeat(256)).into_bytes());
    lines
}

fn request(key_lines: &[&[u8]]) -> Vec<u8> {
    let mut request = b"POST /pay HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n".to_vec();
    for line in key_lines {
        request.extend([b"Idempotency-Key: ", *line, b"\r\n"].concat());
    }
    [&request, &b"\r\n{}"[..]].concat()
}

async fn counting<S: Store>(layer: &IdempotencyLayer<S>, runs: &Runs) -> Server {
    guard(layer, runs, |seen: Seen| reply(Response::builder().status(201), format!("run {}", seen.run))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_key_is_refused_and_leaves_nothing_behind() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
    let server = counting(&layer, &runs).await;
    let mut wire = Wire::connect(&server).await;
    for line in malformed() {
        wire.send(request(&[&line])).await;
        let answer = wire.answer().await;
        assert_eq!(answer.status, 400, "{:?}", String::from_utf8_lossy(&line));
        assert_eq!(answer.problem(), "key-malformed");
        assert_eq!((runs.total(), store.len()), (0, 0));
    }
    assert_eq!(wire.post("good", "{}").await.body, b"run 1", "the connection is usable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_byte_in_a_key_never_runs_the_handler() {
    let store = Arc::new(MemoryStore::new());
    let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
    let server = counting(&layer, &runs).await;
    for byte in (0..0x20).chain([0x7F]).filter(|byte| !b"\t\n\r".contains(byte)) {
        for line in [[b'a', byte, b'b'].to_vec(), [b'"', byte, b'"'].to_vec()] {
            let mut wire = Wire::connect(&server).await;
            wire.send(request(&[&line])).await;
            assert_eq!(wire.answer().await.status, 400, "{line:?}");
        }
    }
    assert_eq!((runs.total(), store.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_two_lines_is_refused_be_they_equal_or_not() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
        let server = counting(&layer, &runs).await;
        let http = Http::new(version);
        for second in ["a", "b", "\"a\"", ""] {
            let request = keyed(&server, "/", "a").header("idempotency-key", second);
            let answer = http.send(request.body(Full::default()).unwrap()).await.unwrap();
            assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (400, "key-malformed"));
        }
        assert_eq!((runs.total(), store.len()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_up_to_255_characters_with_any_printable_one_in_quotes_are_accepted() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let longest = "a".repeat(255);
    let printable: String = (' '..='~').map(String::from).collect();
    let escaped = printable.replace('\\', "\\\\").replace('"', "\\\"");
    let keys = [longest.clone(), format!("\"{}\"", "b".repeat(255)), format!("\"{escaped}\""), "\"c, d; e\"".into()];
    for version in VERSIONS {
        let http = Http::new(version);
        for key in &keys {
            assert_eq!(http.post(&server, "/", key, "").await.status, 201, "{key}");
            assert!(http.post(&server, "/", key, "").await.is_replay(), "{key}");
        }
        assert_eq!(runs.total(), keys.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quoted_and_bare_are_one_key_and_another_case_is_another() {
    let (layer, runs) = (IdempotencyLayer::new(MemoryStore::new()), Runs::default());
    let server = counting(&layer, &runs).await;
    let http = Http::new(VERSIONS[1]);
    assert!(!http.post(&server, "/", "abc", "").await.is_replay());
    for same in ["\"abc\"", "\"abc\";v=1", "abc"] {
        assert!(http.post(&server, "/", same, "").await.is_replay(), "{same}");
    }
    assert!(!http.post(&server, "/", "\"ABC\"", "").await.is_replay());
    assert_eq!(runs.total(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_does_no_damage() {
    for version in VERSIONS {
        let store = Arc::new(MemoryStore::new());
        let (layer, runs) = (IdempotencyLayer::new(Arc::clone(&store)), Runs::default());
        let server = counting(&layer, &runs).await;
        let http = Http::new(version);
        let first = http.post(&server, "/", "k", "{\"amount\":1}").await;
        let other = http.post(&server, "/", "k", "{\"amount\":2}").await;
        let elsewhere = http.post(&server, "/else", "k", "{\"amount\":1}").await;
        let retry = http.post(&server, "/", "k", "{\"amount\":1}").await;
        assert_eq!((other.status.as_u16(), other.problem().as_str()), (400, "key-reused"));
        assert_eq!(elsewhere.problem(), "key-reused");
        assert!(!first.is_replay() && retry.is_replay());
        assert_eq!((first.body, runs.total(), store.len()), (retry.body, 1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_body_after_a_stored_400_is_told_to_use_a_new_key() {
    let layer = IdempotencyLayer::new(MemoryStore::new());
    let handler =
        |seen: Seen| reply(Response::builder().status(if seen.body == "good" { 201 } else { 400 }), "handler");
    let server = guard(&layer, &Runs::default(), handler).await;
    let http = Http::new(VERSIONS[0]);
    assert_eq!(http.post(&server, "/", "k", "bad").await.body, "handler");
    let corrected = http.post(&server, "/", "k", "good").await;
    assert_eq!(corrected.problem(), "key-reused");
    assert!(detail(&corrected).contains("Use a new key"));
    assert_eq!(http.post(&server, "/", "k2", "good").await.status, 201);
}

fn detail(answer: &Answer) -> String {
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    document["detail"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_ours_repeats_the_key_or_the_body() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).response_limit(1).request_limit(20);
    let (layer, runs) = (layer.documentation("https://a.example/keys"), Runs::default());
    let server = counting(&layer, &runs).await;
    let http = Http::new(VERSIONS[0]);
    http.post(&server, "/", "zebra", "giraffe").await;
    let too_long = "zebra".repeat(60);
    for (key, body, problem) in [
        ("zebra", "giraffe", "not-replayable"),
        ("zebra", "other giraffe", "key-reused"),
        ("zebra", "a giraffe that has more than 20 bytes", "body-too-large"),
        ("zebra zebra", "giraffe", "key-malformed"),
        ("\"zebra", "giraffe", "key-malformed"),
        (&too_long, "giraffe", "key-malformed"),
    ] {
        let answer = http.post(&server, "/", key, body).await;
        assert_eq!(answer.problem(), problem);
        let shown = format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.body));
        assert!(!shown.contains("zebra") && !shown.contains("giraffe"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uuids_only_where_that_is_configured() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).key_syntax(KeySyntax::new().uuid_only());
    let server = counting(&layer, &Runs::default()).await;
    let http = Http::new(VERSIONS[0]);
    let answer = http.post(&server, "/", "order-7", "").await;
    assert_eq!(answer.problem(), "key-malformed");
    assert!(detail(&answer).contains("UUID"));
    assert_eq!(http.post(&server, "/", "9f1b3c0e-6a52-4d1c-8a5e-0c1f2e3d4b5a", "").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ietf_profile_wants_quotes_and_answers_a_mismatch_with_422() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).profile(Profile::Ietf);
    let server = counting(&layer, &Runs::default()).await;
    let http = Http::new(VERSIONS[0]);
    assert_eq!(http.post(&server, "/", "k", "a").await.problem(), "key-malformed");
    assert_eq!(http.post(&server, "/", "\"k\"", "a").await.status, 201);
    let mismatch = http.post(&server, "/", "\"k\"", "b").await;
    assert_eq!((mismatch.status.as_u16(), mismatch.problem().as_str()), (422, "key-reused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stripe_profile_adds_the_error_object_of_stripe() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).profile(Profile::Stripe);
    let server = counting(&layer, &Runs::default()).await;
    let http = Http::new(VERSIONS[0]);
    assert_eq!(http.post(&server, "/", "k", "a").await.status, 201);
    let mismatch = http.post(&server, "/", "k", "b").await;
    assert_eq!((mismatch.status.as_u16(), mismatch.problem().as_str()), (400, "key-reused"));
    let document: serde_json::Value = serde_json::from_slice(&mismatch.body).unwrap();
    assert_eq!(document["error"]["type"], "idempotency_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_answers_can_be_replaced_and_link_to_a_documentation() {
    let layer = IdempotencyLayer::new(MemoryStore::new()).documentation("https://a.example/keys");
    let server = counting(&layer, &Runs::default()).await;
    let answer = Http::new(VERSIONS[0]).post(&server, "/", "\"", "").await;
    assert_eq!(answer.headers["link"], "<https://a.example/keys>; rel=\"describedby\"; type=\"text/html\"");

    let layer = IdempotencyLayer::new(MemoryStore::new()).answer_with(|rejection, answer| match rejection {
        Rejection::KeyMalformed(_) => Response::builder().status(418).body("own".into()).unwrap(),
        _ => answer,
    });
    let server = counting(&layer, &Runs::default()).await;
    let answer = Http::new(VERSIONS[0]).post(&server, "/", "\"", "").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (418, &b"own"[..]));
}
