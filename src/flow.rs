//! The guarded path, from the request to the stored answer, as one straight async function.

use std::{panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, request};
use http_body::Body as HttpBody;
use tower::Service;

use crate::{
    Attempt, Body, Fingerprint, IdempotencyKey, Rejection,
    acquire::{Acquired, acquire},
    body::{Collected, Unreadable, collect},
    catch::{catch, catch_now},
    config::Config,
    obligation::Obligation,
    owned::{Answer, Owned, refuse, replay},
    replay::REPLAYED,
    shared::Shared,
    store::RecordId,
};

/// Guards one request that carries a key.
// Head and body come apart and stay where they are: the future is allocated for each request, and grows by whatever is
// moved within it.
pub(crate) async fn guard<S, B, R>(
    shared: Arc<Shared>,
    mut inner: S,
    mut head: request::Parts,
    body: B,
    key: IdempotencyKey,
    obligation: Arc<Obligation>,
) -> Result<Answer<R>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes>,
    R: HttpBody<Data = Bytes>,
{
    let Some(scope) = shared.config.scope_of(&head) else { return Ok(refuse(&shared, &Rejection::UnknownCaller)) };
    let (body, fingerprint) = match read(&shared.config, &head, body).await {
        Ok(read) => read,
        Err(rejection) => return Ok(refuse(&shared, &rejection)),
    };
    let id = RecordId::new(scope, key);
    let is_head = head.method == Method::HEAD;
    let outside = head.extensions.get::<Attempt>().map(Attempt::token);
    let (execution, attempt) = match acquire(&shared, &id, fingerprint, outside, &obligation).await {
        Acquired::Owner(execution, attempt) => (execution, attempt),
        Acquired::Replay(response) => return Ok(replay(&response, is_head)),
        Acquired::Refused(rejection) => return Ok(refuse(&shared, &rejection)),
        Acquired::Unprotected | Acquired::Outside => {
            let mut response = inner.call(Request::from_parts(head, Body::collected(body))).await?;
            response.headers_mut().remove(REPLAYED);
            return Ok(response.map(Body::passed));
        }
    };
    let mut owned = Owned { shared, id, execution, fingerprint, is_head };
    if attempt > 1
        && let Some(ask) = owned.shared.config.abandoned.callback()
    {
        // Boxed, since it is rare.
        match Box::pin(owned.ask(ask, attempt)).await {
            Ok(still_owned) => owned = still_owned,
            Err(answer) => return Ok(answer),
        }
    }

    head.extensions.insert(Attempt::new(owned.id.clone(), attempt, owned.execution.token()));
    let called = catch_now(|| inner.call(Request::from_parts(head, Body::collected(body))));
    let response = match called {
        Ok(running) => catch(running).await,
        Err(panic) => Err(panic),
    };
    match response {
        Ok(Ok(response)) => Ok(owned.finish(response).await),
        Ok(Err(error)) => {
            owned.abandon().await;
            Err(error)
        }
        Err(panic) => {
            owned.abandon().await;
            resume_unwind(panic);
        }
    }
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
