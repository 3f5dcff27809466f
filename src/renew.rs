//! Renews the leases of running handlers: one task for all of them, which ends when there are none.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    catch::catch,
    executions::Renewing,
    shared::Shared,
    store::{Fenced, Lease, RecordId, Token},
};

/// How many renewals are under way at a time; more wait their turn.
const CONCURRENT: usize = 256;

/// A lease is renewed when this part of it is over.
pub(crate) const PART: u32 = 3;

/// Makes sure that the leases of this layer are renewed.
///
/// A task of its own, and not the request's future, since a handler that blocks its thread or is not polled would
/// lose its key otherwise.
pub(crate) async fn ensure(shared: &Arc<Shared>) {
    if let Some(renewing) = shared.executions.start_renewing() {
        tokio::spawn(run(Arc::clone(shared), renewing));
        // A worker of the runtime keeps the task it has just spawned for itself: no other one would start it if the
        // handler blocked the thread now.
        yield_now().await;
    }
}

async fn run(shared: Arc<Shared>, mut renewing: Renewing) {
    let term = shared.config.lease;
    let turns = Arc::new(Semaphore::new(CONCURRENT));
    let mut renewals = JoinSet::new();
    loop {
        let now = Instant::now();
        let (due, next) = shared.executions.take_due(now);
        for (id, token, lease) in due {
            renewals.spawn(renew(Arc::clone(&shared), id, token, lease, Arc::clone(&turns)));
        }
        while renewals.try_join_next().is_some() {}
        if next.is_none() && renewals.is_empty() && shared.executions.live() == 0 {
            drop(renewing);
            // One that entered since would find nobody renewing; take the task up again for it.
            match (shared.executions.live() > 0).then(|| shared.executions.start_renewing()).flatten() {
                Some(again) => renewing = again,
                None => return,
            }
        }
        // A renewal under way may fail, and the next try must not come late.
        let at_latest = now + if renewals.is_empty() { term / PART } else { term / (4 * PART) };
        let not_before = now + term / (4 * PART);
        sleep_until(next.map_or(at_latest, |next| next.clamp(not_before, at_latest))).await;
    }
}

async fn renew(shared: Arc<Shared>, id: RecordId, token: Token, lease: Lease, turns: Arc<Semaphore>) {
    let _turn = turns.acquire().await;
    let sent = Instant::now();
    // One that hangs is given up early enough for another one before the lease ends, and one that panics is tried again.
    let renewal = catch(|| timeout(lease.term / PART, shared.bounded(shared.store.renew(&id, token, lease))));
    let (next, renewed) = match renewal.await {
        Ok(Ok(Ok(Fenced::Applied))) => (Some(sent + lease.term / PART), true),
        Ok(Ok(Ok(Fenced::Lost))) => (None, false),
        Ok(Ok(Err(_)) | Err(_)) | Err(_) => (Some(Instant::now() + lease.term / (4 * PART)), false),
    };
    shared.executions.renew_at(token, next);
    if renewed && !shared.executions.holds(token) {
        // The handler failed meanwhile and ended its lease, which this renewal may have revived.
        let over = Lease { term: Duration::ZERO, ..lease };
        let _ = shared.bounded(shared.store.renew(&id, token, over)).await;
    }
}
