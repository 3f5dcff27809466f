//! Records in the memory of this process: sharded, bounded, without a background task.

mod chunks;
mod clock;
mod entry;
mod heap;
mod kept;
mod records;
mod room;
mod shard;
mod shards;
mod steps;

use std::{fmt, time::Duration};

use async_trait::async_trait;

use self::{clock::Clock, room::Room, shards::Shards};
use crate::{
    StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, RecordId, Store, StoreError, Token},
};

/// Keeps records in the memory of this process.
///
/// For a service of one instance, for tests, for development. Records do not survive the process, and another instance
/// does not see them. Share it as `Arc<MemoryStore>`.
///
/// # Bounds
///
/// A claim that needs a new record is refused with [`StoreError::full`] if the record does not fit below
/// [`max_records`](Self::max_records) and [`max_bytes`](Self::max_bytes), once every expired record in its way has been
/// removed. A takeover needs no room. The response of an admitted claim is always stored, since an answer must not get
/// lost, so that the bytes may go beyond `max_bytes`: by no more than the responses of the claims that were in flight
/// together, each of them as long as the layer's limit for a stored response.
///
/// # Memory and time
///
/// A record takes at most 320 bytes besides its scope, key and response (a test measures it), and an empty store
/// about 20 KiB. The records are spread over tables, one per 65,536 records of `max_records` within 64 to 4,096, which
/// grow apart from each other and move no record, so that no claim waits long for one to grow.
/// There is no background task: each claim removes a few expired records, and [`purge`](Store::purge) removes the
/// rest. A store that nobody claims in keeps its memory until it is purged.
///
/// Time is monotonic, exact to the nanosecond, and follows Tokio's paused clock in tests. No runtime is needed.
///
/// # Cancel safety
///
/// Every method but `purge` does its work in the first poll. A dropped `purge` has removed some of what is over.
///
/// ```
/// use std::sync::Arc;
/// use tower_idempotency::{MemoryStore, WhenFull};
///
/// let store = MemoryStore::new().max_records(50_000).when_full(WhenFull::EvictOldestCompleted);
/// let shared = Arc::new(store);
/// assert!(shared.is_empty());
/// ```
pub struct MemoryStore {
    shards: Shards,
    clock: Clock,
    room: Room,
    when_full: WhenFull,
}

/// What a full [`MemoryStore`] does with a claim that needs a new record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// Refuses the claim, so that nothing runs unprotected and no answer is forgotten before its time. The default.
    #[default]
    Refuse,
    /// Forgets the completed record that would expire first. A retry of that request then runs again.
    ///
    /// Records that are in flight or abandoned stay; if there are no others, the claim is refused.
    EvictOldestCompleted,
}

impl MemoryStore {
    /// What [`bytes`](Self::bytes) counts for a record besides its scope, key and response: 320 bytes.
    pub const RECORD_OVERHEAD: usize = room::RECORD_OVERHEAD;

    /// Makes an empty store for at most 1,000,000 records and 1 GiB, that refuses claims when it is full.
    #[must_use]
    pub fn new() -> Self {
        let room = Room::new(1_000_000, 1 << 30);
        Self { shards: Shards::new(room.max_records), clock: Clock::new(), room, when_full: WhenFull::default() }
    }

    /// Limits the number of records, those not completed included. 1,000,000 by default.
    ///
    /// # Panics
    ///
    /// Panics if it is 0.
    #[must_use]
    #[track_caller]
    pub fn max_records(mut self, records: usize) -> Self {
        assert!(records > 0, "a memory store must have room for at least one record");
        self.room.max_records = records;
        if self.is_empty() {
            self.shards = Shards::new(records);
        }
        self
    }

    /// Limits the [`bytes`](Self::bytes) of all records together. 1 GiB by default.
    ///
    /// # Panics
    ///
    /// Panics if it is not above [`RECORD_OVERHEAD`](Self::RECORD_OVERHEAD), so that no record would ever fit.
    #[must_use]
    #[track_caller]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        assert!(
            bytes > Self::RECORD_OVERHEAD,
            "a memory store of {bytes} bytes has no room for a record, which takes more than {} bytes",
            Self::RECORD_OVERHEAD
        );
        self.room.max_bytes = bytes;
        self
    }

    /// Says what happens to a claim that finds no room. [`WhenFull::Refuse`] by default.
    #[must_use]
    pub fn when_full(mut self, policy: WhenFull) -> Self {
        self.when_full = policy;
        self
    }

    /// Returns the number of records held, those included that expired and were not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.room.records()
    }

    /// Tells whether no record is held, not even an expired one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all records held: for each one the length of its scope, key and encoded response, and
    /// [`RECORD_OVERHEAD`](Self::RECORD_OVERHEAD). Expired records that were not removed yet are included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.room.bytes()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("room", &self.room)
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for MemoryStore {
    async fn claim(&self, id: &RecordId, claim: &NewClaim) -> Result<Claim, StoreError> {
        let (id, shard) = self.shards.locate(id);
        loop {
            let mut removed = Vec::new();
            let mut records = shard.lock();
            // Read under the lock, so that no record looks younger than the claim that made it.
            let now = self.clock.now();
            records.reclaim(now, shards::PER_CLAIM, &self.room, &mut removed);
            let outcome = records.claim(id, claim, now, &self.room);
            drop(records);
            drop(removed);
            if let Some(outcome) = outcome {
                self.shards.reclaim_in_turn(now, &self.room);
                return Ok(outcome);
            }
            // A record larger than the whole store must not evict all others in vain.
            let hopeless = room::bytes_of(id.len()) > self.room.max_bytes;
            if hopeless || !self.shards.make_room(now, self.when_full, &self.room) {
                return Err(StoreError::full());
            }
        }
    }

    async fn renew(&self, id: &RecordId, token: Token, lease: Lease) -> Result<Fenced, StoreError> {
        let (id, shard) = self.shards.locate(id);
        let mut records = shard.lock();
        let now = self.clock.now();
        Ok(records.renew(id, token, lease, now))
    }

    async fn complete(
        &self,
        id: &RecordId,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
    ) -> Result<Fenced, StoreError> {
        let (id, shard) = self.shards.locate(id);
        let mut records = shard.lock();
        let now = self.clock.now();
        Ok(records.complete(id, token, response, retention, now, &self.room))
    }

    async fn release(&self, id: &RecordId, token: Token) -> Result<Fenced, StoreError> {
        let (id, shard) = self.shards.locate(id);
        let mut records = shard.lock();
        let now = self.clock.now();
        Ok(records.release(id, token, now, &self.room))
    }

    async fn lookup(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let (id, shard) = self.shards.locate(id);
        let records = shard.lock();
        Ok(records.lookup(id, self.clock.now()))
    }

    async fn purge(&self, limit: usize) -> Result<usize, StoreError> {
        let mut purged = 0;
        while purged < limit {
            let batch = self.shards.reclaim_anywhere(self.clock.now(), limit - purged, &self.room);
            if batch == 0 {
                break;
            }
            purged += batch;
            // A million records take a while, and others want to run.
            tokio::task::yield_now().await;
        }
        Ok(purged)
    }
}
