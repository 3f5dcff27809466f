use bytes::Bytes;
use http::{HeaderName, Request, header, request::Parts};
use proptest::prelude::*;

use super::*;

const JSON: (&str, &str) = ("content-type", "application/json");

fn head(method: &str, uri: &str, lines: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn run(policy: &Fingerprinter, head: &Parts, body: impl Into<Bytes>, scoped: bool) -> Fingerprint {
    let body = body.into();
    let mut run = policy.start(head, scoped);
    for piece in body.chunks(5) {
        run.update(piece);
    }
    run.finish(policy, head, &body)
}

fn scoped(policy: &Fingerprinter, lines: &[(&str, &str)], body: &str) -> Fingerprint {
    run(policy, &head("POST", "/pay", lines), body.to_owned(), true)
}

#[test]
fn equal_requests_agree_however_the_body_is_cut() {
    let policy = Fingerprinter::new();
    let head = head("POST", "/pay?a=1", &[JSON, ("authorization", "Bearer x")]);
    let body = Bytes::from_static(b"{\"amount\": 5}");
    let mut whole = policy.start(&head, false);
    whole.update(&body);
    assert_eq!(whole.finish(&policy, &head, &body), run(&policy, &head, body, false));
}

#[test]
fn whatever_counts_makes_a_difference() {
    let mut seen = std::collections::HashSet::new();
    let auth = ("authorization", "Bearer x");
    for (method, uri, lines, body) in [
        ("POST", "/pay", &[JSON, auth][..], "{}"),
        ("PATCH", "/pay", &[JSON, auth], "{}"),
        ("POST", "/pay2", &[JSON, auth], "{}"),
        ("POST", "/pay/", &[JSON, auth], "{}"),
        ("POST", "/pay?", &[JSON, auth], "{}"),
        ("POST", "/pay?a", &[JSON, auth], "{}"),
        ("POST", "/pay?b", &[JSON, auth], "{}"),
        ("POST", "/pay", &[("content-type", "text/json"), auth], "{}"),
        ("POST", "/pay", &[("content-type", ""), auth], "{}"),
        ("POST", "/pay", &[JSON, JSON, auth], "{}"),
        ("POST", "/pay", &[auth], "{}"),
        ("POST", "/pay", &[JSON, auth], "{} "),
        ("POST", "/pay", &[JSON, auth], ""),
        ("POST", "/pay", &[JSON, ("authorization", "Bearer y")], "{}"),
        ("POST", "/pay", &[JSON, auth, auth], "{}"),
        ("POST", "/pay", &[JSON, ("authorization", "")], "{}"),
        ("POST", "/pay", &[JSON], "{}"),
    ] {
        let fingerprint = run(&Fingerprinter::new(), &head(method, uri, lines), body, false);
        assert!(seen.insert(fingerprint), "{method} {uri} {lines:?} {body}");
    }
}

#[test]
fn nothing_else_makes_a_difference() {
    let policy = Fingerprinter::new();
    let plain = scoped(&policy, &[JSON], "{}");
    for line in [("date", "now"), ("user-agent", "x"), ("cookie", "a=b"), ("traceparent", "00-1"), ("signature", "x")] {
        assert_eq!(scoped(&policy, &[JSON, line], "{}"), plain, "{line:?}");
    }
}

#[test]
fn authorization_counts_only_without_a_scope() {
    let [first, second] = ["Bearer x", "Bearer y"].map(|value| head("POST", "/pay", &[("authorization", value)]));
    let custom = Fingerprinter::custom(|_, _| Fingerprint::from_bytes([7; 32]));
    for policy in [Fingerprinter::new(), custom, Fingerprinter::new().canonical_json()] {
        assert_eq!(run(&policy, &first, "{}", true), run(&policy, &second, "{}", true), "{policy:?}");
        assert_ne!(run(&policy, &first, "{}", false), run(&policy, &second, "{}", false), "{policy:?}");
    }
}

#[test]
fn the_form_of_the_request_target_does_not_matter() {
    let policy = Fingerprinter::new();
    let origin = run(&policy, &head("POST", "/pay?a=1", &[]), "{}", true);
    assert_eq!(run(&policy, &head("POST", "http://shop.example/pay?a=1", &[]), "{}", true), origin);
    assert_eq!(run(&policy, &head("POST", "https://other.example:8443/pay?a=1", &[]), "{}", true), origin);
}

#[cfg(feature = "axum")]
#[test]
fn the_path_counts_as_the_client_sent_it() {
    let policy = Fingerprinter::new();
    let nested = |sent: &'static str| {
        let mut head = head("POST", "/pay", &[]);
        head.extensions.insert(axum::extract::OriginalUri(sent.parse().unwrap()));
        run(&policy, &head, "{}", true)
    };
    assert_ne!(nested("/eu/pay"), nested("/us/pay"));
    assert_eq!(nested("/pay"), run(&policy, &head("POST", "/pay", &[]), "{}", true));
}

