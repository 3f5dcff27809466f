//! A complete store of one's own, put through the conformance kit:
//! `cargo run --example custom_store --features testing`

use std::{collections::HashMap, sync::Mutex, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;
use tower_idempotency::{
    Fingerprint, Store, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, State, StoreError, Token},
    testing,
};

/// Keeps records in one map behind one lock. The lock makes each method atomic.
#[derive(Debug, Default)]
struct MapStore {
    rows: Mutex<HashMap<RecordId, Row>>,
}

#[derive(Debug)]
struct Row {
    token: Token,
    fingerprint: Fingerprint,
    attempt: u32,
    lease_until: Instant,
    expires_at: Instant,
    response: Option<StoredResponse>,
}

impl Row {
    /// Makes a claimed row, or makes this row claimed again.
    fn claimed(claim: &NewClaim, attempt: u32, now: Instant) -> Self {
        let NewClaim { token, fingerprint, lease, .. } = *claim;
        let lease_until = after(now, lease.term);
        let expires_at = after(lease_until, lease.unsettled);
        Self { token, fingerprint, attempt, lease_until, expires_at, response: None }
    }

    fn read(&self, now: Instant) -> Record {
        let state = match &self.response {
            Some(response) => State::Completed(response.clone()),
            None if now < self.lease_until => State::InFlight { lease_left: self.lease_until - now },
            None => State::Abandoned { since: now - self.lease_until },
        };
        Record::new(self.token, self.fingerprint, self.attempt, state)
    }
}

impl MapStore {
    /// Runs one step under the lock, with the rows whose time is over out of the way.
    fn step<T>(&self, work: impl FnOnce(&mut HashMap<RecordId, Row>, Instant) -> T) -> Result<T, StoreError> {
        let mut rows = self.rows.lock().map_err(|_| StoreError::unavailable("an earlier step panicked"))?;
        let now = Instant::now();
        rows.retain(|_, row| now < row.expires_at);
        Ok(work(&mut rows, now))
    }
}

#[async_trait]
impl Store for MapStore {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        self.step(|rows, now| {
            let attempt = match rows.get(id).map(|row| row.read(now)) {
                None => 1,
                Some(Record { state: State::Abandoned { .. }, token, attempt, .. })
                    if claim.replaces == Some(token) =>
                {
                    attempt + 1
                }
                Some(record) => return Claim::Existing(record),
            };
            rows.insert(id.clone(), Row::claimed(claim, attempt, now));
            Claim::Acquired { attempt }
        })
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        self.step(|rows, now| match rows.get_mut(id) {
            Some(row) if row.token == token && row.response.is_none() => {
                row.lease_until = after(now, lease.term);
                row.expires_at = after(row.lease_until, lease.unsettled);
                Fenced::Applied
            }
            _ => Fenced::Lost,
        })
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        self.step(|rows, now| match rows.get_mut(id) {
            Some(row) if row.token == token => {
                // A repeated completion changes nothing.
                if row.response.is_none() {
                    row.response = Some(response.clone());
                    row.expires_at = after(now, retention);
                }
                Fenced::Applied
            }
            _ => Fenced::Lost,
        })
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        self.step(|rows, _| {
            let held = rows.get(id).is_some_and(|row| row.token == token && row.response.is_none());
            if held {
                rows.remove(id);
            }
            if held { Fenced::Applied } else { Fenced::Lost }
        })
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.step(|rows, now| rows.get(id).map(|row| row.read(now)))
    }

    async fn purge(&self, _limit: usize) -> Result<usize, StoreError> {
        // Each step has removed what is over already.
        Ok(0)
    }
}

/// Adds a duration to a moment; one too long for the clock means "for ever", which a century is long enough for.
fn after(moment: Instant, duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    moment + duration.min(CENTURY)
}

#[tokio::main]
async fn main() {
    let store = MapStore::default();
    for case in testing::CASES {
        case.run(&store).await;
        println!("ok: {}", case.name());
    }
}
