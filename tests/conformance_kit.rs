//! The conformance kit itself: it lets a right store pass, and catches each of many wrong ones.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};
use tower_idempotency::{
    Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, State, StoreError, Token},
    testing::CASES,
};

/// What is wrong with a store, and the case that must notice it.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::ClaimReadsThenWrites, "of_concurrent_claims_exactly_one_is_acquired"),
    (Flaw::ClaimReadsThenWrites, "of_concurrent_takeovers_exactly_one_is_acquired"),
    (Flaw::ClaimReadsThenWrites, "of_concurrent_claims_of_an_expired_record_exactly_one_is_acquired"),
    (Flaw::OwnTokenAcquires, "a_repeated_claim_reports_the_record_that_it_made"),
    (Flaw::SecondClaimRenews, "a_second_claim_reports_the_record_and_changes_nothing"),
    (Flaw::AbsentCountsAsTakeover, "a_claim_that_may_take_over_acquires_an_absent_record_as_attempt_one"),
    (Flaw::JoinsNames, "scope_and_key_are_never_mixed_up"),
    (Flaw::IgnoresCase, "scopes_and_keys_are_compared_byte_exactly"),
    (Flaw::TrimsNames, "scopes_and_keys_are_compared_byte_exactly"),
    (Flaw::EndsNamesAtNul, "any_text_is_a_scope"),
    (Flaw::CutsNames, "scope_and_key_are_never_mixed_up"),
    (Flaw::RoundsUp, "a_lease_is_not_rounded_to_seconds"),
    (Flaw::RoundsDown, "a_lease_is_not_rounded_to_seconds"),
    (Flaw::CompletionKeepsExpiry, "a_completed_record_outlives_its_lease"),
    (Flaw::Wraps, "durations_too_long_for_a_clock_mean_for_ever"),
    (Flaw::ZeroMeansForEver, "renewing_for_no_time_abandons_the_record_at_once"),
    (Flaw::LeaseEndRemoves, "an_ended_lease_leaves_an_abandoned_record"),
    (Flaw::LeaseEndFences, "the_holder_of_an_abandoned_record_may_complete_it"),
    (Flaw::LeaseEndFences, "the_holder_of_an_abandoned_record_may_renew_it"),
    (Flaw::LeaseEndFences, "the_holder_of_an_abandoned_record_may_release_it"),
    (Flaw::TakesOverTheLiving, "a_record_in_flight_cannot_be_taken_over"),
    (Flaw::TakesOverFromAnybody, "a_takeover_must_name_the_current_token"),
    (Flaw::TakesOverFromAnybody, "an_abandoned_record_is_reported_to_a_claim"),
    (Flaw::KeepsAttempt, "an_abandoned_record_can_be_taken_over"),
    (Flaw::KeepsFingerprint, "an_abandoned_record_can_be_taken_over"),
    (Flaw::UnfencedWrites, "a_lost_holder_cannot_touch_a_record_in_flight"),
    (Flaw::UnfencedWrites, "a_lost_holder_cannot_touch_an_abandoned_record"),
    (Flaw::UnfencedWrites, "a_lost_holder_cannot_touch_a_completed_record"),
    (Flaw::UnfencedWrites, "a_strangers_token_cannot_touch_a_record"),
    (Flaw::UnfencedWrites, "a_released_token_cannot_touch_the_next_record"),
    (Flaw::CompletionIsNotTheEnd, "renewing_a_completed_record_is_lost"),
    (Flaw::CompletionIsNotTheEnd, "a_completed_record_cannot_be_released"),
    (Flaw::CompletionIsNotTheEnd, "a_completed_record_cannot_be_taken_over"),
    (Flaw::CompletionIsNotTheEnd, "a_completion_and_a_release_never_both_apply"),
    (Flaw::RepeatedCompletionWrites, "a_repeated_completion_is_applied_and_changes_nothing"),
    (Flaw::RepeatedCompletionIsLost, "a_repeated_completion_is_applied_and_changes_nothing"),
    (Flaw::ReencodesText, "a_stored_response_is_byte_identical"),
    (Flaw::NeverEnds, "a_completed_record_ends_with_its_retention"),
    (Flaw::NeverEnds, "an_abandoned_record_ends_with_its_unsettled_term"),
    (Flaw::EndedTakesWrites, "a_completed_record_ends_with_its_retention"),
    (Flaw::EndedTakesWrites, "an_abandoned_record_ends_with_its_unsettled_term"),
    (Flaw::ReadingProlongs, "reading_a_record_does_not_prolong_it"),
    (Flaw::PurgesEverything, "a_purge_leaves_every_record_whose_time_is_not_over"),
    (Flaw::PurgesWithoutLimit, "a_purge_removes_at_most_its_limit"),
    (Flaw::DroppedClaimStays, "a_dropped_claim_blocks_its_key_for_its_lease_at_most"),
];

