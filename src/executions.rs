//! The claims that this process holds: whose lease to renew, whom to wake at the end, what a drain waits for.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime,
    sync::{Notify, OwnedSemaphorePermit, futures::OwnedNotified},
    time::{Instant, timeout},
};

use crate::store::{Lease, RecordId, Token};

const SHARDS: usize = 16;

/// The executions of one layer and its clones.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    shards: [Mutex<Shard>; SHARDS],
    live: AtomicUsize,
    idle: Notify,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Token, Entry, BuildHasherDefault<TokenHasher>>,
    /// The runtimes on which a task renews what is in this shard.
    renewed_on: Vec<runtime::Id>,
}

#[derive(Debug)]
struct Entry {
    id: RecordId,
    lease: Lease,
    runtime: runtime::Id,
    renew_at: Option<Instant>,
    /// Whether the claim is being abandoned, so that it counts as gone for all but a drain.
    ending: bool,
    waiters: Option<Arc<Notify>>,
}

/// An execution whose lease is due for renewal.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) id: RecordId,
    pub(crate) token: Token,
    pub(crate) lease: Lease,
}

impl Executions {
    /// Enters an execution, which a drain waits for. It ends when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, token: Token) -> Execution {
        self.live.fetch_add(1, Ordering::SeqCst);
        Execution { token, executions: Arc::clone(self), holds: false, turn: None }
    }

    /// Waits at most `deadline` until no execution is left, and returns how many are.
    pub(crate) async fn drain(&self, deadline: Duration) -> usize {
        let drained = async {
            loop {
                let idle = self.idle.notified();
                tokio::pin!(idle);
                idle.as_mut().enable();
                if self.live() == 0 {
                    break;
                }
                idle.await;
            }
        };
        let _ = timeout(deadline, drained).await;
        self.live()
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Tells whether the run with this token is of this process and goes on.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.shard(token).entries.get(&token).is_some_and(|entry| !entry.ending)
    }

    /// Resolves when the execution with this token ends or loses its lease; `None` if it is not of this process.
    pub(crate) fn watch(&self, token: Token) -> Option<OwnedNotified> {
        let mut shard = self.shard(token);
        let entry = shard.entries.get_mut(&token)?;
        let waiters = entry.waiters.get_or_insert_with(Arc::default);
        Some(Arc::clone(waiters).notified_owned())
    }

    /// Says that the claim with this token is being abandoned: nothing renews it from here on.
    pub(crate) fn end(&self, token: Token) {
        if let Some(entry) = self.shard(token).entries.get_mut(&token) {
            entry.ending = true;
            entry.renew_at = None;
        }
    }

    /// Says when a lease is to be renewed next; `None` if it is lost, which wakes those who wait for its end.
    pub(crate) fn renew_at(&self, token: Token, next: Option<Instant>) {
        let mut shard = self.shard(token);
        let Some(entry) = shard.entries.get_mut(&token) else { return };
        entry.renew_at = next.filter(|_| !entry.ending);
        if next.is_none()
            && let Some(waiters) = entry.waiters.take()
        {
            waiters.notify_waiters();
        }
    }

    /// Takes the executions of a runtime whose lease is due for renewal, and says when the next one will be. A taken
    /// one is not due again until [`renew_at`](Self::renew_at) is called.
    pub(crate) fn take_due(&self, runtime: runtime::Id, now: Instant) -> (Vec<Due>, Option<Instant>) {
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (token, entry) in shard.entries.iter_mut().filter(|(_, entry)| entry.runtime == runtime) {
                match entry.renew_at {
                    Some(at) if at <= now => {
                        entry.renew_at = None;
                        due.push(Due { id: entry.id.clone(), token: *token, lease: entry.lease });
                    }
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
        }
        (due, next)
    }

    /// Says that a task on this runtime renews leases.
    pub(crate) fn start_renewing(&self, runtime: runtime::Id) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            if !shard.renewed_on.contains(&runtime) {
                shard.renewed_on.push(runtime);
            }
        }
    }

    /// Says that no task on this runtime renews leases any more, whatever there is to renew.
    pub(crate) fn stop_renewing(&self, runtime: runtime::Id) {
        for shard in &self.shards {
            lock(shard).renewed_on.retain(|other| *other != runtime);
        }
    }

    /// Stops as above, unless the runtime has an execution; returns whether it did. What enters later finds that no
    /// task renews it.
    pub(crate) fn stop_renewing_if_idle(&self, runtime: runtime::Id) -> bool {
        for shard in &self.shards {
            let mut shard = lock(shard);
            if shard.entries.values().any(|entry| entry.runtime == runtime) {
                drop(shard);
                self.start_renewing(runtime);
                return false;
            }
            shard.renewed_on.retain(|other| *other != runtime);
        }
        true
    }

    fn shard(&self, token: Token) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(token.as_uuid().as_bytes()[0]) % SHARDS])
    }
}

// A panic cannot leave a shard half changed: what happens under the lock calls no code but that of maps.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands for one execution from just before its claim to the end of its last write.
#[derive(Debug)]
pub(crate) struct Execution {
    token: Token,
    executions: Arc<Executions>,
    /// Whether the claim was acquired, so that there is an entry.
    holds: bool,
    /// The turn of this run, where their number is limited.
    pub(crate) turn: Option<OwnedSemaphorePermit>,
}

impl Execution {
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Says that the claim was acquired, or may have been, and when its lease is to be renewed, if it is. Returns
    /// whether a task on this runtime renews leases.
    pub(crate) fn hold(&mut self, id: RecordId, lease: Lease, runtime: runtime::Id, renew_at: Option<Instant>) -> bool {
        let entry = Entry { id, lease, runtime, renew_at, ending: false, waiters: None };
        self.holds = true;
        let mut shard = self.executions.shard(self.token);
        shard.entries.insert(self.token, entry);
        shard.renewed_on.contains(&runtime)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let ended = self.holds.then(|| self.executions.shard(self.token).entries.remove(&self.token)).flatten();
        if let Some(waiters) = ended.and_then(|entry| entry.waiters) {
            waiters.notify_waiters();
        }
        if self.executions.live.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.executions.idle.notify_waiters();
        }
    }
}

/// Tokens are random already, so that eight of their bytes are the hash.
#[derive(Debug, Default)]
struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk::<8>() {
            self.0 = u64::from_ne_bytes(*last);
        }
    }

    // The length prefix of a byte array carries nothing.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
