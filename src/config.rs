//! Every option of the layer, with its default.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Response, StatusCode, header, request, response};

use tokio::sync::Semaphore;

use crate::{
    Fingerprinter, NothingExecuted, Profile, Scope,
    answers::Answers,
    key::KeySyntax,
    replay::is_momentary,
    store::{Lease, RecordId},
};

/// The shortest time that an abandoned record is kept.
const SHORTEST_UNSETTLED: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) methods: Vec<Method>,
    pub(crate) header: HeaderName,
    pub(crate) key_syntax: KeySyntax,
    pub(crate) require_key: bool,
    pub(crate) scope: Option<ScopeFn>,
    pub(crate) fingerprint: Fingerprinter,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) abandoned: OnAbandoned,
    pub(crate) wait: Option<Duration>,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) response_time: Duration,
    pub(crate) store_when: Option<ResponseIs>,
    pub(crate) commit_when: Option<ResponseIs>,
    pub(crate) not_replayed: Vec<HeaderName>,
    pub(crate) outage: StoreOutage,
    pub(crate) store_timeout: Duration,
    pub(crate) max_runs: Option<Arc<Semaphore>>,
    pub(crate) retry_after: u64,
    pub(crate) answers: Answers,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            methods: vec![Method::POST, Method::PATCH],
            header: HeaderName::from_static("idempotency-key"),
            key_syntax: KeySyntax::new(),
            require_key: false,
            scope: None,
            fingerprint: Fingerprinter::new(),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 60 * 60),
            abandoned: OnAbandoned::Rerun,
            wait: None,
            request_limit: 1024 * 1024,
            response_limit: 1024 * 1024,
            response_time: Duration::from_secs(30),
            store_when: None,
            commit_when: None,
            not_replayed: vec![header::SET_COOKIE],
            outage: StoreOutage::Refuse,
            store_timeout: Duration::from_secs(5),
            max_runs: None,
            retry_after: 1,
            answers: Answers::default(),
        }
    }
}

impl Config {
    /// Says whose key it is: `None` if the caller is unknown. An empty scope names nobody either.
    pub(crate) fn scope_of(&self, head: &request::Parts) -> Option<Scope> {
        match &self.scope {
            None => Some(Scope::NONE),
            Some(scope) => (scope.0)(head).filter(|scope| !scope.is_empty()),
        }
    }

    /// Returns the lease of a claim. What must be settled by somebody is kept until it is.
    pub(crate) fn lease(&self) -> Lease {
        let unsettled = match self.abandoned {
            // At least for some leases: a run may be alive whose lease could not be renewed.
            OnAbandoned::Rerun => self.retention.max(10 * self.lease).max(SHORTEST_UNSETTLED),
            OnAbandoned::Refuse | OnAbandoned::Ask(_) => Duration::MAX,
        };
        Lease { term: self.lease, unsettled }
    }

    /// Returns for how long a claim that did nothing would stand in the way, because somebody has to settle it.
    pub(crate) fn settled_by_somebody(&self) -> Duration {
        match self.abandoned {
            OnAbandoned::Rerun => Duration::ZERO,
            OnAbandoned::Refuse | OnAbandoned::Ask(_) => self.retention,
        }
    }

    /// Tells whether a response is to be stored; if not, the key is released.
    pub(crate) fn is_stored(&self, head: &response::Parts) -> bool {
        if head.extensions.get::<NothingExecuted>().is_some() {
            return false;
        }
        match &self.store_when {
            Some(predicate) => (predicate.0)(head),
            None => !matches!(
                head.status,
                StatusCode::TEMPORARY_REDIRECT
                    | StatusCode::PERMANENT_REDIRECT
                    | StatusCode::TOO_EARLY
                    | StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::SERVICE_UNAVAILABLE
            ),
        }
    }

    /// Tells whether what the handler wrote in its transaction is to stand.
    pub(crate) fn is_committed(&self, head: &response::Parts) -> bool {
        match &self.commit_when {
            Some(predicate) => (predicate.0)(head),
            None => head.status.is_success() || head.status.is_redirection(),
        }
    }

    /// Tells which header lines of a response are part of a replay.
    pub(crate) fn is_replayed(&self, headers: &HeaderMap) -> impl Fn(&HeaderName) -> bool {
        let is_momentary = is_momentary(headers);
        move |name| !self.not_replayed.contains(name) && !is_momentary(name)
    }

