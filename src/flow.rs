//! The guarded path, from the claim to the stored answer, as one straight async function.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response};
use http_body::Body as HttpBody;
use tokio::time::Instant;
use tower::Service;

use crate::{
    Attempt, Body, Fingerprint, IdempotencyKey, Rejection, StoredResponse,
    body::{Unreadable, collect},
    capture::{Captured, capture, whole},
    catch::catch,
    config::{Abandoned, OnAbandoned, StoreOutage, Verdict},
    decide::{Decision, decide},
    executions::Execution,
    renew,
    replay::{REPLAYED, make_replay},
    settle::{self, Ended, Ending},
    shared::Shared,
    store::{Claim, NewClaim, RecordId, StoreError, Token},
    wait,
};

/// The response of a guarded service.
pub(crate) type Answer<B> = Response<Body<B>>;

/// Tells the owner of a guarded future whether it must run to its end, even if nobody waits for it.
#[derive(Debug, Default)]
pub(crate) struct Obligation(AtomicBool);

impl Obligation {
    pub(crate) fn stands(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, stands: bool) {
        self.0.store(stands, Ordering::Release);
    }
}

/// Guards one request that carries a key.
pub(crate) async fn guard<S, B, R>(
    shared: Arc<Shared>,
    mut inner: S,
    request: Request<B>,
    key: IdempotencyKey,
    obligation: Arc<Obligation>,
) -> Result<Answer<R>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let config = &shared.config;
    let (mut head, body) = request.into_parts();
    let Some(scope) = config.scope_of(&head) else { return Ok(refuse(&shared, &Rejection::UnknownCaller)) };
    let mut hash = config.fingerprint.start(&head, config.scope.is_some());
    let body = match collect(body, config.request_limit, |piece| hash.update(piece)).await {
        Ok(body) => body,
        Err(Unreadable::TooLarge) => {
            return Ok(refuse(&shared, &Rejection::BodyTooLarge { limit: config.request_limit }));
        }
        Err(Unreadable::Broken) => return Ok(refuse(&shared, &Rejection::BodyIncomplete)),
    };
    let fingerprint = hash.finish(&config.fingerprint, &head, &body.data);
    let id = RecordId::new(scope, key);
    let is_head = head.method == Method::HEAD;

    let (execution, attempt) = match acquire(&shared, &id, fingerprint, &obligation).await {
        Acquired::Owner(execution, attempt) => (execution, attempt),
        Acquired::Replay(response) => return Ok(replay(&response, is_head)),
        Acquired::Refused(rejection) => return Ok(refuse(&shared, &rejection)),
        Acquired::Unprotected => {
            let request = Request::from_parts(head, Body::buffered(body.data, body.trailers));
            return inner.call(request).await.map(|response| response.map(Body::passed));
        }
    };
    if attempt > 1
        && let OnAbandoned::Ask(ask) = &config.abandoned
    {
        match catch(ask.verdict(Abandoned { id: id.clone(), attempt })).await {
            Ok(Verdict::Rerun) => {}
            Ok(Verdict::Refuse) => {
                settle::abandon(&shared, &id, execution).await;
                return Ok(refuse(&shared, &Rejection::OutcomeUnknown));
            }
            Ok(Verdict::Answer(response)) => {
                let stored = whole(config, &response);
                let response = response.map(|data| Body::buffered(data, None));
                return Ok(complete(&shared, id, fingerprint, execution, stored, response, is_head).await);
            }
            Err(panic) => {
                settle::abandon(&shared, &id, execution).await;
                resume_unwind(panic);
            }
        }
    }

    head.extensions.insert(Attempt::new(id.clone(), attempt));
    let request = Request::from_parts(head, Body::buffered(body.data, body.trailers));
    let response = match catch(async { inner.call(request).await }).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            settle::abandon(&shared, &id, execution).await;
            return Err(error);
        }
        Err(panic) => {
            settle::abandon(&shared, &id, execution).await;
            resume_unwind(panic);
        }
    };

    let (mut head, body) = response.into_parts();
    head.headers.remove(HeaderName::from_static(REPLAYED));
    if !config.is_stored(&head) {
        settle::end(&shared, id, execution, Ending::Release).await;
        return Ok(Response::from_parts(head, Body::passed(body)));
    }
    let (stored, body) = match capture(config, &head, body).await {
        Captured::Whole(stored, body) => (stored, body),
        Captured::Unbounded(body) => (StoredResponse::not_replayable(head.status), body),
        Captured::Broken(body) => {
            settle::abandon(&shared, &id, execution).await;
            return Ok(Response::from_parts(head, body));
        }
        Captured::Panicked(panic) => {
            settle::abandon(&shared, &id, execution).await;
            resume_unwind(panic);
        }
    };
    let response = Response::from_parts(head, body);
    Ok(complete(&shared, id, fingerprint, execution, stored, response, is_head).await)
}

/// What a request got when it asked for its record.
enum Acquired {
    Owner(Execution, u32),
    Replay(StoredResponse),
    Refused(Rejection),
    Unprotected,
}

