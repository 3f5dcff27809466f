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
/// The layer holds it until the handler's response is there to its end, or has become a stream, and uses it no more after
/// a call that ended it. Meanwhile the lease of the record is renewed outside of the transaction, so the record must not be
/// locked before the commit.
///
/// Dropped unfinished, it is rolled back. After a call that ended it or failed, the handler can use it no more: what it
/// still holds must give errors, and not begin another transaction.
///
/// # Cancel safety
///
/// The layer drops the future of a call that takes longer than the store's time limit, and then the transaction. A dropped
/// commit is one that failed: it was sent and its answer is lost, or it is rolled back.
#[async_trait]
pub trait StoreTransaction: Send + Sync + fmt::Debug + 'static {
    /// Writes the completion into the transaction, fenced as [`Store::complete`] is, and commits both.
    ///
    /// # Errors
    ///
    /// [`StoreError::is_rejected`] if the store will never take this response, for instance because it is too long. The
    /// transaction is then as it was before the call, and the layer commits again, with a response that says only that the
    /// request was done. So the store looks at the response first.
    ///
    /// After any other error the transaction is rolled back, unless the commit was sent and its answer lost: then it may
    /// have been committed. The record tells, and as long as the outcome is open the store must let no other write to the
    /// record pass: a [`release`](Store::release) or a [`renew`](Store::renew) under the same token that is applied proves
    /// that nothing was committed and never will be.
    async fn commit(&mut self, response: &StoredResponse, retention: Duration) -> Result<Committed, StoreError>;

    /// Undoes what the handler wrote.
    ///
    /// The layer calls it for a run that does not end in a commit, before it writes to the record. It cannot fail: a
    /// connection on which the rollback fails is closed, and the database rolls back by itself.
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
