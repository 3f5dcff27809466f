//! The in-memory store against a model: one plain map, played in step with it by random calls in paused time.

use std::{collections::HashMap, time::Duration};

use tokio::time::{Instant, advance};
use tower_idempotency::{
    Fingerprint, IdempotencyKey, MemoryStore, Scope, Store, StoredResponse, WhenFull,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, State, StoreError, Token},
};

const STEPS: usize = 30_000;
const KEYS: u64 = 600;

#[tokio::test(start_paused = true)]
async fn a_store_with_room_answers_as_the_model_does() {
    play(&mut Model::new(usize::MAX, WhenFull::Refuse), MemoryStore::new(), 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_exactly_when_the_model_does() {
    let mut model = Model::new(50, WhenFull::Refuse);
    play(&mut model, MemoryStore::new().max_records(50), 2).await;
    assert!(model.was_full > 100);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_evicts_exactly_what_the_model_does() {
    let store = MemoryStore::new().max_records(50).when_full(WhenFull::EvictOldestCompleted);
    let mut model = Model::new(50, WhenFull::EvictOldestCompleted);
    play(&mut model, store, 3).await;
    assert!(model.was_full > 100);
}

async fn play(model: &mut Model, store: MemoryStore, seed: u64) {
    let mut random = Random(seed);
    let mut tokens = HashMap::new();
    for step in 0..STEPS {
        let number = random.below(KEYS);
        let id = RecordId::new(Scope::new("tenant"), IdempotencyKey::new(&format!("key-{number}")).unwrap());
        // Often the right token, sometimes that of another key.
        let held = if random.below(10) == 0 { random.below(KEYS) } else { number };
        let token = tokens.get(&held).copied().unwrap_or_else(Token::random);
        let lease = Lease { term: random.duration(), unsettled: random.duration() };
        match random.below(8) {
            0..=3 => {
                let claim = NewClaim::new(Token::random(), Fingerprint::from_bytes([step as u8; 32]), lease);
                let claim = claim.replacing(token);
                let outcome = text(store.claim(&id, &claim).await);
                assert_eq!(outcome, text(model.claim(number, &claim)), "claim in step {step}");
                if outcome.contains("Acquired") {
                    tokens.insert(number, claim.token);
                }
            }
            4 => assert_eq!(store.renew(&id, token, lease).await.unwrap(), model.renew(number, token, lease)),
            5 | 6 => {
                let response = StoredResponse::of(&http::Response::new(vec![b'x'; step % 99].into()));
                let retention = random.duration() * 4;
                let outcome = store.complete(&id, token, &response, retention).await.unwrap();
                assert_eq!(outcome, model.complete(number, token, response, retention), "complete in step {step}");
            }
            _ => assert_eq!(store.release(&id, token).await.unwrap(), model.release(number, token)),
        }
        assert_eq!(store.lookup(&id).await.unwrap(), model.lookup(number), "lookup in step {step}");
        if random.below(500) == 0 {
            store.purge(usize::MAX).await.unwrap();
            model.forget_expired();
            assert_eq!((store.len(), store.bytes()), (model.rows.len(), model.bytes()), "purge in step {step}");
        }
        advance(Duration::from_micros(random.below(40_000))).await;
    }
    advance(Duration::from_secs(1_000_000)).await;
    store.purge(usize::MAX).await.unwrap();
    assert_eq!((store.len(), store.bytes()), (0, 0));
}

/// What the contract says, in the plainest form.
struct Model {
    rows: HashMap<u64, Row>,
    max_records: usize,
    when_full: WhenFull,
    /// How often a new record found no room.
    was_full: usize,
}

struct Row {
    record: Record,
    lease_until: Instant,
    expires_at: Instant,
}

impl Model {
    fn new(max_records: usize, when_full: WhenFull) -> Self {
        Self { rows: HashMap::new(), max_records, when_full, was_full: 0 }
    }

    fn claim(&mut self, number: u64, claim: &NewClaim) -> Result<Claim, StoreError> {
        let attempt = match self.lookup(number) {
            Some(Record { state: State::Abandoned { .. }, token, attempt, .. }) if claim.replaces == Some(token) => {
                attempt + 1
            }
            Some(record) => return Ok(Claim::Existing(record)),
            None => 1,
        };
        self.forget_expired();
        if attempt == 1 && self.rows.len() == self.max_records {
            self.was_full += 1;
            let completed = self.rows.iter().filter(|(_, row)| matches!(row.record.state, State::Completed(_)));
            let oldest = completed.min_by_key(|(_, row)| row.expires_at).map(|(number, _)| *number);
            match oldest.filter(|_| self.when_full == WhenFull::EvictOldestCompleted) {
                Some(oldest) => self.rows.remove(&oldest),
                None => return Err(StoreError::full()),
            };
        }
        let lease_until = Instant::now() + claim.lease.term;
        // The state is made anew whenever it is read.
        let record = Record::new(claim.token, claim.fingerprint, attempt, State::Abandoned { since: Duration::ZERO });
        self.rows.insert(number, Row { record, lease_until, expires_at: lease_until + claim.lease.unsettled });
        Ok(Claim::Acquired { attempt })
    }

    fn renew(&mut self, number: u64, token: Token, lease: Lease) -> Fenced {
        let Some(row) = self.open(number, token) else { return Fenced::Lost };
        row.lease_until = Instant::now() + lease.term;
        row.expires_at = row.lease_until + lease.unsettled;
        Fenced::Applied
    }

    fn complete(&mut self, number: u64, token: Token, response: StoredResponse, retention: Duration) -> Fenced {
        if let Some(row) = self.open(number, token) {
            row.record.state = State::Completed(response);
            row.expires_at = Instant::now() + retention;
            return Fenced::Applied;
        }
        let repeated = self.lookup(number).is_some_and(|record| record.token == token);
        if repeated { Fenced::Applied } else { Fenced::Lost }
    }

    fn release(&mut self, number: u64, token: Token) -> Fenced {
        if self.open(number, token).is_none() {
            return Fenced::Lost;
        }
        self.rows.remove(&number);
        Fenced::Applied
    }

    fn lookup(&self, number: u64) -> Option<Record> {
        let now = Instant::now();
        let row = self.rows.get(&number).filter(|row| now < row.expires_at)?;
        let mut record = row.record.clone();
        if !matches!(record.state, State::Completed(_)) {
            record.state = match row.lease_until.checked_duration_since(now).filter(|left| !left.is_zero()) {
                Some(lease_left) => State::InFlight { lease_left },
                None => State::Abandoned { since: now - row.lease_until },
            };
        }
        Some(record)
    }

    fn open(&mut self, number: u64, token: Token) -> Option<&mut Row> {
        let open = |record: Record| record.token == token && !matches!(record.state, State::Completed(_));
        if self.lookup(number).is_some_and(open) { self.rows.get_mut(&number) } else { None }
    }

    fn forget_expired(&mut self) {
        let now = Instant::now();
        self.rows.retain(|_, row| now < row.expires_at);
    }

    fn bytes(&self) -> usize {
        let bytes = |(number, row): (&u64, &Row)| {
            let response = match &row.record.state {
                State::Completed(response) => response.as_encoded().len(),
                _ => 0,
            };
            MemoryStore::RECORD_OVERHEAD + "tenant".len() + format!("key-{number}").len() + response
        };
        self.rows.iter().map(bytes).sum()
    }
}

fn text(outcome: Result<Claim, StoreError>) -> String {
    format!("{outcome:?}")
}

/// A linear congruential generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Nothing now and then, otherwise up to ten seconds, with nanoseconds that no other has.
    fn duration(&mut self) -> Duration {
        if self.below(10) == 0 { Duration::ZERO } else { Duration::from_nanos(self.below(10_000_000_000)) }
    }
}
