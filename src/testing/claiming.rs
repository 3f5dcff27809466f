//! Cases about claims and the identity of records.

use std::time::Duration;

use super::support::*;
use crate::store::{Claim, Lease, State, Store};

/// "Reads a record": one that nobody claimed is absent.
pub async fn a_record_nobody_claimed_is_absent(store: &dyn Store) {
    assert_eq!(store.lookup(&fresh_id()).await.expect("lookup"), None);
}

/// "Absent: a record is made, in flight, attempt 1, with the claim's token and fingerprint."
pub async fn a_first_claim_is_acquired_as_attempt_one(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    let record = present(store, &id).await;
    assert_eq!((record.token, record.fingerprint, record.attempt), (claim.token, claim.fingerprint, 1));
    let State::InFlight { lease_left } = record.state else { panic!("not in flight: {record:?}") };
    assert!(lease_left > Duration::ZERO && lease_left <= LONG.term, "{lease_left:?} of the lease are left");
}

/// "Absent: a record is made": a token to take over does not stand in the way.
pub async fn a_claim_that_may_take_over_acquires_an_absent_record_as_attempt_one(store: &dyn Store) {
    let (id, gone) = (fresh_id(), new_claim(LONG).token);
    acquired(store.claim(&id, &new_claim(LONG).replacing(gone)).await.expect("claim"), 1);
}

/// "Atomic": of any number of concurrent claims exactly one acquires the record; the others report the winner's.
pub async fn of_concurrent_claims_exactly_one_is_acquired(store: &dyn Store) {
    for _ in 0..5 {
        let id = fresh_id();
        let outcomes = at_once(8, || async {
            let claim = new_claim(LONG);
            (claim.token, store.claim(&id, &claim).await.expect("claim"))
        })
        .await;
        let winners: Vec<_> =
            outcomes.iter().filter(|(_, outcome)| matches!(outcome, Claim::Acquired { .. })).collect();
        assert_eq!(winners.len(), 1, "{} of {} claims were acquired", winners.len(), outcomes.len());
        let winner = winners[0].0;
        for (token, outcome) in outcomes {
            match outcome {
                Claim::Acquired { attempt } => assert_eq!(attempt, 1),
                Claim::Existing(record) => assert_eq!(record.token, winner, "{token:?} met a record of nobody"),
            }
        }
        assert_eq!(present(store, &id).await.token, winner);
    }
}

/// "Otherwise nothing changes, and the record is reported": with what the first claim wrote.
pub async fn a_second_claim_reports_the_record_and_changes_nothing(store: &dyn Store) {
    let (id, first) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &first).await.expect("claim"), 1);
    let before = present(store, &id).await;
    let longer = Lease { term: LONG.term * 2, unsettled: LONG.unsettled * 2 };
    let reported = existing(store.claim(&id, &new_claim(longer)).await.expect("claim"));
    assert_eq!((reported.token, reported.fingerprint), (first.token, first.fingerprint));
    assert_unchanged(&before, &reported);
    assert_unchanged(&reported, &present(store, &id).await);
}

/// "A record that already carries the claim's own token is reported as any other."
pub async fn a_repeated_claim_reports_the_record_that_it_made(store: &dyn Store) {
    let (id, claim) = (fresh_id(), new_claim(LONG));
    acquired(store.claim(&id, &claim).await.expect("claim"), 1);
    let record = existing(store.claim(&id, &claim).await.expect("claim"));
    assert_eq!((record.token, record.attempt), (claim.token, 1));
}

/// "Identity": no separator makes two pairs of scope and key one record.
pub async fn scope_and_key_are_never_mixed_up(store: &dyn Store) {
    let unique = fresh();
    for separator in [":", "/", "|", "_", ".", "-", "#"] {
        let pairs = [
            (format!("{unique}{separator}a"), format!("b{separator}c")),
            (format!("{unique}{separator}a{separator}b"), "c".into()),
            (unique.clone(), format!("a{separator}b{separator}c")),
        ];
        each_is_a_record_of_its_own(store, &pairs).await;
    }
    let key = fresh();
    let long = "long".repeat(1024);
    each_is_a_record_of_its_own(store, &[(String::new(), key.clone()), (key.clone(), key.clone())]).await;
    each_is_a_record_of_its_own(store, &[(format!("{long}a"), key.clone()), (format!("{long}b"), key)]).await;
}

/// "Identity": any text is a scope, of any alphabet, with NUL and quotes, up to 4 KiB at least.
pub async fn any_text_is_a_scope(store: &dyn Store) {
    let unique = fresh();
    let texts = ["", "\0", "\0\0", "'", "\"", "''", "\\", "%", "?", "$1", "{}", "\n", "\r\n", "\t", "é", "e\u{301}"];
    let others = ["Ωμέγα", "租户", "арендатор", "مستأجر", "🦀", "\u{FFFD}", "\u{10FFFF}", "\u{200B}"];
    let long = ["x".repeat(4096), "租".repeat(1365)];
    let scopes = texts.into_iter().chain(others).map(String::from).chain(long);
    let pairs: Vec<_> = scopes.map(|scope| (scope, unique.clone())).collect();
    each_is_a_record_of_its_own(store, &pairs).await;
}

/// "Identity": case, trailing characters and wildcards tell scopes and keys apart.
pub async fn scopes_and_keys_are_compared_byte_exactly(store: &dyn Store) {
    let unique = fresh();
    let keys = ["k", "K", "k.", "k0", "k_", "k%", "k*", "k?", "0k", "00k", "1", "01", "1.0", "1e0", "null", "true"];
    let by_key = keys.map(|key| (unique.clone(), key.to_owned()));
    each_is_a_record_of_its_own(store, &by_key).await;
    let scopes = ["s", "S", "s ", " s", "s\0", "ß", "ss", "ſ", "i", "İ", "ı", "a", "á", "ä", "ａ"];
    let by_scope = scopes.map(|scope| (format!("{unique}{scope}"), unique.clone()));
    each_is_a_record_of_its_own(store, &by_scope).await;
    let long = "k".repeat(254);
    each_is_a_record_of_its_own(store, &["a", "b"].map(|last| (unique.clone(), format!("{long}{last}")))).await;
}

/// Claims each pair, and then finds each with its own token.
async fn each_is_a_record_of_its_own(store: &dyn Store, pairs: &[(String, String)]) {
    let mut tokens = Vec::new();
    for (scope, key) in pairs {
        let claim = new_claim(LONG);
        match store.claim(&id(scope.as_str(), key), &claim).await.expect("claim") {
            Claim::Acquired { .. } => tokens.push(claim.token),
            Claim::Existing(_) => panic!("scope {scope:?} with key {key:?} is taken for another pair"),
        }
    }
    for ((scope, key), token) in pairs.iter().zip(tokens) {
        let record = present(store, &id(scope.as_str(), key)).await;
        assert_eq!(record.token, token, "scope {scope:?} with key {key:?} gives the record of another pair");
    }
}
