//! Ends a claim: completes it, releases it or gives it up, and does not lose heart when the store fails.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{
    StoredResponse,
    executions::Execution,
    shared::Shared,
    store::{Fenced, Lease, RecordId, StoreError, Token},
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How many times the store's time limit a claim that failed is looked for again.
const LATE_CLAIMS: u32 = 3;

/// How a claim ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The response is stored.
    Complete(StoredResponse),
    /// Nothing was executed: the key is free.
    Release,
    /// Nothing was executed by this claim, but an earlier one may have had its effect.
    Abandon,
}

impl Ending {
    /// Keeps of an answer only that it was given.
    fn reduced(self) -> Self {
        match self {
            Self::Complete(response) => Self::Complete(StoredResponse::not_replayable(response.status())),
            Self::Release | Self::Abandon => self,
        }
    }
}

/// What became of an ending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It is in the store.
    Durable,
    /// The record is not ours any more; the store is unchanged.
    Lost,
    /// The store failed; the ending is retried in the background, and the lease is renewed meanwhile.
    Retrying,
}

/// Ends a claim and its execution. If the store fails, the write is retried in the background for as long as a record
/// is kept, and the execution goes on there.
///
/// At most [`BACKLOG`](crate::shared::BACKLOG) answers wait in full. Of more, and of one that the store refuses for good,
/// only the fact is kept that it was given.
#[expect(clippy::manual_async_fn, reason = "the future of an async function is larger; see `guard`")]
pub(crate) fn end(
    shared: &Arc<Shared>,
    id: &RecordId,
    execution: &mut Option<Execution>,
    ending: Ending,
) -> impl Future<Output = Ended> {
    async move {
        let token = execution.as_ref().expect("a claim is ended once").token();
        if matches!(ending, Ending::Abandon) {
            shared.executions.end(token);
        }
        let written = write(shared, id, token, &ending).await;
        let mut execution = execution.take();
        let refused = match written {
            Ok(Fenced::Applied) => return Ended::Durable,
            Ok(Fenced::Lost) => return Ended::Lost,
            Err(error) => error.is_rejected(),
        };
        if let Some(execution) = &mut execution {
            // The run is over, and another one may have its turn.
            execution.turn = None;
        }
        let permit = Arc::clone(&shared.backlog).try_acquire_owned().ok();
        let ending = if refused || permit.is_none() { ending.reduced() } else { ending };
        let (shared, id) = (Arc::clone(shared), id.clone());
        tokio::spawn(async move {
            let (_permit, _execution) = (permit, execution);
            sleep(FIRST_PAUSE).await;
            retry(&shared, &id, token, ending, shared.config.retention).await;
        });
        Ended::Retrying
    }
}

/// Frees in the background what a failed claim may have written all the same: it would block the key for the rest of
/// its lease, and longer where an abandoned key has to be settled. A takeover is abandoned again.
pub(crate) fn give_back(shared: &Arc<Shared>, id: &RecordId, mut execution: Execution, is_takeover: bool) {
    // Beyond the limit nothing is given back, and the leases run out.
    let Ok(permit) = Arc::clone(&shared.give_backs).try_acquire_owned() else { return };
    let (shared, id) = (Arc::clone(shared), id.clone());
    let lease = shared.config.lease();
    // Others in this process see it in flight meanwhile, and not as a run of unknown outcome.
    execution.hold(id.clone(), lease, Handle::current().id(), None);
    tokio::spawn(async move {
        let _permit = permit;
        let token = execution.token();
        let ending = || if is_takeover { Ending::Abandon } else { Ending::Release };
        let longest = lease.term.max(shared.config.settled_by_somebody());
        if retry(&shared, &id, token, ending(), longest).await != Some(Fenced::Lost) {
            return;
        }
        // There is no such claim, or not yet: the store may carry it out later than it was waited for.
        drop(execution);
        for _ in 0..LATE_CLAIMS {
            sleep(shared.config.store_timeout).await;
            if retry(&shared, &id, token, ending(), Duration::ZERO).await == Some(Fenced::Applied) {
                return;
            }
        }
    });
}

/// Ends the lease at once, so that the claim counts as abandoned. If the store fails, the lease runs out by itself.
pub(crate) async fn abandon(shared: &Shared, id: &RecordId, token: Token) {
    shared.executions.end(token);
    let _ = write(shared, id, token, &Ending::Abandon).await;
}

fn write<'a>(
    shared: &'a Shared,
    id: &'a RecordId,
    token: Token,
    ending: &'a Ending,
) -> impl Future<Output = Result<Fenced, StoreError>> + 'a {
    shared.bounded(match ending {
        Ending::Complete(response) => shared.store.complete(id, token, response, shared.config.retention),
        Ending::Release => shared.store.release(id, token),
        Ending::Abandon => shared.store.renew(id, token, Lease { term: Duration::ZERO, ..shared.config.lease() }),
    })
}

/// Writes an ending until the store takes it, for so long at most. Returns what became of it, if the store said so.
async fn retry(shared: &Shared, id: &RecordId, token: Token, mut ending: Ending, longest: Duration) -> Option<Fenced> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match write(shared, id, token, &ending).await {
            Ok(fenced) => return Some(fenced),
            Err(error) if error.is_rejected() => ending = ending.reduced(),
            Err(_) => {}
        }
        if start.elapsed() >= longest {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
