//! Ends a claim: completes it or releases it, and does not give up when the store fails.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    StoredResponse,
    executions::Execution,
    shared::Shared,
    store::{Fenced, Lease, RecordId, StoreError, Token},
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How a claim ends.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The response is stored.
    Complete(StoredResponse),
    /// Nothing was executed: the key is free.
    Release,
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
#[expect(clippy::manual_async_fn, reason = "the future of an async function is larger; see `guard`")]
pub(crate) fn end(
    shared: &Arc<Shared>,
    id: &RecordId,
    execution: &mut Option<Execution>,
    ending: Ending,
) -> impl Future<Output = Ended> {
    async move {
        let token = execution.as_ref().expect("a claim is ended once").token();
        let written = write(shared, id, token, &ending).await;
        let execution = execution.take();
        match written {
            Ok(Fenced::Applied) => return Ended::Durable,
            Ok(Fenced::Lost) => return Ended::Lost,
            Err(_) => {}
        }
        match Arc::clone(&shared.backlog).try_acquire_owned() {
            Ok(permit) => {
                let (shared, id) = (Arc::clone(shared), id.clone());
                tokio::spawn(async move {
                    let (_permit, _execution) = (permit, execution);
                    retry(&shared, &id, token, &ending).await
                });
                Ended::Retrying
            }
            // Boxed, since it is rare.
            Err(_) => Box::pin(retry(shared, id, token, &ending)).await,
        }
    }
}

/// Ends the lease at once, so that the claim counts as abandoned. If the store fails, the lease runs out by itself.
pub(crate) async fn abandon(shared: &Shared, id: &RecordId, token: Token) {
    let lease = Lease { term: Duration::ZERO, ..shared.config.lease() };
    let _ = shared.bounded(shared.store.renew(id, token, lease)).await;
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
    })
}

async fn retry(shared: &Shared, id: &RecordId, token: Token, ending: &Ending) -> Ended {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    while start.elapsed() < shared.config.retention {
        sleep(pause).await;
        match write(shared, id, token, ending).await {
            Ok(Fenced::Applied) => return Ended::Durable,
            Ok(Fenced::Lost) => return Ended::Lost,
            Err(_) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
    Ended::Retrying
}
