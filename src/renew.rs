//! Renews the leases of running handlers: one task a runtime for all of them, which ends when there are none.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    runtime::{self, Handle},
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    executions::{Due, Executions},
    kick::Kicked,
    shared::Shared,
    store::{Fenced, Lease},
};

/// How many renewals begin at a time; more wait their turn. One that takes long gives its turn to others, so that the
/// leases of a part of the store that hangs do not cost the others theirs.
const CONCURRENT: usize = 1024;

/// A lease is renewed when this part of it is over.
pub(crate) const PART: u32 = 3;

/// Starts to renew the leases of this runtime's executions.
///
/// A task of its own, and not the request's future, since a handler that blocks its thread or is not polled would
/// lose its key otherwise.
pub(crate) async fn start(shared: &Arc<Shared>) {
    let runtime = Handle::current().id();
    shared.executions.start_renewing(runtime);
    let kicked = shared.kicker.kick(shared.config.lease / (4 * PART));
    let renewing = Renewing { executions: Arc::clone(&shared.executions), runtime, _kicked: kicked };
    tokio::spawn(run(Arc::clone(shared), renewing));
    // A worker of the runtime keeps the task it has just spawned for itself: no other one would start it if the
    // handler blocked the thread now.
    yield_now().await;
}

/// Stands for the task that renews the leases of a runtime; also when the runtime ends it.
struct Renewing {
    executions: Arc<Executions>,
    runtime: runtime::Id,
    _kicked: Kicked,
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.executions.stop_renewing(self.runtime);
    }
}

async fn run(shared: Arc<Shared>, renewing: Renewing) {
    let term = shared.config.lease;
    let turns = Arc::new(Semaphore::new(CONCURRENT));
    let mut renewals = JoinSet::new();
    loop {
        let now = Instant::now();
        let (due, next) = shared.executions.take_due(renewing.runtime, now);
        for due in due {
            renewals.spawn(renew(Arc::clone(&shared), due, Arc::clone(&turns)));
        }
        while renewals.try_join_next().is_some() {}
        if next.is_none() && renewals.is_empty() && shared.executions.stop_renewing_if_idle(renewing.runtime) {
            return;
        }
        // A renewal under way may fail, and the next try must not come late.
        let at_latest = now + if renewals.is_empty() { term / PART } else { term / (4 * PART) };
        let not_before = now + term / (4 * PART);
        sleep_until(next.map_or(at_latest, |next| next.clamp(not_before, at_latest))).await;
    }
}

async fn renew(shared: Arc<Shared>, due: Due, turns: Arc<Semaphore>) {
    let Due { id, token, lease } = due;
    let turn = turns.acquire().await;
    let sent = Instant::now();
    // One that hangs is given up early enough for another one before the lease ends.
    let renewal = timeout(lease.term / PART, shared.bounded(shared.store.renew(&id, token, lease)));
    let mut renewal = pin!(renewal);
    let outcome = match timeout(lease.term / (4 * PART), &mut renewal).await {
        Ok(outcome) => outcome,
        Err(_) => {
            drop(turn);
            renewal.await
        }
    };
    let next = match outcome {
        Ok(Ok(Fenced::Applied)) => Some(sent + lease.term / PART),
        Ok(Ok(Fenced::Lost)) => None,
        Ok(Err(_)) | Err(_) => Some(Instant::now() + lease.term / (4 * PART)),
    };
    shared.executions.renew_at(token, next);
    if next.is_some() && !shared.executions.holds(token) {
        // The handler failed meanwhile and ended its lease, which this renewal may have revived.
        let over = Lease { term: Duration::ZERO, ..lease };
        let _ = shared.bounded(shared.store.renew(&id, token, over)).await;
    }
}
