//! Removes records whose time is over: as one call, or in the background.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Store,
    store::{StoreError, Token},
};

/// Removes expired records from a store, in batches, so that the table stays small and no statement takes long.
///
/// An expired record is absent whether or not it was purged: a purge frees space and decides nothing. An in-flight record
/// is never removed. Any number of instances may purge one store at the same time.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// use std::time::Duration;
/// use tower_idempotency::{MemoryStore, Purge};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_idempotency::store::StoreError> {
/// let store = MemoryStore::new();
/// let purge = Purge::new(store).every(Duration::from_secs(300));
///
/// // Once, until nothing is due:
/// let removed = purge.run().await?;
/// # assert_eq!(removed, 0);
///
/// // Or in the background, at night:
/// let background = purge.between(Duration::from_secs(2 * 3600), Duration::from_secs(5 * 3600)).spawn();
/// // … and at shutdown:
/// background.stop().await;
/// # Ok(())
/// # }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Purge {
    store: Arc<dyn Store>,
    batch: usize,
    every: Duration,
    window: Option<(Duration, Duration)>,
}

/// How many times as long as a batch took the next one waits, so that the store works for others most of the time.
const REST: u32 = 2;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Purge {
    /// Purges this store, with the default configuration.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        Self { store: Arc::new(store), batch: 1000, every: Duration::from_secs(60), window: None }
    }

    /// Sets how many records a batch removes at most. Default: 1,000.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0.
    #[must_use]
    #[track_caller]
    pub fn batch(mut self, records: usize) -> Self {
        assert!(records > 0, "a batch needs at least one record");
        self.batch = records;
        self
    }

    /// Sets how long the background task waits after nothing was due, give or take a quarter, so that instances that
    /// started together spread. Default: 60 s.
    ///
    /// # Panics
    ///
    /// Panics if the time is below 1 ms.
    #[must_use]
    #[track_caller]
    pub fn every(mut self, pause: Duration) -> Self {
        assert!(pause >= Duration::from_millis(1), "a purge must pause for at least 1 ms, not {pause:?}");
        self.every = pause;
        self
    }

    /// Lets the background task work only at a time of day, given as time since midnight UTC; an end before the start is on
    /// the next day. Default: at any time. [`run`](Self::run) does not look at it.
    ///
    /// # Panics
    ///
    /// Panics if one of them is a day or longer, or if both are equal.
    #[must_use]
    #[track_caller]
    pub fn between(mut self, start: Duration, end: Duration) -> Self {
        assert!(start < DAY && end < DAY && start != end, "a window from {start:?} to {end:?} is not within a day");
        self.window = Some((start, end));
        self
    }

    /// Purges until nothing is due, and returns how many records were removed.
    ///
    /// # Errors
    ///
    /// Fails if the store does; what was removed before stays removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the purge after the batch under way.
    pub async fn run(&self) -> Result<usize, StoreError> {
        let mut removed = 0;
        loop {
            let (more, took) = self.step().await?;
            removed += more;
            if more < self.batch {
                return Ok(removed);
            }
            sleep(took * REST).await;
        }
    }

    /// Purges in the background, on the current Tokio runtime, until the handle is stopped or dropped.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    #[must_use = "dropping the handle stops the purge"]
    pub fn spawn(self) -> PurgeHandle {
        let status = Arc::<Mutex<PurgeStatus>>::default();
        let (stop, stopped) = watch::channel(());
        let task = tokio::spawn(self.go_on(Arc::clone(&status), stopped));
        PurgeHandle { status, stop: Some(stop), task: Some(task) }
    }

    async fn step(&self) -> Result<(usize, Duration), StoreError> {
        let start = Instant::now();
        let removed = self.store.purge(self.batch).await?;
        Ok((removed, start.elapsed()))
    }

    async fn go_on(self, status: Arc<Mutex<PurgeStatus>>, mut stopped: watch::Receiver<()>) {
        loop {
            let pause = if self.may_work(SystemTime::now()) {
                match self.step().await {
                    Ok((removed, took)) => {
                        let mut status = lock(&status);
                        status.removed += removed as u64;
                        status.last_error = None;
                        if removed < self.batch { spread(self.every) } else { took * REST }
                    }
                    Err(error) => {
                        lock(&status).last_error = Some(Arc::new(error));
                        spread(self.every)
                    }
                }
            } else {
                spread(self.every)
            };
            if timeout(pause, stopped.changed()).await.is_ok() {
                return;
            }
        }
    }

    fn may_work(&self, now: SystemTime) -> bool {
        let Some((start, end)) = self.window else { return true };
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = Duration::from_secs(since_1970.as_secs() % DAY.as_secs());
        if start < end { (start..end).contains(&time) } else { time >= start || time < end }
    }
}

/// Three to five quarters of a pause.
fn spread(pause: Duration) -> Duration {
    let random = u32::from(Token::random().as_uuid().as_bytes()[0]);
    pause.saturating_mul(384 + random) / 512
}

/// A purge in the background; dropped, it stops after the batch under way.
#[must_use = "dropping the handle stops the purge"]
pub struct PurgeHandle {
    status: Arc<Mutex<PurgeStatus>>,
    stop: Option<watch::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl PurgeHandle {
    /// Returns what the purge has done so far.
    #[must_use]
    pub fn status(&self) -> PurgeStatus {
        lock(&self.status).clone()
    }

    /// Stops the purge and waits for the batch under way. Returns what it has done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the purge all the same.
    pub async fn stop(mut self) -> PurgeStatus {
        self.stop = None;
        if let Some(task) = self.task.take() {
            // It fails only if the runtime ended it, or a store panicked.
            let _ = task.await;
        }
        self.status()
    }
}

impl fmt::Debug for PurgeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PurgeHandle").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// What a purge in the background has done.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PurgeStatus {
    /// How many records it removed.
    pub removed: u64,
    /// Why its last batch failed, if it did. It goes on after a pause.
    pub last_error: Option<Arc<StoreError>>,
}

// A panic cannot leave it half changed.
fn lock(status: &Mutex<PurgeStatus>) -> MutexGuard<'_, PurgeStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::MemoryStore;

    fn at(hours: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 20_000 + Duration::from_secs(hours * 3600)
    }

    #[test]
    fn a_window_is_a_time_of_day_in_utc_and_may_pass_midnight() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let works = |purge: &Purge| (0..24).filter(|hour| purge.may_work(at(*hour))).collect::<Vec<_>>();
        let purge = Purge::new(MemoryStore::new());
        assert_eq!(works(&purge).len(), 24);
        assert_eq!(works(&purge.clone().between(hours(2), hours(5))), [2, 3, 4]);
        assert_eq!(works(&purge.between(hours(22), hours(2))), [0, 1, 22, 23]);
    }
}
