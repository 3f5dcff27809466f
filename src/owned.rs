//! A claim that is ours: how a run ends, and what the client gets.

use std::{panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use http::Response;
use http_body::Body as HttpBody;

use crate::{
    Body, Fingerprint, NothingExecuted, Rejection, StoredResponse,
    capture::{Captured, capture, whole},
    catch::catch,
    config::{Abandoned, Ask, Verdict},
    decide::{Decision, decide},
    executions::Execution,
    replay::{REPLAYED, make_replay},
    settle::{self, Ended, Ending},
    shared::Shared,
    store::{Claim, RecordId},
};

/// The response of a guarded service.
pub(crate) type Answer<B> = Response<Body<B>>;

/// A claim that is ours, until one of the methods that end it.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: RecordId,
    pub(crate) execution: Execution,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) is_head: bool,
}

impl Owned {
    /// Asks what became of the runs before; keeps the claim if the handler is to run.
    pub(crate) async fn ask<R>(self, ask: Ask, attempt: u32) -> Result<Self, Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        match catch(ask.verdict(Abandoned { id: self.id.clone(), attempt })).await {
            Ok(Verdict::Rerun) => Ok(self),
            Ok(Verdict::Refuse) => {
                let shared = Arc::clone(&self.shared);
                self.abandon().await;
                Err(refuse(&shared, &Rejection::OutcomeUnknown))
            }
            Ok(Verdict::Answer(mut response)) => {
                response.headers_mut().remove(REPLAYED);
                let stored = whole(&self.shared.config, &response);
                let lost = self.complete(stored).await;
                Err(lost.unwrap_or_else(|| response.map(|data| Body::buffered(data, None))))
            }
            Err(panic) => {
                self.abandon().await;
                resume_unwind(panic);
            }
        }
    }

    /// Ends the claim by the handler's response: stores it, or releases the key.
    pub(crate) async fn finish<R>(self, response: Response<R>) -> Answer<R>
    where
        R: HttpBody<Data = Bytes>,
    {
        let (mut head, body) = response.into_parts();
        head.headers.remove(REPLAYED);
        if !self.shared.config.is_stored(&head) {
            settle::end(&self.shared, &self.id, self.execution, Ending::Release).await;
            return Response::from_parts(head, Body::passed(body));
        }
        let (stored, body) = match capture(&self.shared.config, &head, body).await {
            Captured::Whole(stored, body) => (stored, body),
            Captured::Unbounded(body) => (StoredResponse::not_replayable(head.status), body),
            Captured::Broken(body) => {
                self.abandon().await;
                return Response::from_parts(head, body);
            }
            Captured::Panicked(panic) => {
                self.abandon().await;
                resume_unwind(panic);
            }
        };
        match self.complete(stored).await {
            None => Response::from_parts(head, body),
            Some(answer) => answer,
        }
    }

    /// Ends the lease at once, so that the claim counts as abandoned.
    pub(crate) async fn abandon(self) {
        settle::abandon(&self.shared, &self.id, self.execution).await;
    }

    /// Makes an answer durable. If the record belongs to another run by now, returns the answer of that: one key has
    /// one answer.
    async fn complete<R>(self, stored: StoredResponse) -> Option<Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        let own = self.execution.token();
        match settle::end(&self.shared, &self.id, self.execution, Ending::Complete(stored)).await {
            Ended::Durable | Ended::Retrying => return None,
            Ended::Lost => {}
        }
        let record = self.shared.bounded(self.shared.store.lookup(&self.id)).await.ok()??;
        match decide(Claim::Existing(record), own, self.fingerprint, &self.shared.config) {
            Decision::Replay(stored) => Some(replay(&stored, self.is_head)),
            Decision::Refuse(Rejection::Mismatch) | Decision::Run { .. } => None,
            Decision::Refuse(rejection) => Some(refuse(&self.shared, &rejection)),
            Decision::Wait { .. } | Decision::TakeOver { .. } => {
                let retry_after = self.shared.config.retry_after;
                Some(refuse(&self.shared, &Rejection::InFlight { retry_after }))
            }
        }
    }
}

/// Makes the answer from a record.
pub(crate) fn replay<R: HttpBody<Data = Bytes>>(stored: &StoredResponse, is_head: bool) -> Answer<R> {
    let (response, trailers) = stored.decode();
    let (mut head, data) = response.into_parts();
    make_replay(&mut head, data.len(), is_head);
    Response::from_parts(head, Body::buffered(data, trailers))
}

/// Makes the answer for a rejection. It is not the answer of the key for another layer of this kind around this one.
pub(crate) fn refuse<R: HttpBody<Data = Bytes>>(shared: &Shared, rejection: &Rejection) -> Answer<R> {
    let mut answer = shared.config.answers.render(rejection);
    answer.extensions_mut().insert(NothingExecuted);
    answer.map(|data| Body::buffered(data, None))
}