#[tokio::test(start_paused = true)]
async fn a_right_store_passes_every_case() {
    for case in CASES {
        case.run(&MapStore::new(None)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_flaw_is_noticed_by_the_case_that_is_meant_for_it() {
    let mut unnoticed = Vec::new();
    for (flaw, name) in FLAWS {
        let case = CASES.iter().find(|case| case.name() == *name).expect(name);
        let store = MapStore::new(Some(*flaw));
        let checked = tokio::spawn(async move { case.run(&store).await });
        let checked = timeout(Duration::from_secs(3600), checked).await.expect("a case ends, whatever the store does");
        if checked.is_ok() {
            unnoticed.push((flaw, name));
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    ClaimReadsThenWrites,
    OwnTokenAcquires,
    SecondClaimRenews,
    AbsentCountsAsTakeover,
    JoinsNames,
    IgnoresCase,
    TrimsNames,
    EndsNamesAtNul,
    CutsNames,
    RoundsUp,
    RoundsDown,
    Wraps,
    ZeroMeansForEver,
    LeaseEndRemoves,
    LeaseEndFences,
    TakesOverTheLiving,
    TakesOverFromAnybody,
    KeepsAttempt,
    KeepsFingerprint,
    UnfencedWrites,
    CompletionIsNotTheEnd,
    CompletionKeepsExpiry,
    RepeatedCompletionWrites,
    RepeatedCompletionIsLost,
    ReencodesText,
    NeverEnds,
    EndedTakesWrites,
    ReadingProlongs,
    PurgesEverything,
    PurgesWithoutLimit,
    DroppedClaimStays,
}

/// A small store that is right, or has one flaw.
#[derive(Debug)]
struct MapStore {
    flaw: Option<Flaw>,
    start: Instant,
    rows: Mutex<HashMap<(String, String), Row>>,
}

#[derive(Debug, Clone)]
struct Row {
    claim: NewClaim,
    attempt: u32,
    lease_until: Duration,
    expires_at: Duration,
    response: Option<StoredResponse>,
}

impl MapStore {
    fn new(flaw: Option<Flaw>) -> Arc<Self> {
        Arc::new(Self { flaw, start: Instant::now(), rows: Mutex::default() })
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn name(&self, id: &RecordId) -> (String, String) {
        let (mut scope, mut key) = (id.scope().as_str().to_owned(), id.key().as_str().to_owned());
        match self.flaw {
            Some(Flaw::JoinsNames) => (scope, key) = (String::new(), format!("{scope}:{key}")),
            Some(Flaw::IgnoresCase) => (scope, key) = (scope.to_lowercase(), key.to_lowercase()),
            Some(Flaw::TrimsNames) => scope.truncate(scope.trim_end_matches(' ').len()),
            Some(Flaw::EndsNamesAtNul) => scope.truncate(scope.find('\0').unwrap_or(scope.len())),
            Some(Flaw::CutsNames) => scope = scope.chars().take(255).collect(),
            _ => {}
        }
        (scope, key)
    }

    fn after(&self, moment: Duration, term: Duration) -> Duration {
        let rounded = match self.flaw {
            Some(Flaw::RoundsUp) => Duration::from_secs(term.as_secs_f64().ceil() as u64),
            Some(Flaw::RoundsDown) => Duration::from_secs(term.as_secs()),
            Some(Flaw::Wraps) => Duration::from_millis(u64::from(term.as_millis() as u32)),
            Some(Flaw::ZeroMeansForEver) if term.is_zero() => Duration::MAX,
            _ => term,
        };
        moment.saturating_add(rounded)
    }

    fn row(&self, id: &RecordId) -> Option<Row> {
        let over = |row: &Row| {
            let ended = row.response.is_none() && row.lease_until <= self.start.elapsed();
            row.expires_at <= self.start.elapsed() || (ended && self.has(Flaw::LeaseEndRemoves))
        };
        let row = self.rows.lock().unwrap().get(&self.name(id)).cloned();
        row.filter(|row| !over(row) || self.has(Flaw::NeverEnds))
    }

    fn put(&self, id: &RecordId, row: Row) {
        self.rows.lock().unwrap().insert(self.name(id), row);
    }

    /// Returns the row that the holder of the token may write to, completed or not.
    fn held(&self, id: &RecordId, token: Token) -> Option<Row> {
        let any = || self.rows.lock().unwrap().get(&self.name(id)).cloned();
        let row = if self.has(Flaw::EndedTakesWrites) { any() } else { self.row(id) }?;
        let fenced =
            row.response.is_none() && row.lease_until <= self.start.elapsed() && self.has(Flaw::LeaseEndFences);
        ((row.claim.token == token || self.has(Flaw::UnfencedWrites)) && !fenced).then_some(row)
    }

    fn read(&self, row: &Row) -> Record {
        let now = self.start.elapsed();
        let state = match &row.response {
            Some(response) => State::Completed(response.clone()),
            None if now < row.lease_until => State::InFlight { lease_left: row.lease_until - now },
            None => State::Abandoned { since: now - row.lease_until },
        };
        Record::new(row.claim.token, row.claim.fingerprint, row.attempt, state)
    }
}

#[async_trait]
impl Store for MapStore {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        let found = self.row(id);
        if self.has(Flaw::ClaimReadsThenWrites) {
            yield_now().await;
        }
        let now = self.start.elapsed();
        let lease_until = self.after(now, claim.lease.term);
        let expires_at = self.after(lease_until, claim.lease.unsettled);
        let mut new = Row { claim: claim.clone(), attempt: 1, lease_until, expires_at, response: None };
        if let Some(mut row) = found {
            let open = row.response.is_none() || self.has(Flaw::CompletionIsNotTheEnd);
            let abandoned = open && (row.lease_until <= now || self.has(Flaw::TakesOverTheLiving));
            let named = claim.replaces == Some(row.claim.token) || self.has(Flaw::TakesOverFromAnybody);
            let own = row.claim.token == claim.token && self.has(Flaw::OwnTokenAcquires);
            if !(abandoned && named || own) {
                let record = self.read(&row);
                if self.has(Flaw::SecondClaimRenews) {
                    row.lease_until = lease_until;
                    self.put(id, row);
                } else if self.has(Flaw::ReadingProlongs) {
                    row.expires_at += Duration::from_secs(1);
                    self.put(id, row);
                }
                return Ok(Claim::Existing(record));
            }
            new.attempt = if own || self.has(Flaw::KeepsAttempt) { row.attempt } else { row.attempt + 1 };
            if self.has(Flaw::KeepsFingerprint) {
                new.claim.fingerprint = row.claim.fingerprint;
            }
        } else if claim.replaces.is_some() && self.has(Flaw::AbsentCountsAsTakeover) {
            new.attempt = 2;
        }
        if self.has(Flaw::DroppedClaimStays) {
            self.put(id, Row { lease_until: Duration::MAX, ..new.clone() });
            yield_now().await;
        }
        let attempt = new.attempt;
        self.put(id, new);
        Ok(Claim::Acquired { attempt })
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        let Some(mut row) = self.held(id, token) else { return Ok(Fenced::Lost) };
        if row.response.is_some() && !self.has(Flaw::CompletionIsNotTheEnd) {
            return Ok(Fenced::Lost);
        }
        row.lease_until = self.after(self.start.elapsed(), lease.term);
        row.expires_at = self.after(row.lease_until, lease.unsettled);
        self.put(id, row);
        Ok(Fenced::Applied)
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        let Some(mut row) = self.held(id, token) else { return Ok(Fenced::Lost) };
        if row.response.is_some() && self.has(Flaw::RepeatedCompletionIsLost) {
            return Ok(Fenced::Lost);
        }
        if row.response.is_none() || self.has(Flaw::RepeatedCompletionWrites) {
            row.response = Some(response.clone());
            if !self.has(Flaw::CompletionKeepsExpiry) {
                row.expires_at = self.after(self.start.elapsed(), retention);
            }
            if let (true, Some(mut parsed)) = (self.has(Flaw::ReencodesText), response.to_response()) {
                *parsed.body_mut() = String::from_utf8_lossy(parsed.body()).into_owned().into();
                row.response = Some(StoredResponse::of(&parsed));
            }
            self.put(id, row);
        }
        Ok(Fenced::Applied)
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        match self.held(id, token) {
            Some(row) if row.response.is_none() || self.has(Flaw::CompletionIsNotTheEnd) => {
                self.rows.lock().unwrap().remove(&self.name(id));
                Ok(Fenced::Applied)
            }
            _ => Ok(Fenced::Lost),
        }
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.row(id).map(|row| self.read(&row)))
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        let (mut rows, now) = (self.rows.lock().unwrap(), self.start.elapsed());
        let over = rows.iter().filter(|(_, row)| row.expires_at <= now || self.has(Flaw::PurgesEverything));
        let limit = if self.has(Flaw::PurgesWithoutLimit) { usize::MAX } else { limit };
        let over: Vec<_> = over.map(|(name, _)| name.clone()).take(limit).collect();
        rows.retain(|name, _| !over.contains(name));
        Ok(over.len())
    }
}
