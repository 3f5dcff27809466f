//! What all services of one layer share: the store, the configuration, the executions.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use tokio::{
    sync::Semaphore,
    time::{Sleep, sleep},
};

use crate::{Store, config::Config, executions::Executions, store::StoreError};

/// How many answers may wait in the background for a store that failed after the handler ran. Beyond it the request itself waits,
/// so that the server's own limit on open requests bounds memory.
const BACKLOG: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) executions: Arc<Executions>,
    pub(crate) backlog: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let backlog = Arc::new(Semaphore::new(BACKLOG));
        Self { store, config: Config::default(), executions: Arc::default(), backlog }
    }

    /// Awaits a call of the store, but not for longer than the store's time limit.
    pub(crate) fn bounded<C, T>(&self, mut call: C) -> impl Future<Output = Result<T, StoreError>>
    where
        C: Future<Output = Result<T, StoreError>> + Unpin,
    {
        // Boxed, and made at the first wait, since most calls need no timer.
        let mut limit: Option<Pin<Box<Sleep>>> = None;
        poll_fn(move |cx| match Pin::new(&mut call).poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                let limit = limit.get_or_insert_with(|| Box::pin(sleep(self.config.store_timeout)));
                limit.as_mut().poll(cx).map(|()| Err(StoreError::unavailable("no answer in time")))
            }
        })
    }
}
