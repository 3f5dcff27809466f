//! What all services of one layer share: the store, the configuration, the executions.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use tokio::{
    sync::Semaphore,
    time::{Sleep, sleep},
};

use crate::{
    Store,
    config::Config,
    executions::{Execution, Executions},
    kick::Kicker,
    store::{StoreError, TransactionalStore},
};

/// How many answers may wait in full for a store that failed after the handler ran, and how many failed claims may be
/// given back at a time.
pub(crate) const BACKLOG: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    /// The same store, as what it is.
    pub(crate) concrete: Arc<dyn Any + Send + Sync>,
    /// The same store, if the handler's writes are to commit together with the completion.
    pub(crate) transactions: Option<Arc<dyn TransactionalStore>>,
    pub(crate) config: Config,
    pub(crate) executions: Arc<Executions>,
    pub(crate) backlog: Arc<Semaphore>,
    pub(crate) give_backs: Arc<Semaphore>,
    pub(crate) kicker: Arc<Kicker>,
}

impl Shared {
    pub(crate) fn new<S: Store>(store: S) -> Self {
        let room = || Arc::new(Semaphore::new(BACKLOG));
        let store = Arc::new(store);
        Self {
            store: Arc::clone(&store) as _,
            concrete: store,
            transactions: None,
            config: Config::default(),
            executions: Arc::default(),
            backlog: room(),
            give_backs: room(),
            kicker: Arc::default(),
        }
    }

    /// Takes one of the turns for runs for this execution; `false` if all are taken.
    pub(crate) fn take_turn(&self, execution: &mut Execution) -> bool {
        let Some(turns) = &self.config.max_runs else { return true };
        execution.turn = Arc::clone(turns).try_acquire_owned().ok();
        execution.turn.is_some()
    }

    /// Awaits a call of the store, but not for longer than the store's time limit. A panic is a failure as any other.
    pub(crate) fn bounded<C, T>(&self, mut call: C) -> impl Future<Output = Result<T, StoreError>>
    where
        C: Future<Output = Result<T, StoreError>> + Unpin,
    {
        // Boxed, and made at the first wait, since most calls need no timer.
        let mut limit: Option<Pin<Box<Sleep>>> = None;
        poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(cx))) {
            Ok(Poll::Ready(result)) => Poll::Ready(result),
            // What it did is as unknown as after any other failure.
            Err(_) => Poll::Ready(Err(StoreError::unavailable("the store panicked"))),
            Ok(Poll::Pending) => {
                let limit = limit.get_or_insert_with(|| Box::pin(sleep(self.config.store_timeout)));
                limit.as_mut().poll(cx).map(|()| Err(StoreError::unavailable("no answer in time")))
            }
        })
    }
}
