//! What all services of one layer share: the store, the configuration, the executions.

use std::{future::Future, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

use crate::{Store, config::Config, executions::Executions, store::StoreError};

/// How many answers may wait in the background for a store that failed after the handler ran. Beyond it the request itself waits,
/// so that the server's own limit on open requests bounds memory.
const BACKLOG: usize = 1024;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: Arc<Config>,
    pub(crate) executions: Arc<Executions>,
    pub(crate) backlog: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn Store>, config: Arc<Config>, executions: Arc<Executions>) -> Self {
        Self { store, config, executions, backlog: Arc::new(Semaphore::new(BACKLOG)) }
    }

    /// Awaits a call of the store, but not for longer than the store's time limit.
    pub(crate) async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut call = pin!(call);
        // A store that answers at once costs no timer.
        if let Poll::Ready(result) = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
            return result;
        }
        let limit: Duration = self.config.store_timeout;
        match timeout(limit, call).await {
            Ok(result) => result,
            Err(elapsed) => Err(StoreError::unavailable(elapsed)),
        }
    }
}