#[test]
fn an_additional_header_counts_with_all_its_lines_in_order() {
    let version = HeaderName::from_static("api-version");
    let policy = Fingerprinter::new().header(version.clone());
    let mut seen = std::collections::HashSet::new();
    let (one, two) = (("api-version", "1"), ("api-version", "2"));
    for lines in [&[][..], &[one], &[two], &[one, two], &[two, one], &[one, one], &[("api-version", "")]] {
        assert!(seen.insert(scoped(&policy, lines, "{}")), "{lines:?}");
        assert_eq!(scoped(&Fingerprinter::new(), lines, "{}"), scoped(&Fingerprinter::new(), &[], "{}"));
        let twice = policy.clone().header(version.clone());
        assert_eq!(scoped(&policy, lines, "{}"), scoped(&twice, lines, "{}"));
    }
}

#[test]
fn authorization_can_be_an_additional_header() {
    let policy = Fingerprinter::new().header(header::AUTHORIZATION);
    assert_ne!(scoped(&policy, &[("authorization", "x")], ""), scoped(&policy, &[("authorization", "y")], ""));
}

#[test]
fn canonical_json_takes_two_spellings_for_one_document() {
    let policy = Fingerprinter::new().canonical_json();
    let spellings = ["{\"b\":1.0,\"a\":\"\\u0041\"}", " { \"a\" : \"A\", \"b\" : 1 } "];
    let both = |policy: &Fingerprinter, lines: &[(&str, &str)]| spellings.map(|body| scoped(policy, lines, body));
    let agree = |[a, b]: [Fingerprint; 2]| a == b;
    assert!(agree(both(&policy, &[JSON])));
    assert!(agree(both(&policy, &[("content-type", "application/vnd.api+json; charset=utf-8")])));
    assert!(!agree(both(&policy, &[("content-type", "text/plain")])));
    assert!(!agree(both(&policy, &[])));
    assert!(!agree(both(&Fingerprinter::new(), &[JSON])));
    assert_ne!(
        scoped(&policy, &[JSON], "{}"),
        scoped(&policy, &[("content-type", "application/json; charset=utf-8")], "{}")
    );
}

#[test]
fn raw_bytes_decide_where_json_is_not_safe_to_compare() {
    let policy = Fingerprinter::new().canonical_json();
    for (a, b) in [
        ("9007199254740993", "9007199254740992"),
        ("9007199254740993", " 9007199254740993"),
        ("{\"a\":1,\"a\":2}", "{\"a\":2,\"a\":1}"),
        ("[1e400]", "[ 1e400]"),
        ("{\"a\":", "{ \"a\":"),
    ] {
        assert_ne!(scoped(&policy, &[JSON], a), scoped(&policy, &[JSON], b), "{a} {b}");
        assert_eq!(scoped(&policy, &[JSON], a), scoped(&Fingerprinter::new(), &[JSON], a), "{a}");
    }
}

#[test]
fn raw_and_canonical_bytes_never_agree() {
    // The same bytes, once taken as canonical JSON and once as they are.
    let canonical = scoped(&Fingerprinter::new().canonical_json(), &[JSON], "{}");
    assert_ne!(canonical, scoped(&Fingerprinter::new(), &[JSON], "{}"));
}

