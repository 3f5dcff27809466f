//! One record as a shard keeps it.

use super::{
    clock::{self, Moment},
    kept::{Response, Text},
    room,
};
use crate::{
    Fingerprint, Scope,
    store::{NewClaim, Record, RecordId, State, Token},
};

/// A record's identity with its hash, which is computed once for shard and table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashed<'a> {
    pub(super) id: &'a RecordId,
    pub(super) hash: u32,
}

impl Hashed<'_> {
    /// The bytes of scope and key together.
    pub(super) fn len(&self) -> usize {
        self.id.scope().as_str().len() + self.id.key().as_str().len()
    }
}

/// One record, in flight, abandoned or completed.
#[derive(Debug)]
pub(super) struct Entry {
    scope: Scope,
    key: Text,
    pub(super) hash: u32,
    pub(super) token: Token,
    pub(super) fingerprint: Fingerprint,
    pub(super) lease_until: Moment,
    pub(super) expires_at: Moment,
    pub(super) response: Option<Response>,
    pub(super) attempt: u32,
    /// Where the slot stands in its index.
    pub(super) place: u32,
}

impl Entry {
    /// Makes a record that is in flight for the first time.
    pub(super) fn new(id: Hashed<'_>, claim: &NewClaim, lease_until: Moment, expires_at: Moment) -> Self {
        Self {
            scope: id.id.scope().clone(),
            key: Text::new(id.id.key().as_str()),
            hash: id.hash,
            token: claim.token,
            fingerprint: claim.fingerprint,
            lease_until,
            expires_at,
            response: None,
            attempt: 1,
            place: 0,
        }
    }

    /// Tells whether the record is the one with this identity.
    pub(super) fn is(&self, id: Hashed<'_>) -> bool {
        self.hash == id.hash && self.key.as_bytes() == id.id.key().as_str().as_bytes() && self.scope == *id.id.scope()
    }

    /// Returns what a caller may know of the record.
    pub(super) fn read(&self, now: Moment) -> Record {
        let state = match &self.response {
            Some(response) => State::Completed(response.read()),
            None if now < self.lease_until => State::InFlight { lease_left: clock::between(now, self.lease_until) },
            None => State::Abandoned { since: clock::between(self.lease_until, now) },
        };
        Record::new(self.token, self.fingerprint, self.attempt, state)
    }

    /// Returns what the record takes, its response included.
    pub(super) fn bytes(&self) -> usize {
        room::bytes_of(self.scope.as_str().len() + self.key.as_bytes().len())
            + self.response.as_ref().map_or(0, Response::len)
    }
}
