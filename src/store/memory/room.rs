//! How much a memory store may hold, and how much it holds.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a record takes beside its scope, key and response, in bytes: up to 280 as measured, and what the allocator adds.
pub(super) const RECORD_OVERHEAD: usize = 320;

/// Counts records and bytes, and admits new records up to a limit.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) max_records: usize,
    pub(super) max_bytes: usize,
    records: AtomicUsize,
    bytes: AtomicUsize,
}

impl Room {
    pub(super) fn new(max_records: usize, max_bytes: usize) -> Self {
        Self { max_records, max_bytes, records: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    pub(super) fn records(&self) -> usize {
        self.records.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Takes room for one more record of `bytes` bytes, if both fit.
    pub(super) fn admit(&self, bytes: usize) -> bool {
        if !add_up_to(&self.records, 1, self.max_records) {
            return false;
        }
        let fits = add_up_to(&self.bytes, bytes, self.max_bytes);
        if !fits {
            self.records.fetch_sub(1, Relaxed);
        }
        fits
    }

    /// Takes room for a response. It is never refused: the answer of a handler that ran must not get lost.
    pub(super) fn add_response(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Gives back the room of one record of `bytes` bytes, its response included.
    pub(super) fn give_back(&self, bytes: usize) {
        self.records.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Returns what a record without a response takes, in bytes, if its scope and key have so many.
pub(super) fn bytes_of(scope_and_key: usize) -> usize {
    RECORD_OVERHEAD + scope_and_key
}

fn add_up_to(counter: &AtomicUsize, amount: usize, max: usize) -> bool {
    counter.fetch_update(Relaxed, Relaxed, |now| now.checked_add(amount).filter(|sum| *sum <= max)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_admitted_while_both_limits_allow_it() {
        let room = Room::new(2, 100);
        assert!(room.admit(60));
        assert!(!room.admit(41));
        assert!(room.admit(40));
        assert!(!room.admit(0));
        assert_eq!((room.records(), room.bytes()), (2, 100));
    }

    #[test]
    fn a_response_is_counted_beyond_the_limit() {
        let room = Room::new(2, 100);
        assert!(room.admit(60));
        room.add_response(1000);
        assert!(!room.admit(1));
        room.give_back(1060);
        assert_eq!((room.records(), room.bytes()), (0, 0));
    }
}