#[test]
fn multipart_does_not_depend_on_the_boundary() {
    let policy = Fingerprinter::new().multipart();
    let send = |policy: &Fingerprinter, content_type: &str, boundary: &str, parts: [&str; 2]| {
        let [first, second] = parts;
        let body = format!("--{boundary}\r\n{first}\r\n--{boundary}\r\n{second}\r\n--{boundary}--\r\n");
        scoped(policy, &[("content-type", &content_type.replace('@', boundary))], &body)
    };
    let form = "multipart/form-data; boundary=@";
    let parts = ["A: b\r\n\r\none", "\r\ntwo"];
    let first = send(&policy, form, "abc", parts);
    assert_eq!(first, send(&policy, form, "----xyz.0123", parts));
    assert_eq!(first, send(&policy, "multipart/form-data; boundary=\"@\"", "a b", parts));

    assert_ne!(first, send(&policy, form, "abc", ["A: b\r\n\r\none", "\r\ntwo "]));
    assert_ne!(first, send(&policy, form, "abc", ["A: B\r\n\r\none", "\r\ntwo"]));
    assert_ne!(first, send(&policy, form, "abc", ["\r\ntwo", "A: b\r\n\r\none"]));
    assert_ne!(first, send(&policy, "multipart/mixed; boundary=@", "abc", parts));
    assert_ne!(first, send(&policy, "multipart/form-data; boundary=@; x=y", "abc", parts));
    assert_ne!(first, send(&Fingerprinter::new(), form, "abc", parts));
    assert_ne!(send(&Fingerprinter::new(), form, "abc", parts), send(&Fingerprinter::new(), form, "xyz", parts));
}

#[test]
fn raw_bytes_decide_where_multipart_is_malformed() {
    let policy = Fingerprinter::new().multipart();
    for body in ["", "x", "--abc\r\nx", "--abc\r\nsee --abc\r\n--abc--"] {
        let lines = [("content-type", "multipart/mixed; boundary=abc")];
        assert_eq!(scoped(&policy, &lines, body), scoped(&Fingerprinter::new(), &lines, body), "{body}");
    }
}

#[test]
fn a_function_takes_the_place_of_method_path_and_body() {
    let policy = Fingerprinter::custom(|head, body| {
        let mut bytes = [0; 32];
        bytes[0] = body.len() as u8;
        bytes[1] = head.headers.len() as u8;
        Fingerprint::from_bytes(bytes)
    });
    let first = run(&policy, &head("POST", "/pay", &[]), "abc", true);
    assert_eq!(first, run(&policy, &head("PATCH", "/other", &[]), "xyz", true));
    assert_ne!(first, run(&policy, &head("POST", "/pay", &[]), "abcd", true));
    assert_ne!(first, run(&policy, &head("POST", "/pay", &[JSON]), "abc", true));
    let with_header = policy.header(header::ACCEPT);
    let [a, b] = ["a", "b"].map(|value| run(&with_header, &head("POST", "/pay", &[("accept", value)]), "abc", true));
    assert_ne!(a, b);
}

#[test]
fn debug_output_shows_the_policy_and_no_more_than_a_digest_of_a_fingerprint() {
    let policy = Fingerprinter::new().canonical_json().header(header::ACCEPT);
    assert!(format!("{policy:?}").contains("accept"));
    assert!(format!("{:?}", Fingerprint::from_bytes([7; 32])).len() < 30);
}

type Sample = (&'static str, String, Vec<String>, Vec<String>, Vec<String>, String);

fn samples() -> impl Strategy<Value = Sample> {
    let lines = || prop::collection::vec("[ab]{0,2}", 0..3);
    (prop::sample::select(vec!["A", "AB"]), "/[ab]{0,2}(\\?[ab]{0,2})?", lines(), lines(), lines(), "[ab]{0,3}")
}

proptest! {
    #[test]
    fn bytes_that_move_from_one_field_to_another_make_a_difference(a in samples(), b in samples()) {
        let policy = Fingerprinter::new().header(header::ACCEPT);
        let of = |sample: &Sample| {
            let (method, uri, types, authorizations, accepts, body) = sample;
            let named = |name, lines| Iterator::zip(std::iter::repeat(name), lines);
            let lines: Vec<_> = named("content-type", types)
                .chain(named("authorization", authorizations))
                .chain(named("accept", accepts))
                .map(|(name, line)| (name, line.as_str()))
                .collect();
            run(&policy, &head(method, uri, &lines), body.clone(), false)
        };
        prop_assert_eq!(of(&a) == of(&b), a == b);
    }

    #[test]
    fn multipart_bodies_with_other_parts_make_a_difference(
        a in prop::collection::vec("[ab\r\n]{0,3}", 1..4),
        b in prop::collection::vec("[ab\r\n]{0,3}", 1..4),
    ) {
        let of = |boundary: &str, parts: &[String]| {
            let parts: String = parts.iter().map(|part| format!("--{boundary}\r\n{part}\r\n")).collect();
            let line = format!("multipart/mixed; boundary={boundary}");
            scoped(&Fingerprinter::new().multipart(), &[("content-type", &line)], &format!("{parts}--{boundary}--"))
        };
        prop_assert_eq!(of("x", &a) == of("yy", &b), a == b);
    }
}
