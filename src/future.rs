//! The response future: a bypass is the inner future itself, a guarded one is boxed and survives being dropped.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;

use crate::{Body, obligation::Obligation, owned::Answer};

pin_project! {
    /// The future of [`Idempotency`](crate::Idempotency).
    ///
    /// # Cancel safety
    ///
    /// Dropped before the claim, it leaves nothing behind. Dropped unfinished after the claim was sent, it moves to
    /// the Tokio runtime that it was made on and runs to its end there, so that the response is stored. Task-locals of
    /// outer layers are not visible there.
    pub struct ResponseFuture<F, R, E>
    where
        R: HttpBody,
        R: 'static,
        E: 'static,
    {
        #[pin]
        kind: Kind<F, Result<Response<Body<R>>, E>>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, T>
    where
        T: 'static,
    {
        Bypassed { #[pin] future: F },
        Answered { answer: Option<T> },
        Guarded { guarded: Guarded<T> },
    }
}

impl<F, R: HttpBody + 'static, E: 'static> ResponseFuture<F, R, E> {
    pub(crate) fn bypassed(future: F) -> Self {
        Self { kind: Kind::Bypassed { future } }
    }

    pub(crate) fn answered(answer: Answer<R>) -> Self {
        Self { kind: Kind::Answered { answer: Some(Ok(answer)) } }
    }
}

impl<F, R, E> ResponseFuture<F, R, E>
where
    R: HttpBody + 'static,
    E: 'static,
    Result<Answer<R>, E>: Send,
{
    pub(crate) fn guarded(
        future: impl Future<Output = Result<Answer<R>, E>> + Send + 'static,
        obligation: Arc<Obligation>,
    ) -> Self {
        let guarded = Guarded { future: Some(Box::pin(future)), obligation, runtime: Handle::current() };
        Self { kind: Kind::Guarded { guarded } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: HttpBody<Data = Bytes> + 'static,
    E: 'static,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Bypassed { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(Body::passed)))
            }
            KindProjection::Answered { answer } => {
                Poll::Ready(answer.take().expect("a future is not polled after it was ready"))
            }
            KindProjection::Guarded { guarded } => guarded.poll(cx),
        }
    }
}

impl<F, R: HttpBody + 'static, E: 'static> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Bypassed { .. } => "ResponseFuture::Bypassed",
            Kind::Answered { .. } => "ResponseFuture::Answered",
            Kind::Guarded { .. } => "ResponseFuture::Guarded",
        })
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future that is polled in place, and moves to the runtime if it is dropped while it is under an obligation.
struct Guarded<T: 'static> {
    future: Option<BoxFuture<T>>,
    obligation: Arc<Obligation>,
    runtime: Handle,
}

impl<T: 'static> Guarded<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out meanwhile, so that a future that panics is gone when this is dropped.
        let mut future = self.future.take().expect("a future is not polled after it was ready");
        let poll = future.as_mut().poll(cx);
        if poll.is_pending() {
            self.future = Some(future);
        }
        poll
    }
}

impl<T: 'static> Drop for Guarded<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take()
            && self.obligation.stands()
        {
            let obligation = Arc::clone(&self.obligation);
            self.runtime.spawn(Detached { future, obligation });
        }
    }
}

/// A guarded future on the runtime: what it answers goes nowhere, so that it ends when its obligation does.
struct Detached<T> {
    future: BoxFuture<T>,
    obligation: Arc<Obligation>,
}

impl<T> Future for Detached<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.future.as_mut().poll(cx) {
            Poll::Pending if self.obligation.stands() => Poll::Pending,
            Poll::Pending | Poll::Ready(_) => Poll::Ready(()),
        }
    }
}
