//! The records of one shard: a vector without gaps, a table that finds them, and two indexes by expiry.

use std::time::Duration;

use hashbrown::HashTable;

use super::{
    chunks::Chunks,
    clock::{self, Moment},
    entry::{Entry, Hashed},
    heap::{Due, Heap},
    kept::Response,
    room::{self, Room},
};
use crate::{
    StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Record, Token},
};

/// Holds records, each known by the slot it has in `entries`.
///
/// The table keeps the hash beside each slot, so that growing it moves 9 bytes a record and looks at no record.
///
/// Invariant: every slot is in `table` once, and in one of the two indexes once, with the moment its record expires.
#[derive(Debug, Default)]
pub(super) struct Records {
    entries: Chunks<Entry>,
    table: HashTable<Named>,
    unfinished: Heap,
    completed: Heap,
}

/// A slot in the table.
#[derive(Debug, Clone, Copy)]
struct Named {
    hash: u32,
    slot: u32,
}

impl Named {
    fn table_hash(&self) -> u64 {
        table_hash(self.hash)
    }
}

/// Spreads half a hash over a whole one, since the table takes its lowest and its highest bits.
fn table_hash(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Records {
    /// Claims as [`Store::claim`](crate::Store::claim) says; `None` if a new record is needed and there is no room.
    pub(super) fn claim(&mut self, id: Hashed<'_>, claim: &NewClaim, now: Moment, room: &Room) -> Option<Claim> {
        let lease_until = clock::after(now, claim.lease.term);
        let expires_at = clock::after(lease_until, claim.lease.unsettled);
        match self.find(id) {
            Some(slot) if self.entries[slot].expires_at <= now => drop(self.remove(slot, room)),
            Some(slot) => {
                let entry = &mut self.entries[slot];
                let abandoned = entry.response.is_none() && entry.lease_until <= now;
                if !abandoned || claim.replaces != Some(entry.token) {
                    return Some(Claim::Existing(entry.read(now)));
                }
                entry.token = claim.token;
                entry.fingerprint = claim.fingerprint;
                entry.attempt = entry.attempt.saturating_add(1);
                entry.lease_until = lease_until;
                let attempt = entry.attempt;
                self.postpone(slot, expires_at);
                return Some(Claim::Acquired { attempt });
            }
            None => {}
        }
        if !room.admit(room::bytes_of(id.len())) {
            return None;
        }
        self.insert(Entry::new(id, claim, lease_until, expires_at));
        Some(Claim::Acquired { attempt: 1 })
    }

    pub(super) fn renew(&mut self, id: Hashed<'_>, token: Token, lease: Lease, now: Moment) -> Fenced {
        match self.held(id, token, now) {
            Some(slot) if self.entries[slot].response.is_none() => {
                let lease_until = clock::after(now, lease.term);
                self.entries[slot].lease_until = lease_until;
                self.postpone(slot, clock::after(lease_until, lease.unsettled));
                Fenced::Applied
            }
            _ => Fenced::Lost,
        }
    }

    pub(super) fn complete(
        &mut self,
        id: Hashed<'_>,
        token: Token,
        response: &StoredResponse,
        retention: Duration,
        now: Moment,
        room: &Room,
    ) -> Fenced {
        let Some(slot) = self.held(id, token, now) else { return Fenced::Lost };
        if self.entries[slot].response.is_some() {
            return Fenced::Applied;
        }
        room.add_response(response.as_encoded().len());
        self.unschedule(slot);
        self.entries[slot].response = Some(Response::new(response));
        self.entries[slot].expires_at = clock::after(now, retention);
        self.schedule(slot);
        Fenced::Applied
    }

    pub(super) fn release(&mut self, id: Hashed<'_>, token: Token, now: Moment, room: &Room) -> Fenced {
        match self.held(id, token, now) {
            Some(slot) if self.entries[slot].response.is_none() => {
                drop(self.remove(slot, room));
                Fenced::Applied
            }
            _ => Fenced::Lost,
        }
    }

    pub(super) fn lookup(&self, id: Hashed<'_>, now: Moment) -> Option<Record> {
        self.find(id).map(|slot| &self.entries[slot]).filter(|entry| now < entry.expires_at).map(|it| it.read(now))
    }

    /// Moves at most `limit` expired records to `removed`.
    pub(super) fn reclaim(&mut self, now: Moment, limit: usize, room: &Room, removed: &mut Vec<Entry>) {
        for _ in 0..limit {
            let due = [&self.unfinished, &self.completed].into_iter().find(|index| index.first_at() <= now);
            let Some(due) = due.and_then(Heap::first) else { break };
            removed.push(self.remove(due.slot as usize, room));
        }
    }

    /// Removes the completed record that expires first.
    pub(super) fn evict(&mut self, room: &Room) -> Option<Entry> {
        self.completed.first().map(|due| self.remove(due.slot as usize, room))
    }

    /// Returns when the first record that is not completed expires, or [`NEVER`](clock::NEVER).
    pub(super) fn first_unfinished(&self) -> Moment {
        self.unfinished.first_at()
    }

    /// Returns when the first completed record expires, or [`NEVER`](clock::NEVER).
    pub(super) fn first_completed(&self) -> Moment {
        self.completed.first_at()
    }

    fn find(&self, id: Hashed<'_>) -> Option<usize> {
        let entries = &self.entries;
        let same = |named: &Named| named.hash == id.hash && entries[named.slot as usize].is(id);
        self.table.find(table_hash(id.hash), same).map(|named| named.slot as usize)
    }

    /// Finds a record that is not over and carries the token.
    fn held(&self, id: Hashed<'_>, token: Token, now: Moment) -> Option<usize> {
        self.find(id).filter(|slot| now < self.entries[*slot].expires_at && self.entries[*slot].token == token)
    }

    fn insert(&mut self, entry: Entry) {
        let slot = self.entries.len();
        let name = u32::try_from(slot).expect("the records of a shard are fewer than 2^32, since they fit in memory");
        let named = Named { hash: entry.hash, slot: name };
        self.entries.push(entry);
        self.table.insert_unique(named.table_hash(), named, Named::table_hash);
        self.schedule(slot);
    }

    fn remove(&mut self, slot: usize, room: &Room) -> Entry {
        self.unschedule(slot);
        self.rename(slot, None);
        let last = self.entries.len() - 1;
        if slot != last {
            self.rename(last, Some(slot));
        }
        let entry = self.entries.swap_remove(slot);
        if self.table.capacity() > 32 && self.table.len() < self.table.capacity() / 4 {
            self.table.shrink_to(2 * self.table.len(), Named::table_hash);
        }
        room.give_back(entry.bytes());
        entry
    }

    /// Makes table and index know the record at `slot` by another slot, or the table forget it.
    fn rename(&mut self, slot: usize, to: Option<usize>) {
        let entry = &self.entries[slot];
        let found = self.table.find_entry(table_hash(entry.hash), |named| named.slot as usize == slot);
        let mut found = found.expect("every slot is in the table");
        let Some(to) = to else {
            found.remove();
            return;
        };
        let to = u32::try_from(to).expect("a slot below another one is as small");
        found.get_mut().slot = to;
        let place = entry.place;
        self.index_of(slot).0.rename(place, to);
    }

    fn schedule(&mut self, slot: usize) {
        let at = self.entries[slot].expires_at;
        let name = u32::try_from(slot).expect("a slot was checked when its record was inserted");
        let (index, entries) = self.index_of(slot);
        index.push(Due { at, slot: name }, |slot, place| entries[slot as usize].place = place);
    }

    fn unschedule(&mut self, slot: usize) {
        let place = self.entries[slot].place;
        let (index, entries) = self.index_of(slot);
        index.remove(place, |slot, place| entries[slot as usize].place = place);
    }

    fn postpone(&mut self, slot: usize, expires_at: Moment) {
        self.entries[slot].expires_at = expires_at;
        let place = self.entries[slot].place;
        let (index, entries) = self.index_of(slot);
        index.postpone(place, expires_at, |slot, place| entries[slot as usize].place = place);
    }

    fn index_of(&mut self, slot: usize) -> (&mut Heap, &mut Chunks<Entry>) {
        let completed = self.entries[slot].response.is_some();
        (if completed { &mut self.completed } else { &mut self.unfinished }, &mut self.entries)
    }
}
