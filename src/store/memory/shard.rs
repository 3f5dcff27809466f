//! A shard: records behind a lock, and beside the lock the moment the first of them expires.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    clock::{Moment, NEVER},
    records::Records,
};

/// Holds a part of the records, so that strangers do not wait for each other.
///
/// The first expiries are written whenever the lock is given back: what is due is found without taking locks.
// Aligned, so that no two locks share a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard {
    records: Mutex<Records>,
    first_unfinished: AtomicU64,
    first_completed: AtomicU64,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            records: Mutex::default(),
            first_unfinished: AtomicU64::new(NEVER),
            first_completed: AtomicU64::new(NEVER),
        }
    }

    /// Takes the lock. A panic under it is a fault of ours that leaves other records right, so poison is ignored.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { shard: self, records: self.records.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Returns when the first record expires, or [`NEVER`].
    pub(super) fn first_expiry(&self) -> Moment {
        self.first_unfinished.load(Relaxed).min(self.first_completed())
    }

    /// Returns when the first completed record expires, or [`NEVER`].
    pub(super) fn first_completed(&self) -> Moment {
        self.first_completed.load(Relaxed)
    }
}

/// The records of a shard while its lock is held.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    shard: &'a Shard,
    records: MutexGuard<'a, Records>,
}

impl Deref for Locked<'_> {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Records {
        &mut self.records
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.shard.first_unfinished.store(self.records.first_unfinished(), Relaxed);
        self.shard.first_completed.store(self.records.first_completed(), Relaxed);
    }
}
