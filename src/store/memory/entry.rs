//! One record as a shard keeps it.

use super::{
    clock::{self, Moment},
    room,
};
use crate::{
    Fingerprint, StoredResponse,
    store::{Record, RecordId, State, Token},
};

/// A record's identity with its hash, which is computed once for shard and table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashed<'a> {
    pub(super) id: &'a RecordId,
    pub(super) hash: u32,
}

/// One record, in flight, abandoned or completed.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: RecordId,
    pub(super) hash: u32,
    pub(super) token: Token,
    pub(super) fingerprint: Fingerprint,
    pub(super) lease_until: Moment,
    pub(super) expires_at: Moment,
    pub(super) response: Option<StoredResponse>,
    pub(super) attempt: u32,
    /// Where the slot stands in its index.
    pub(super) place: u32,
}

impl Entry {
    /// Returns what a caller may know of the record.
    pub(super) fn read(&self, now: Moment) -> Record {
        let state = match &self.response {
            Some(response) => State::Completed(response.clone()),
            None if now < self.lease_until => State::InFlight { lease_left: clock::between(now, self.lease_until) },
            None => State::Abandoned { since: clock::between(self.lease_until, now) },
        };
        Record::new(self.token, self.fingerprint, self.attempt, state)
    }

    /// Returns what the record takes, its response included.
    pub(super) fn bytes(&self) -> usize {
        room::bytes_of(&self.id) + self.response.as_ref().map_or(0, |response| response.as_encoded().len())
    }
}
