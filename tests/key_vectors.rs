//! Checks the key parser against the public test vectors for structured fields, where they are at hand.

use std::{env, fs, path::PathBuf};

use http::HeaderValue;
use serde_json::Value;
use tower_idempotency::{KeyError, KeySyntax};

const FILES: [&str; 5] = ["string.json", "string-generated.json", "item.json", "token.json", "examples.json"];

#[test]
fn public_vectors_for_items_are_read_as_rfc_9651_says() {
    let folder = folder();
    if !folder.is_dir() {
        println!("SKIPPED: there is no folder {}", folder.display());
        return;
    }
    let (mut quoted, mut bare) = (0, 0);
    for record in FILES.iter().flat_map(|file| items(&folder, file)) {
        let lines: Vec<&str> = record["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        let values: Result<Vec<_>, _> = lines.iter().map(|line| HeaderValue::from_bytes(line.as_bytes())).collect();
        let Ok(values) = values else {
            assert_eq!(record["must_fail"], true, "HTTP itself refuses {record}");
            quoted += 1;
            continue;
        };
        let parsed = KeySyntax::new().max_length(1024).parse(&values);
        let text = parsed.as_ref().map(|key| key.as_str());

        if lines.len() > 1 {
            // RFC 9651 allows a parser to refuse an Item in more than one line; ours always does.
            assert_eq!(parsed, Err(KeyError::Repeated), "{record}");
        } else if lines[0].trim_start_matches(' ').starts_with('"') {
            match expected(&record) {
                None => assert!(parsed.is_err(), "{record}"),
                Some("") => assert_eq!(parsed, Err(KeyError::Empty), "a key is never empty: {record}"),
                Some(blank) if blank.trim().is_empty() => assert_eq!(parsed, Err(KeyError::Blank), "{record}"),
                Some(expected) => assert_eq!(text, Ok(expected), "{record}"),
            }
            quoted += 1;
        } else {
            // Not a String. RFC 9651 has other Items here; ours takes such a line as bare text, or refuses it.
            let trimmed = lines[0].trim_matches([' ', '\t']);
            if trimmed.is_empty() || trimmed.contains([' ', '"', '\\', ',', ';']) {
                assert!(parsed.is_err(), "{record}");
            } else {
                assert_eq!(text, Ok(trimmed), "{record}");
            }
            assert!(KeySyntax::new().quoted_only().parse(&values).is_err(), "{record}");
            bare += 1;
        }
    }
    assert!(quoted >= 265, "only {quoted} records with a String were checked");
    assert!(bare >= 15, "only {bare} records without a String were checked");
}

fn folder() -> PathBuf {
    env::var_os("TOWER_IDEMPOTENCY_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors"), PathBuf::from)
        .join("sf")
}

fn items(folder: &std::path::Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let records: Vec<Value> = serde_json::from_str(&text).unwrap();
    records.into_iter().filter(|record| record["header_type"] == "item").collect()
}

/// Returns the String that a record expects; `None` if it must not be read.
fn expected(record: &Value) -> Option<&str> {
    (record["must_fail"] != true).then(|| record["expected"][0].as_str().unwrap())
}
