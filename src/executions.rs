//! The claims that this process holds: whose lease to renew, whom to wake at the end, what a drain waits for.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::OwnedNotified},
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
    renewing: AtomicBool,
}

type Shard = HashMap<Token, Entry, BuildHasherDefault<TokenHasher>>;

#[derive(Debug)]
struct Entry {
    id: RecordId,
    lease: Lease,
    renew_at: Option<Instant>,
    waiters: Option<Arc<Notify>>,
}

impl Executions {
    /// Enters an execution, without a lease to renew yet. It ends when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, id: RecordId, token: Token, lease: Lease) -> Execution {
        self.live.fetch_add(1, Ordering::SeqCst);
        self.shard(token).insert(token, Entry { id, lease, renew_at: None, waiters: None });
        Execution { token, executions: Arc::clone(self) }
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

    /// Tells whether the execution with this token is of this process and has not ended.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.shard(token).contains_key(&token)
    }

    /// Resolves when the execution with this token ends or loses its lease; `None` if it is not of this process.
    pub(crate) fn watch(&self, token: Token) -> Option<OwnedNotified> {
        let mut shard = self.shard(token);
        let entry = shard.get_mut(&token)?;
        let waiters = entry.waiters.get_or_insert_with(Arc::default);
        Some(Arc::clone(waiters).notified_owned())
    }

    /// Takes the executions whose lease is due for renewal, and says when the next one will be. A taken one is not due
    /// again until [`renew_at`](Self::renew_at) is called.
    pub(crate) fn take_due(&self, now: Instant) -> (Vec<(RecordId, Token, Lease)>, Option<Instant>) {
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        for shard in &self.shards {
            for (token, entry) in lock(shard).iter_mut() {
                match entry.renew_at {
                    Some(at) if at <= now => {
                        entry.renew_at = None;
                        due.push((entry.id.clone(), *token, entry.lease));
                    }
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
        }
        (due, next)
    }

    /// Says when a lease is to be renewed next; `None` if it is lost, which wakes those who wait for its end.
    pub(crate) fn renew_at(&self, token: Token, next: Option<Instant>) {
        if let Some(entry) = self.shard(token).get_mut(&token) {
            entry.renew_at = next;
            if next.is_none()
                && let Some(waiters) = entry.waiters.take()
            {
                waiters.notify_waiters();
            }
        }
    }

    /// Becomes the one task that renews, unless there is one already. Given up when the result is dropped.
    pub(crate) fn start_renewing(self: &Arc<Self>) -> Option<Renewing> {
        let taken = self.renewing.load(Ordering::SeqCst) || self.renewing.swap(true, Ordering::SeqCst);
        (!taken).then(|| Renewing { executions: Arc::clone(self) })
    }

    fn shard(&self, token: Token) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(token.as_uuid().as_bytes()[0]) % SHARDS])
    }
}

// A panic cannot leave a shard half changed: each critical section is a single map operation.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands for one execution from just before its claim to the end of its last write.
#[derive(Debug)]
pub(crate) struct Execution {
    token: Token,
    executions: Arc<Executions>,
}

impl Execution {
    pub(crate) fn token(&self) -> Token {
        self.token
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let ended = self.executions.shard(self.token).remove(&self.token);
        if let Some(waiters) = ended.and_then(|entry| entry.waiters) {
            waiters.notify_waiters();
        }
        if self.executions.live.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.executions.idle.notify_waiters();
        }
    }
}

/// Stands for the one task that renews leases.
#[derive(Debug)]
pub(crate) struct Renewing {
    executions: Arc<Executions>,
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.executions.renewing.store(false, Ordering::SeqCst);
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
