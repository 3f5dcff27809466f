//! A claim that is ours: how a run ends, and what the client gets.

use std::{
    convert::Infallible,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use bytes::Bytes;
use http::{Extensions, HeaderValue, Response, header, response};
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
    store::{Claim, Committed, Record, RecordId, State, StoreError, StoreTransaction, Token},
};

/// The response of a guarded service.
pub(crate) type Answer<B> = Response<Body<B>>;

/// What became of the handler's transaction.
enum Commit<R: HttpBody> {
    /// It is committed, and the completion with it: the handler's answer goes out.
    Done,
    /// There was none, or it is rolled back: this completion is still to be written.
    Nothing(StoredResponse),
    /// It is not known to be committed: this answer goes out instead.
    Refused(Answer<R>),
}

/// A claim that is ours, until one of the methods that end it was called.
#[derive(Debug)]
pub(crate) struct Owned<'a> {
    shared: &'a Arc<Shared>,
    id: &'a RecordId,
    pub(crate) token: Token,
    execution: Option<Execution>,
    /// What the handler wrote, until it is committed or rolled back.
    // Boxed twice, to be one word in the future of a layer without transactions; see `guard`.
    transaction: Option<Box<Box<dyn StoreTransaction>>>,
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
        let token = execution.token();
        Self { shared, id, token, execution: Some(execution), transaction: None, attempt, fingerprint, is_head }
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
            let stored = match self.transaction {
                // Boxed, since a layer without transactions does not need the room.
                Some(_) => match Box::pin(self.commit(&head, stored)).await {
                    Commit::Done => return Response::from_parts(head, body),
                    Commit::Refused(answer) => return answer,
                    Commit::Nothing(stored) => stored,
                },
                None => stored,
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

    /// Gives the handler the transaction of its run, if there are transactions; `false` if the store panicked.
    pub(crate) fn begin(&mut self, extensions: &mut Extensions) -> bool {
        let Some(store) = &self.shared.transactions else { return true };
        // The store may fail in any way, and a panic here would block the key for its lease.
        let prepared = catch_unwind(AssertUnwindSafe(|| store.prepare(self.id, self.token, extensions)));
        self.transaction = prepared.ok().map(Box::new);
        self.transaction.is_some()
    }

    /// Ends a claim under which nothing was executed, or nothing that stands.
    pub(crate) async fn give_up(&mut self) -> Ended {
        self.roll_back().await;
        // This run did nothing, but an earlier one may have: the next one has to know.
        let ending = if self.attempt > 1 { Ending::Abandon } else { Ending::Release };
        settle::end(self.shared, self.id, &mut self.execution, ending).await
    }

    /// Ends the lease at once, so that the claim counts as abandoned.
    pub(crate) async fn abandon(&mut self) {
        self.roll_back().await;
        settle::abandon(self.shared, self.id, self.token).await;
        self.execution = None;
    }

    /// Ends the claim of a run that panicked, and lets the panic go on.
    pub(crate) async fn fail(&mut self, panic: Panic) -> Infallible {
        self.abandon().await;
        resume_unwind(panic);
    }

    /// Commits the handler's transaction together with the completion, or rolls it back if the response is no success.
    async fn commit<R>(&mut self, head: &response::Parts, mut stored: StoredResponse) -> Commit<R>
    where
        R: HttpBody<Data = Bytes>,
    {
        if !self.shared.config.is_committed(head) {
            self.roll_back().await;
            return Commit::Nothing(stored);
        }
        let (shared, retention) = (self.shared, self.shared.config.retention);
        let Some(mut transaction) = self.transaction.take() else { return Commit::Nothing(stored) };
        let mut committed = shared.bounded(transaction.commit(&stored, retention)).await;
        if committed.as_ref().is_err_and(StoreError::is_rejected) {
            stored = StoredResponse::not_replayable(stored.status());
            committed = shared.bounded(transaction.commit(&stored, retention)).await;
        }
        // Before anything else is written: it may hold the record locked.
        drop(transaction);
        let record = match committed {
            Ok(Committed::Untouched) => return Commit::Nothing(stored),
            Ok(Committed::Applied) => {
                self.execution = None;
                return Commit::Done;
            }
            Ok(Committed::Lost) => {
                self.execution = None;
                self.look_up().await
            }
            // The ending is fenced, so that it tells whether the commit has happened: if it is applied, never.
            Err(_) => match self.give_up().await {
                Ended::Durable | Ended::Retrying => None,
                Ended::Lost => match self.look_up().await {
                    Some(Record { token, state: State::Completed(_), .. }) if token == self.token => {
                        return Commit::Done;
                    }
                    record => record,
                },
            },
        };
        // The handler's answer says that something was done, and must not go out.
        let superseding = record.and_then(|record| self.answer_of(record));
        Commit::Refused(superseding.unwrap_or_else(|| {
            let retry_after = shared.config.retry_after;
            refuse(shared, &Rejection::NotCommitted { retry_after }, self.is_head)
        }))
    }

    /// Undoes what the handler wrote in its transaction, if it has one that is open.
    async fn roll_back(&mut self) {
        if let Some(mut transaction) = self.transaction.take() {
            let rolled_back = Box::pin(async move {
                transaction.rollback().await;
                Ok(())
            });
            // One that is not done in time is dropped, which rolls back too.
            let _ = Box::pin(self.shared.bounded(rolled_back)).await;
        }
    }

    /// Returns the answer of the run that took the record over, if there is one: one key has one answer.
    async fn superseding<R>(&self) -> Option<Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
        self.look_up().await.and_then(|record| self.answer_of(record))
    }

    async fn look_up(&self) -> Option<Record> {
        self.shared.bounded(self.shared.store.lookup(self.id)).await.ok()?
    }

    fn answer_of<R>(&self, record: Record) -> Option<Answer<R>>
    where
        R: HttpBody<Data = Bytes>,
    {
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
