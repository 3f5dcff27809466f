//! All shards of a store: which one has a record, and where there is something to remove.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{
    WhenFull,
    clock::{Moment, NEVER},
    entry::Hashed,
    room::Room,
    shard::Shard,
};
use crate::store::RecordId;

/// Expired records that a claim removes from its own shard, and again from one other shard.
pub(super) const PER_CLAIM: usize = 8;

/// Expired records that are removed under one lock while a full store makes room, or a purge runs.
const PER_LOCK: usize = 64;

/// Spreads records over shards by a hash that clients cannot foresee.
#[derive(Debug)]
pub(super) struct Shards {
    all: Box<[Shard]>,
    hasher: RandomState,
    turn: AtomicUsize,
}

impl Shards {
    /// Makes a shard per 65,536 records, and 64 to 4,096 of them: a power of two. The ends of so few fit into a
    /// processor's cache, and a table of so many entries grows within a millisecond.
    pub(super) fn new(max_records: usize) -> Self {
        let count = (max_records / 65_536).clamp(64, 4096).next_power_of_two();
        let all = (0..count).map(|_| Shard::new()).collect();
        Self { all, hasher: RandomState::new(), turn: AtomicUsize::new(0) }
    }

    pub(super) fn locate<'a>(&self, id: &'a RecordId) -> (Hashed<'a>, &Shard) {
        let hash = self.hasher.hash_one(id);
        // One half of the hash for the shard, the other for the table inside.
        (Hashed { id, hash: hash as u32 }, self.at((hash >> 32) as usize))
    }

    /// Removes a few expired records from the shard whose turn it is: one that nobody may be using.
    pub(super) fn reclaim_in_turn(&self, now: Moment, room: &Room) {
        let shard = self.at(self.turn.fetch_add(1, Relaxed));
        if shard.first_expiry() <= now {
            reclaim(shard, now, PER_CLAIM, room);
        }
    }

    /// Removes some expired records, at most `limit`, from the first shard that has any; 0 if none has.
    pub(super) fn reclaim_anywhere(&self, now: Moment, limit: usize, room: &Room) -> usize {
        let due = self.all.iter().filter(|shard| shard.first_expiry() <= now);
        // A shard may be reclaimed by another call meanwhile; then the next one is due.
        due.map(|shard| reclaim(shard, now, limit.min(PER_LOCK), room)).find(|removed| *removed > 0).unwrap_or(0)
    }

    /// Removes what a full store may do without; `false` if there is nothing, `true` if a claim is worth another try.
    pub(super) fn make_room(&self, now: Moment, when_full: WhenFull, room: &Room) -> bool {
        let mut oldest = (NEVER, None);
        for shard in &self.all {
            if shard.first_expiry() <= now {
                reclaim(shard, now, PER_LOCK, room);
                return true;
            }
            if shard.first_completed() < oldest.0 {
                oldest = (shard.first_completed(), Some(shard));
            }
        }
        let (WhenFull::EvictOldestCompleted, (first, Some(shard))) = (when_full, oldest) else { return false };
        let mut records = shard.lock();
        // Another claim may have been quicker; then the next try finds what is the oldest now.
        let evicted = if records.first_completed() == first { records.evict(room) } else { None };
        drop(records);
        drop(evicted);
        true
    }

    fn at(&self, number: usize) -> &Shard {
        &self.all[number & (self.all.len() - 1)]
    }
}

fn reclaim(shard: &Shard, now: Moment, limit: usize, room: &Room) -> usize {
    let mut removed = Vec::new();
    shard.lock().reclaim(now, limit, room, &mut removed);
    // The responses are freed here, after the lock.
    removed.len()
}
