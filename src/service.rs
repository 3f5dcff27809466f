//! The service: decides for each request whether it is guarded.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body as HttpBody;
use tower::Service;

use crate::{Body, Rejection, ResponseFuture, flow::guard, obligation::Obligation, owned::refuse, shared::Shared};

/// Runs each unsafe request with a key once, and answers its retries from the record.
///
/// Made by [`IdempotencyLayer`](crate::IdempotencyLayer). Requests with another method, and those without a key where
/// the key is optional, pass through to the inner service untouched.
///
/// # Panics
///
/// A guarded request must be called and polled within a Tokio runtime whose time driver is enabled.
#[derive(Debug, Clone)]
pub struct Idempotency<Inner> {
    inner: Inner,
    shared: Arc<Shared>,
}

impl<Inner> Idempotency<Inner> {
    pub(crate) fn new(inner: Inner, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<Inner, B, R> Service<Request<B>> for Idempotency<Inner>
where
    Inner: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    Inner::Future: Send + 'static,
    Inner::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<Body<R>>;
    type Error = Inner::Error;
    type Future = ResponseFuture<Inner::Future, R, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let config = &self.shared.config;
        if !config.methods.contains(request.method()) {
            return self.bypass(request);
        }
        let mut lines = request.headers().get_all(&config.header).iter().peekable();
        if lines.peek().is_none() {
            if config.require_key {
                return self.refuse(request.method(), &Rejection::KeyMissing);
            }
            return self.bypass(request);
        }
        let key = match config.key_syntax().parse(lines) {
            Ok(key) => key,
            Err(error) => return self.refuse(request.method(), &Rejection::KeyMalformed(error)),
        };
        let ready = self.take_ready();
        let obligation = Arc::<Obligation>::default();
        let (head, body) = request.into_parts();
        let flow = guard(Arc::clone(&self.shared), ready, Box::new(head), body, key, Arc::clone(&obligation));
        ResponseFuture::guarded(flow, obligation)
    }
}

impl<Inner: Clone> Idempotency<Inner> {
    /// Takes the service that is ready, for one request; its clone, which is not ready, stays.
    fn take_ready(&mut self) -> Inner {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }

    fn refuse<F, R, E>(&mut self, method: &Method, rejection: &Rejection) -> ResponseFuture<F, R, E>
    where
        R: HttpBody<Data = Bytes> + 'static,
        E: 'static,
    {
        // A ready service may hold a permit, which would be kept until the next request on this connection.
        drop(self.take_ready());
        ResponseFuture::answered(refuse(&self.shared, rejection, *method == Method::HEAD))
    }
}

impl<Inner> Idempotency<Inner> {
    fn bypass<B, R, E>(&mut self, request: Request<B>) -> ResponseFuture<Inner::Future, R, E>
    where
        Inner: Service<Request<Body<B>>, Response = Response<R>, Error = E>,
        B: HttpBody<Data = Bytes>,
        R: HttpBody + 'static,
        E: 'static,
    {
        ResponseFuture::bypassed(self.inner.call(request.map(Body::passed)))
    }
}