    /// Returns what a key may look like.
    pub(crate) fn key_syntax(&self) -> KeySyntax {
        match self.answers.profile {
            Profile::Ietf => self.key_syntax.quoted_only(),
            Profile::Default | Profile::Stripe => self.key_syntax,
        }
    }
}

/// Says what happens to a key whose lease ended without a completion: the process died, or the handler failed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum OnAbandoned {
    /// The next retry runs the handler again, which can see that by [`Attempt::is_rerun`](crate::Attempt::is_rerun).
    #[default]
    Rerun,
    /// Retries are answered with "outcome unknown" until the key is settled or released; see
    /// [`settle`](crate::IdempotencyLayer::settle) and [`release`](crate::IdempotencyLayer::release).
    Refuse,
    /// A callback decides; made by [`OnAbandoned::ask`].
    Ask(Ask),
}

impl OnAbandoned {
    /// Lets a callback decide, for instance by asking the payment gateway what became of the key.
    ///
    /// The request that calls it owns the record, and the lease is renewed meanwhile: no two callbacks for one key
    /// run at a time. Each call counts as an attempt. If it panics, the record is abandoned again.
    ///
    /// ```
    /// use http::{Response, StatusCode};
    /// use tower_idempotency::{OnAbandoned, Verdict};
    ///
    /// let policy = OnAbandoned::ask(|abandoned| async move {
    ///     match find_charge_at_gateway(abandoned.key().as_str()).await {
    ///         Some(charge) => {
    ///             let mut answer = Response::new(charge.into());
    ///             *answer.status_mut() = StatusCode::CREATED;
    ///             Verdict::Answer(answer)
    ///         }
    ///         None => Verdict::Rerun,
    ///     }
    /// });
    /// # async fn find_charge_at_gateway(_: &str) -> Option<String> { None }
    /// ```
    pub fn ask<F, Fut>(callback: F) -> Self
    where
        F: Fn(Abandoned) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        Self::Ask(Ask(Arc::new(move |abandoned| Box::pin(callback(abandoned)))))
    }
}

impl OnAbandoned {
    pub(crate) fn callback(&self) -> Option<Ask> {
        match self {
            Self::Ask(ask) => Some(ask.clone()),
            Self::Rerun | Self::Refuse => None,
        }
    }
}

type AskFn = dyn Fn(Abandoned) -> Pin<Box<dyn Future<Output = Verdict> + Send>> + Send + Sync;

/// The callback of [`OnAbandoned::ask`].
#[derive(Clone)]
pub struct Ask(Arc<AskFn>);

impl Ask {
    pub(crate) async fn verdict(&self, abandoned: Abandoned) -> Verdict {
        (self.0)(abandoned).await
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// A claim that ended without a completion, as shown to the callback of [`OnAbandoned::ask`].
#[derive(Debug, Clone)]
pub struct Abandoned {
    pub(crate) id: RecordId,
    pub(crate) attempt: u32,
}

impl Abandoned {
    /// Returns the key that the client sent.
    #[must_use]
    pub fn key(&self) -> &crate::IdempotencyKey {
        self.id.key()
    }

    /// Returns whose key it is; the empty scope if the layer sets none.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.id.scope()
    }

    /// Returns the number that the next run has: how many claims the record has seen, this one included.
    #[must_use]
    pub fn next_attempt(&self) -> u32 {
        self.attempt
    }
}

/// What the callback of [`OnAbandoned::ask`] decides.
#[derive(Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing happened, or running again does no harm: run the handler.
    Rerun,
    /// Not known yet: answer "outcome unknown", and ask again at the next retry.
    Refuse,
    /// It happened: store this as the answer of the key, and give it.
    Answer(Response<Bytes>),
}

/// Says what happens to a request with a key when the store cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StoreOutage {
    /// The request is refused with 503 before anything runs.
    #[default]
    Refuse,
    /// The handler runs without protection: no record, no replay, and two runs for one key are possible.
    Proceed,
}

type ScopeOf = dyn Fn(&request::Parts) -> Option<Scope> + Send + Sync;

#[derive(Clone)]
pub(crate) struct ScopeFn(pub(crate) Arc<ScopeOf>);

impl fmt::Debug for ScopeFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeFn")
    }
}

/// A predicate over the head of a response.
#[derive(Clone)]
pub(crate) struct ResponseIs(pub(crate) Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>);

impl fmt::Debug for ResponseIs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseIs")
    }
}
