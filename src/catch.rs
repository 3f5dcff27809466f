//! Catches the panic of a future, so that the claim can be ended before the panic goes on.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Makes a future and awaits it; a panic of either becomes an error. The future is not polled again after a panic.
pub(crate) fn catch<F: Future>(make: impl FnOnce() -> F) -> Catch<F> {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(future) => Catch::Made { future },
        Err(panic) => Catch::Panicked { panic: Some(panic) },
    }
}

pin_project! {
    /// The future of [`catch`].
    #[project = CatchProjection]
    pub(crate) enum Catch<F> {
        Made { #[pin] future: F },
        Panicked { panic: Option<Panic> },
    }
}

impl<F: Future> Future for Catch<F> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            CatchProjection::Made { future } => match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            },
            CatchProjection::Panicked { panic } => {
                Poll::Ready(Err(panic.take().expect("a future is not polled after it was ready")))
            }
        }
    }
}
