//! Catches the panic of a future, so that the claim can be ended before the panic goes on.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Calls a function; a panic becomes an error.
pub(crate) fn catch_now<T>(function: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(function))
}

/// Awaits a future; a panic becomes an error. The future is not polled again after a panic.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_now(|| future.as_mut().poll(cx)) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
