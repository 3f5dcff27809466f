//! What all services of one layer share: the store, the configuration, the executions.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::{sync::Semaphore, time::sleep};

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
    pub(crate) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut call = pin!(call);
        // A store that answers at once costs no timer.
        if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
            return result;
        }
        // Boxed, since a timer is large and most calls need none.
        let mut limit = Box::pin(sleep(self.config.store_timeout));
        poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => limit.as_mut().poll(cx).map(|()| Err(StoreError::unavailable("no answer in time"))),
        })
        .await
    }
}