/// How often a claim follows abandoned claims that others replace first, before the store is taken for broken.
const TAKEOVERS: u32 = 64;

/// Claims the record; waits for its owner if that is wanted.
async fn acquire(shared: &Arc<Shared>, id: &RecordId, fingerprint: Fingerprint, obligation: &Obligation) -> Acquired {
    let config = &shared.config;
    let mut claim = NewClaim::new(Token::random(), fingerprint, config.lease());
    let mut deadline = None;
    let mut held = None;
    for _ in 0..TAKEOVERS {
        let execution = held.take().unwrap_or_else(|| shared.executions.enter(id.clone(), claim.token));
        // From here on the claim may stand, so that a dropped future has to find out and go on.
        obligation.set(true);
        let sent = Instant::now();
        let outcome = shared.bounded(shared.store.claim(id, &claim)).await;
        let decision = match outcome {
            Ok(outcome) => decide(outcome, claim.token, fingerprint, config),
            Err(error) => {
                give_back(shared, id, execution, &error);
                return outage(shared, &error);
            }
        };
        let (owner, retry_after) = match decision {
            Decision::Run { attempt } => {
                shared.executions.renew_at(claim.token, Some(sent + config.lease / renew::PART));
                renew::ensure(shared).await;
                return Acquired::Owner(execution, attempt);
            }
            Decision::Replay(response) => return Acquired::Replay(response),
            Decision::Refuse(rejection) => return Acquired::Refused(rejection),
            Decision::TakeOver { previous } => {
                claim.replaces = Some(previous);
                held = Some(execution);
                continue;
            }
            Decision::Wait { owner, retry_after } => (owner, retry_after),
        };
        drop(execution);
        obligation.set(false);
        let deadline = *deadline.get_or_insert_with(|| sent + config.wait.unwrap_or_default());
        if deadline <= Instant::now() {
            return Acquired::Refused(Rejection::InFlight { retry_after });
        }
        wait::for_owner(shared, id, owner, deadline).await;
    }
    Acquired::Refused(Rejection::StoreUnavailable { retry_after: config.retry_after })
}

/// Frees what a failed claim may have written all the same, once, in the background: it would block the key for the
/// rest of its lease.
fn give_back(shared: &Arc<Shared>, id: &RecordId, execution: Execution, error: &StoreError) {
    if !error.is_unavailable() {
        return;
    }
    if let Ok(permit) = Arc::clone(&shared.backlog).try_acquire_owned() {
        let (shared, id) = (Arc::clone(shared), id.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let _ = shared.bounded(shared.store.release(&id, execution.token())).await;
        });
    }
}

fn outage(shared: &Shared, error: &StoreError) -> Acquired {
    let retry_after = shared.config.retry_after;
    match shared.config.outage {
        _ if error.is_damaged() => Acquired::Refused(Rejection::RecordDamaged),
        StoreOutage::Proceed => Acquired::Unprotected,
        StoreOutage::Refuse if error.is_full() => Acquired::Refused(Rejection::StoreFull { retry_after }),
        StoreOutage::Refuse => Acquired::Refused(Rejection::StoreUnavailable { retry_after }),
    }
}

/// Makes the answer durable, then gives it. If the record belongs to another run by now, its answer counts: one key
/// has one answer.
async fn complete<R>(
    shared: &Arc<Shared>,
    id: RecordId,
    fingerprint: Fingerprint,
    execution: Execution,
    stored: StoredResponse,
    response: Answer<R>,
    is_head: bool,
) -> Answer<R>
where
    R: HttpBody<Data = Bytes>,
{
    let own = execution.token();
    match settle::end(shared, id.clone(), execution, Ending::Complete(stored)).await {
        Ended::Durable | Ended::Retrying => return response,
        Ended::Lost => {}
    }
    let Ok(Some(record)) = shared.bounded(shared.store.lookup(&id)).await else { return response };
    match decide(Claim::Existing(record), own, fingerprint, &shared.config) {
        Decision::Replay(stored) => replay(&stored, is_head),
        Decision::Refuse(Rejection::Mismatch) | Decision::Run { .. } => response,
        Decision::Refuse(rejection) => refuse(shared, &rejection),
        Decision::Wait { .. } | Decision::TakeOver { .. } => {
            refuse(shared, &Rejection::InFlight { retry_after: shared.config.retry_after })
        }
    }
}

fn replay<R: HttpBody<Data = Bytes>>(stored: &StoredResponse, is_head: bool) -> Answer<R> {
    let (response, trailers) = stored.decode();
    let (mut head, data) = response.into_parts();
    make_replay(&mut head, data.len(), is_head);
    Response::from_parts(head, Body::buffered(data, trailers))
}

/// Makes the answer for a rejection.
pub(crate) fn refuse<R: HttpBody<Data = Bytes>>(shared: &Shared, rejection: &Rejection) -> Answer<R> {
    shared.config.answers.render(rejection).map(|data| Body::buffered(data, None))
}
