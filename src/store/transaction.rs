//! What a store adds whose completions can share a transaction with the handler's own writes.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Extensions;

use super::{RecordId, Store, StoreError, Token};
use crate::StoredResponse;

/// A [`Store`] that keeps its records where the handler can write too: the handler's writes and the completion of its
/// record commit together, or neither does.
///
/// [`IdempotencyLayer::transactional`](crate::IdempotencyLayer::transactional) turns it on.
pub trait TransactionalStore: Store {
    /// Prepares the transaction of one run, and puts what the handler takes it by into the extensions of the request.
    ///
    /// Neither blocks nor uses a connection: the transaction begins when the handler uses it first.
    fn prepare(&self, id: &RecordId, token: Token, extensions: &mut Extensions) -> Box<dyn StoreTransaction>;
}

/// The transaction of one run, as the layer sees it: it ends it.
///
/// Dropped unfinished, it is rolled back. After a call that ended it or failed, the handler can use it no more.
#[async_trait]
pub trait StoreTransaction: Send + Sync + fmt::Debug + 'static {
    /// Writes the completion into the transaction, fenced as [`Store::complete`] is, and commits both.
    ///
    /// # Errors
    ///
    /// The transaction is rolled back, unless the commit was sent and its answer lost: then it may have been committed.
    /// The record tells, and as long as the outcome is open the store must let no other write to the record pass: a
    /// [`release`](Store::release) or a [`renew`](Store::renew) under the same token that is applied proves that nothing was
    /// committed and never will be.
    async fn commit(&mut self, response: &StoredResponse, retention: Duration) -> Result<Committed, StoreError>;

    /// Undoes what the handler wrote.
    ///
    /// It cannot fail: a connection on which the rollback fails is closed, and the database rolls back by itself.
    async fn rollback(&mut self);
}

/// The outcome of a commit.
#[must_use = "only `Applied` means that the handler's writes stand"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The handler's writes and the completion are durable.
    Applied,
    /// The record is not the caller's any more: all was rolled back, and nothing was changed.
    Lost,
    /// The handler never used the transaction: there is nothing to commit, and nothing was written. The completion is
    /// still to be written.
    Untouched,
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: TransactionalStore + ?Sized> TransactionalStore for $pointer {
            fn prepare(&self, id: &RecordId, token: Token, extensions: &mut Extensions) -> Box<dyn StoreTransaction> {
                (**self).prepare(id, token, extensions)
            }
        }
    )*};
}

forward!(Arc<S>, Box<S>);
