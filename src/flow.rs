//! The guarded path, from the request to the stored answer, as one straight asynchronous block.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, request};
use http_body::Body as HttpBody;
use tower::Service;

use crate::{
    Attempt, Body, Fingerprint, IdempotencyKey, Rejection,
    acquire::{Acquired, acquire},
    body::{Collected, Unreadable, collect},
    catch::catch,
    config::Config,
    obligation::Obligation,
    owned::{Answer, Owned, refuse, replay},
    replay::unmark,
    shared::Shared,
    store::{NewClaim, RecordId, Token},
};

/// Guards one request that carries a key.
// Each request allocates this future, and a future has room for an async function's arguments twice. So this is a
// function with a block, what is large or rare is boxed, and all of it stays below the size up to which common
// allocators are at their fastest, 1 KiB.
#[expect(clippy::manual_async_fn, reason = "the future of an async function is larger")]
pub(crate) fn guard<S, B, R>(
    shared: Arc<Shared>,
    mut inner: S,
    mut head: Box<request::Parts>,
    body: B,
    key: IdempotencyKey,
    obligation: Arc<Obligation>,
) -> impl Future<Output = Result<Answer<R>, S::Error>>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    async move {
        let is_head = head.method == Method::HEAD;
        let Some(scope) = shared.config.scope_of(&head) else {
            return Ok(refuse(&shared, &Rejection::UnknownCaller, is_head));
        };
        let id = RecordId::new(scope, key);
        let (body, fingerprint) = match read(&shared.config, &head, body).await {
            Ok(read) => read,
            Err(rejection) => return Ok(refuse(&shared, &rejection, is_head)),
        };
        let outside = head.extensions.get::<Attempt>().and_then(Attempt::token);
        let claim = NewClaim::new(Token::random(), fingerprint, shared.config.lease());
        let (execution, attempt) = match acquire(&shared, &id, claim, outside, &obligation).await {
            Acquired::Owner(execution, attempt) => (execution, attempt),
            Acquired::Replay(response) => return Ok(replay(&response, is_head)),
            Acquired::Refused(rejection) => return Ok(refuse(&shared, &rejection, is_head)),
            Acquired::Unprotected(mut execution) => {
                if !shared.take_turn(&mut execution) {
                    let retry_after = shared.config.retry_after;
                    return Ok(refuse(&shared, &Rejection::TooManyRuns { retry_after }, is_head));
                }
                head.extensions.insert(Attempt::unprotected(id));
                let response = Box::pin(pass(inner.call(Request::from_parts(*head, Body::collected(body))))).await;
                drop(execution);
                return response;
            }
            Acquired::Outside => {
                return Box::pin(pass(inner.call(Request::from_parts(*head, Body::collected(body))))).await;
            }
        };
        let mut owned = Owned::new(&shared, &id, execution, attempt, fingerprint, is_head);
        if !owned.take_turn() {
            let retry_after = shared.config.retry_after;
            owned.give_up().await;
            return Ok(refuse(&shared, &Rejection::TooManyRuns { retry_after }, is_head));
        }
        if attempt > 1
            && let Some(ask) = shared.config.abandoned.callback()
            && let Some(answer) = Box::pin(owned.ask(ask)).await
        {
            return Ok(answer);
        }

        head.extensions.insert(Attempt::new(id.clone(), attempt, owned.token));
        if !owned.begin(&mut head.extensions) {
            let retry_after = shared.config.retry_after;
            owned.give_up().await;
            return Ok(refuse(&shared, &Rejection::StoreUnavailable { retry_after }, is_head));
        }
        let response = match catch(|| inner.call(Request::from_parts(*head, Body::collected(body)))).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                owned.abandon().await;
                return Err(error);
            }
            Err(panic) => match owned.fail(panic).await {},
        };
        match catch(|| owned.finish(response)).await {
            Ok(answer) => Ok(answer),
            Err(panic) => match owned.fail(panic).await {},
        }
    }
}

/// Gives the answer of a run that is not recorded here.
async fn pass<R, E>(running: impl Future<Output = Result<Response<R>, E>>) -> Result<Answer<R>, E>
where
    R: HttpBody<Data = Bytes>,
{
    let mut response = running.await?;
    unmark(response.headers_mut());
    Ok(response.map(Body::unmarked))
}

/// Reads the body and takes the fingerprint.
async fn read<B>(config: &Config, head: &request::Parts, body: B) -> Result<(Collected, Fingerprint), Rejection>
where
    B: HttpBody<Data = Bytes>,
{
    let mut run = config.fingerprint.start(head, config.scope.is_some());
    match collect(body, config.request_limit, |piece| run.update(piece)).await {
        Ok(body) => {
            let fingerprint = run.finish(&config.fingerprint, head, &body.data);
            Ok((body, fingerprint))
        }
        Err(Unreadable::TooLarge) => Err(Rejection::BodyTooLarge { limit: config.request_limit }),
        Err(Unreadable::Broken) => Err(Rejection::BodyIncomplete),
    }
}
