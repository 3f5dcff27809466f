//! A claim that is ours: how a run ends, and what the client gets.

use std::{convert::Infallible, future::Future, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::Body as HttpBody;

use crate::{
    Body, CutShort, Fingerprint, NothingExecuted, Rejection, StoredResponse,
    capture::{Captured, capture, whole},
    catch::{Panic, catch},
    config::{Abandoned, Ask, Verdict},
    decide::{Decision, decide},
    executions::Execution,
    replay::{REPLAYED, frame, unmark},
    settle::{self, Ended, Ending},
    shared::Shared,
    store::{Claim, RecordId, Token},
};

/// The response of a guarded service.
pub(crate) type Answer<B> = Response<Body<B>>;

/// A claim that is ours, until one of the methods that end it was called.
#[derive(Debug)]
pub(crate) struct Owned<'a> {
    shared: &'a Arc<Shared>,
    id: &'a RecordId,
    pub(crate) token: Token,
    execution: Option<Execution>,
    attempt: u32,
    fingerprint: Fingerprint,
    is_head: bool,
}

impl<'a> Owned<'a> {
    pub(crate) fn new(
        shared: &'a Arc<Shared>,
        id: &'a RecordId,
        execution: Execution,
        attempt: u32,
        fingerprint: Fingerprint,
        is_head: bool,
    ) -> Self {
        Self { shared, id, token: execution.token(), execution: Some(execution), attempt, fingerprint, is_head }
    }

    /// Asks what became of the runs before. Returns an answer, or `None` if the handler is to run.
    pub(crate) async fn ask<R>(&mut self, ask: Ask) -> Option<Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        match catch(|| ask.verdict(Abandoned { id: self.id.clone(), attempt: self.attempt })).await {
            Ok(Verdict::Rerun) => None,
            Ok(Verdict::Refuse) => {
                self.abandon().await;
                Some(refuse(self.shared, &Rejection::OutcomeUnknown, self.is_head))
            }
            Ok(Verdict::Answer(mut response)) => {
                unmark(response.headers_mut());
                let stored = whole(&self.shared.config, &response);
                let (mut head, data) = response.into_parts();
                let data = frame(&mut head, data, self.is_head);
                let ending = Ending::Complete(stored);
                let superseded = match settle::end(self.shared, self.id, &mut self.execution, ending).await {
                    Ended::Lost => self.superseding().await,
                    Ended::Durable | Ended::Retrying => None,
                };
                Some(superseded.unwrap_or_else(|| Response::from_parts(head, Body::buffered(data, None))))
            }
            Err(panic) => match self.fail(panic).await {},
        }
    }

    /// Ends the claim by the handler's response: stores it, or frees the key for a retry.
    // Not an async function, whose future would be larger; see `guard`.
    pub(crate) fn finish<R>(&mut self, response: Response<R>) -> impl Future<Output = Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        let (mut head, body) = response.into_parts();
        async move {
            unmark(&mut head.headers);
            if head.extensions.get::<CutShort>().is_some() {
                self.abandon().await;
                return Response::from_parts(head, Body::unmarked(body));
            }
            if !self.shared.config.is_stored(&head) {
                self.give_up().await;
                return Response::from_parts(head, Body::unmarked(body));
            }
            let (stored, body) = match capture(&self.shared.config, &head, body).await {
                Captured::Whole(stored, data, trailers) => {
                    (Some(stored), Body::buffered(frame(&mut head, data, self.is_head), trailers))
                }
                Captured::Unbounded(body) => (Some(StoredResponse::not_replayable(head.status)), body),
                Captured::Broken(body) => (None, body),
            };
            let Some(stored) = stored else {
                self.abandon().await;
                return Response::from_parts(head, body);
            };
            let ending = Ending::Complete(stored);
            if settle::end(self.shared, self.id, &mut self.execution, ending).await == Ended::Lost
                && let Some(answer) = Box::pin(self.superseding()).await
            {
                return answer;
            }
            Response::from_parts(head, body)
        }
    }

    /// Takes one of the turns for runs; `false` if all are taken.
    pub(crate) fn take_turn(&mut self) -> bool {
        self.execution.as_mut().is_some_and(|execution| self.shared.take_turn(execution))
    }

    /// Ends a claim under which nothing was executed.
    pub(crate) async fn give_up(&mut self) {
        // This run did nothing, but an earlier one may have: the next one has to know.
        let ending = if self.attempt > 1 { Ending::Abandon } else { Ending::Release };
        settle::end(self.shared, self.id, &mut self.execution, ending).await;
    }

    /// Ends the lease at once, so that the claim counts as abandoned.
    pub(crate) async fn abandon(&mut self) {
        settle::abandon(self.shared, self.id, self.token).await;
        self.execution = None;
    }

    /// Ends the claim of a run that panicked, and lets the panic go on.
    pub(crate) async fn fail(&mut self, panic: Panic) -> Infallible {
        self.abandon().await;
        resume_unwind(panic);
    }

    /// Returns the answer of the run that took the record over, if there is one: one key has one answer.
    async fn superseding<R>(&self) -> Option<Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        let record = self.shared.bounded(self.shared.store.lookup(self.id)).await.ok()??;
        match decide(Claim::Existing(record), self.token, self.fingerprint, &self.shared.config) {
            Decision::Replay(stored) => Some(replay(&stored, self.is_head)),
            Decision::Refuse(Rejection::Mismatch) | Decision::Run { .. } => None,
            Decision::Refuse(rejection) => Some(refuse(self.shared, &rejection, self.is_head)),
            Decision::Wait { .. } | Decision::TakeOver { .. } => {
                let retry_after = self.shared.config.retry_after;
                Some(refuse(self.shared, &Rejection::InFlight { retry_after }, self.is_head))
            }
        }
    }
}

/// Makes the answer from a record.
pub(crate) fn replay<R: HttpBody<Data = Bytes>>(stored: &StoredResponse, is_head: bool) -> Answer<R> {
    let (response, trailers) = stored.decode();
    let (mut head, data) = response.into_parts();
    let data = frame(&mut head, data, is_head);
    head.headers.insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    Response::from_parts(head, Body::buffered(data, trailers.map(Box::new)))
}

/// Makes the answer for a rejection. It is not the answer of the key for another layer of this kind around this one.
pub(crate) fn refuse<R: HttpBody<Data = Bytes>>(shared: &Shared, rejection: &Rejection, is_head: bool) -> Answer<R> {
    let mut answer = shared.config.answers.render(rejection);
    answer.extensions_mut().insert(NothingExecuted);
    if is_head {
        // The length of what is not sent. A server of HTTP/2 would send the body, and break the stream.
        let length = std::mem::take(answer.body_mut()).len();
        answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    answer.map(|data| Body::buffered(data, None))
}
