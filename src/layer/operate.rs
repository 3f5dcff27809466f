//! What an application does while its layer is at work: it drains, settles and releases.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;

use super::IdempotencyLayer;
use crate::{
    Fingerprint, Store,
    capture::whole,
    settle,
    store::{Claim, Fenced, NewClaim, Record, RecordId, State, StoreError, Token},
};

/// What an application does while the layer is at work.
impl<S: Store> IdempotencyLayer<S> {
    /// Waits until every execution of this layer and its clones has ended and its answer is stored, those whose client
    /// went away included; at most for `deadline`. Returns how many are left.
    ///
    /// Call it after the server has stopped to accept requests and before the runtime ends. What is left then is cut off
    /// with the runtime, and its keys count as abandoned when their leases end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    #[must_use = "what is left is lost when the runtime ends"]
    pub fn drain(&self, deadline: Duration) -> impl Future<Output = usize> + Send + 'static {
        let executions = Arc::clone(&self.shared.executions);
        async move { executions.drain(deadline).await }
    }

    /// Stores an answer for an abandoned key, after its outcome was found out: retries get it from now on.
    ///
    /// # Errors
    ///
    /// Fails if the store does.
    pub async fn settle(&self, id: &RecordId, answer: &Response<Bytes>) -> Result<Settled, StoreError> {
        let stored = whole(&self.shared.config, answer);
        let (previous, fingerprint) = match self.abandoned(id).await? {
            Ok(abandoned) => abandoned,
            Err(otherwise) => return Ok(otherwise),
        };
        // Taken over first: a late holder in another process must not believe that its own answer was stored.
        let shared = &self.shared;
        let claim = NewClaim::new(Token::random(), fingerprint, shared.config.lease()).replacing(previous);
        let settled = match shared.bounded(shared.store.claim(id, &claim)).await {
            Ok(claimed) if is_ours(&claimed, claim.token) => {
                let completion = shared.store.complete(id, claim.token, &stored, shared.config.retention);
                shared.bounded(completion).await.map(Settled::from)
            }
            Ok(Claim::Existing(Record { state: State::Completed(_), .. })) => Ok(Settled::Completed),
            Ok(_) => Ok(Settled::InFlight),
            Err(error) => Err(error),
        };
        if settled.is_err() {
            // So that it can be tried again before the lease ends.
            settle::abandon(shared, id, claim.token).await;
        }
        settled
    }

    /// Frees an abandoned key, after it was found out that nothing had happened: the next retry runs as the first.
    ///
    /// # Errors
    ///
    /// Fails if the store does.
    pub async fn release(&self, id: &RecordId) -> Result<Settled, StoreError> {
        match self.abandoned(id).await? {
            Ok((token, _)) => self.shared.bounded(self.shared.store.release(id, token)).await.map(Settled::from),
            Err(otherwise) => Ok(otherwise),
        }
    }

    /// Returns token and fingerprint of an abandoned record, or what the record is otherwise.
    async fn abandoned(&self, id: &RecordId) -> Result<Result<(Token, Fingerprint), Settled>, StoreError> {
        let looked_up = self.shared.bounded(self.shared.store.lookup(id)).await?;
        let Some(record) = looked_up else { return Ok(Err(Settled::Absent)) };
        Ok(match record.state {
            State::Completed(_) => Err(Settled::Completed),
            State::InFlight { .. } => Err(Settled::InFlight),
            // Its run is alive in this process: only its renewal failed.
            State::Abandoned { .. } if self.shared.executions.holds(record.token) => Err(Settled::InFlight),
            State::Abandoned { .. } => Ok((record.token, record.fingerprint)),
        })
    }
}

/// Tells whether a claim was made, be it by a statement that the store repeated.
fn is_ours(claimed: &Claim, token: Token) -> bool {
    match claimed {
        Claim::Acquired { .. } => true,
        Claim::Existing(record) => record.token == token && !matches!(record.state, State::Completed(_)),
    }
}

/// What became of an attempt to settle or release a key.
#[must_use = "only `Done` means that the record was changed"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The record was abandoned, and now it is settled.
    Done,
    /// There is no record; nothing was changed.
    Absent,
    /// A request is at work, or has just taken the key over; nothing was changed.
    InFlight,
    /// There is an answer already; nothing was changed.
    Completed,
}

impl From<Fenced> for Settled {
    fn from(fenced: Fenced) -> Self {
        match fenced {
            Fenced::Applied => Self::Done,
            Fenced::Lost => Self::InFlight,
        }
    }
}
