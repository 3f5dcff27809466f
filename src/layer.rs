//! The layer: the builder that users see.

use std::{fmt, marker::PhantomData, ops::RangeInclusive, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, header, request, response};
use tokio::sync::Semaphore;
use tower_layer::Layer;

use crate::{
    Fingerprinter, Idempotency, KeySyntax, Profile, Rejection, Scope, Store,
    answers::Customize,
    config::{Config, OnAbandoned, ResponseIs, ScopeFn, StoreOutage},
    shared::Shared,
    store::TransactionalStore,
};

mod operate;

pub use operate::Settled;

/// Makes the unsafe requests of an application safe to retry.
///
/// The first request with a key runs; each retry gets the same answer without running again. Clones share the store
/// and all state, so one layer can guard several routers. Each setter states its default.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// use std::time::Duration;
/// use tower_idempotency::{IdempotencyLayer, MemoryStore, Scope};
///
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// let layer = IdempotencyLayer::new(MemoryStore::new())
///     .scope(|request| request.extensions.get::<Tenant>().map(|tenant| Scope::new(tenant.0.as_str())))
///     .require_key()
///     .wait(Duration::from_secs(5));
/// # let _ = layer;
/// # }
/// ```
// All in one pointer, since axum clones and applies the layers of some routes anew for each request.
pub struct IdempotencyLayer<S> {
    shared: Arc<Shared>,
    store: PhantomData<fn() -> S>,
}

/// The bounds of a lease: a shorter one cannot be renewed in time on a busy machine.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(100)..=DAY;

/// The bounds of a wait.
const WAITS: RangeInclusive<Duration> = Duration::from_millis(1)..=DAY;

/// The shortest retention.
const SHORTEST_RETENTION: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a key header cannot be: these fields mean something else already.
const TAKEN: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
];

impl<S: Store> IdempotencyLayer<S> {
    /// Guards with the default configuration and the given store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { shared: Arc::new(Shared::new(store)), store: PhantomData }
    }
}

/// Which requests are guarded, and by which key.
impl<S> IdempotencyLayer<S> {
    /// Sets the guarded methods. Default: POST and PATCH.
    ///
    /// # Panics
    ///
    /// Panics if the list is empty.
    #[must_use]
    #[track_caller]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<_> = methods.into_iter().collect();
        assert!(!methods.is_empty(), "an idempotency layer needs at least one method to guard");
        self.set(|config| config.methods = methods)
    }

    /// Sets the request header that carries the key. Default: `Idempotency-Key`.
    ///
    /// # Panics
    ///
    /// Panics if the field has another meaning in HTTP, such as `Content-Type` or `Authorization`.
    #[must_use]
    #[track_caller]
    pub fn header(self, name: HeaderName) -> Self {
        assert!(!TAKEN.contains(&name), "{name} cannot carry an idempotency key");
        self.set(|config| config.header = name)
    }

    /// Sets what a key may look like. Default: quoted or bare, at most 255 characters; see [`KeySyntax`].
    #[must_use]
    pub fn key_syntax(self, syntax: KeySyntax) -> Self {
        self.set(|config| config.key_syntax = syntax)
    }

    /// Refuses a guarded method without a key with 400. Default: a request without a key passes through.
    #[must_use]
    pub fn require_key(self) -> Self {
        self.set(|config| config.require_key = true)
    }

    /// Sets whose key it is: a tenant, an account, a user. `None` and the empty scope mean "unknown caller" and are
    /// refused with 401. Default: all requests share one scope, and `Authorization` is part of the fingerprint, so that
    /// another caller's retry is refused as a mismatch.
    ///
    /// Take the scope from what an authentication layer outside of this one has verified, never from what the client
    /// merely claims.
    #[must_use]
    pub fn scope(self, scope: impl Fn(&request::Parts) -> Option<Scope> + Send + Sync + 'static) -> Self {
        self.set(|config| config.scope = Some(ScopeFn(Arc::new(scope))))
    }

    /// Sets what makes two requests the same. Default: method, path and query, `Content-Type` and body, and
    /// `Authorization` while no scope is set; see [`Fingerprinter`].
    #[must_use]
    pub fn fingerprint(self, fingerprinter: Fingerprinter) -> Self {
        self.set(|config| config.fingerprint = fingerprinter)
    }

    /// Sets the longest request body in bytes that is accepted with a key; a longer one is refused with 413. Default:
    /// 1 MiB (1,048,576).
    #[must_use]
    pub fn request_limit(self, bytes: usize) -> Self {
        self.set(|config| config.request_limit = bytes)
    }
}

/// How long a key is held, and what happens at its end.
impl<S> IdempotencyLayer<S> {
    /// Sets how long a claim holds without a sign of life. Default: 30 s.
    ///
    /// It is renewed after each third of it while the handler runs, so it bounds only how long a crash blocks a key. A
    /// short lease risks a second run when a process is stopped or starved for longer than that.
    ///
    /// Set it before cloning the layer: the clones made before keep theirs, and are drained apart.
    ///
    /// # Panics
    ///
    /// Panics if the lease is below 100 ms or above 24 h.
    #[must_use]
    #[track_caller]
    pub fn lease(mut self, term: Duration) -> Self {
        assert!(LEASES.contains(&term), "a lease must be from 100 ms to 24 h, not {term:?}");
        let shared = Arc::make_mut(&mut self.shared);
        (shared.executions, shared.kicker) = Default::default();
        self.set(|config| config.lease = term)
    }

    /// Sets how long an answer is kept, counted from the end of the run; a replay does not extend it. Default: 24 h.
    ///
    /// # Panics
    ///
    /// Panics if the retention is below 1 s. [`Duration::MAX`] means "for ever".
    #[must_use]
    #[track_caller]
    pub fn retention(self, retention: Duration) -> Self {
        assert!(retention >= SHORTEST_RETENTION, "a retention must be at least 1 s, not {retention:?}");
        self.set(|config| config.retention = retention)
    }

    /// Sets what happens to a key whose lease ended without an answer. Default: [`OnAbandoned::Rerun`].
    #[must_use]
    pub fn on_abandoned(self, policy: OnAbandoned) -> Self {
        self.set(|config| config.abandoned = policy)
    }

    /// Lets a retry wait for the answer while the first request runs, at most for this long; then 409. Default: no
    /// wait, 409 at once.
    ///
    /// # Panics
    ///
    /// Panics if the wait is below 1 ms or above 24 h.
    #[must_use]
    #[track_caller]
    pub fn wait(self, longest: Duration) -> Self {
        assert!(WAITS.contains(&longest), "a wait must be from 1 ms to 24 h, not {longest:?}");
        self.set(|config| config.wait = Some(longest))
    }
}

/// What is stored and replayed.
impl<S> IdempotencyLayer<S> {
    /// Sets the longest response body in bytes that is stored. A longer one goes out whole, as a stream, and retries
    /// are told that the request was done. Default: 1 MiB (1,048,576).
    ///
    /// # Panics
    ///
    /// Panics if the limit is above 1 GiB.
    #[must_use]
    #[track_caller]
    pub fn response_limit(self, bytes: usize) -> Self {
        assert!(bytes <= 1 << 30, "a response limit must be at most 1 GiB, not {bytes} bytes");
        self.set(|config| config.response_limit = bytes)
    }

    /// Sets how long a response body may take to end, counted from its first pause, before it counts as a stream that
    /// is not stored. Default: 30 s. Event streams (`text/event-stream`, `multipart/x-mixed-replace`) count as
    /// streams at once.
    ///
    /// # Panics
    ///
    /// Panics if the time is zero.
    #[must_use]
    #[track_caller]
    pub fn response_time(self, longest: Duration) -> Self {
        assert!(!longest.is_zero(), "a response needs some time");
        self.set(|config| config.response_time = longest)
    }

    /// Sets which responses are stored; for the others the key is released, so that a retry runs. Default: all but
    /// 307, 308, 425, 429 and 503. A response marked with [`NothingExecuted`](crate::NothingExecuted) is never stored.
    #[must_use]
    pub fn store_when(self, predicate: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|config| config.store_when = Some(ResponseIs(Arc::new(predicate))))
    }

    /// Replays `Set-Cookie` too. Default: `Set-Cookie` is neither stored nor replayed.
    #[must_use]
    pub fn replay_set_cookie(self) -> Self {
        self.set(|config| config.not_replayed.retain(|name| name != header::SET_COOKIE))
    }

    /// Leaves one more response header out of the record and the replay. Default: `Set-Cookie` is left out, and always
    /// the connection-specific fields of RFC 9110 section 7.6.1 and `Date`.
    #[must_use]
    pub fn never_replay(self, name: HeaderName) -> Self {
        self.set(|config| config.not_replayed.push(name))
    }
}

/// What commits together.
impl<S: TransactionalStore> IdempotencyLayer<S> {
    /// Commits what a handler writes into the store's database together with the completion of its key, or neither.
    /// Default: the handler's writes are its own matter.
    ///
    /// The handler takes the transaction out of the extensions of its request; how, the documentation of the store says.
    /// It is committed when the whole response is there, before the answer goes out, if the response is one that is
    /// stored and that [`commit_when`](Self::commit_when) lets through. Otherwise (another response, an error, a panic,
    /// a body that breaks off) it is rolled back, and the key ends as it does without a transaction.
    ///
    /// If the commit fails, nothing stands, and the client gets [`NotCommitted`](Rejection::NotCommitted) (503) instead of
    /// the answer; a retry runs the handler as if this run had not been. So what a handler does beside the transaction,
    /// such as a call of a payment gateway, needs a key of its own there. If it is not known whether the commit failed,
    /// the store finds out, and a retry gets the answer or runs.
    ///
    /// A run without a record ([`StoreOutage::Proceed`]) finds no transaction.
    ///
    /// ```
    /// # use tower_idempotency::{IdempotencyLayer, store::TransactionalStore};
    /// # fn guard(store: impl TransactionalStore) {
    /// let layer = IdempotencyLayer::new(store).transactional();
    /// # let _ = layer;
    /// # }
    /// ```
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "the type of the store is that of the layer")]
    pub fn transactional(mut self) -> Self {
        let shared = Arc::make_mut(&mut self.shared);
        let store = Arc::clone(&shared.concrete).downcast::<S>().expect("a layer names the type of its store");
        shared.transactions = Some(store);
        self
    }

    /// Sets for which stored responses the transaction of the handler is committed; for the others it is rolled back, and
    /// the response is stored all the same. Default: 2xx and 3xx.
    ///
    /// Without [`transactional`](Self::transactional) there is nothing to commit.
    #[must_use]
    pub fn commit_when(self, predicate: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|config| config.commit_when = Some(ResponseIs(Arc::new(predicate))))
    }
}

/// What happens when the store fails.
impl<S> IdempotencyLayer<S> {
    /// Sets what happens to a request when the store cannot be asked. Default: [`StoreOutage::Refuse`].
    #[must_use]
    pub fn on_outage(self, policy: StoreOutage) -> Self {
        self.set(|config| config.outage = policy)
    }

    /// Sets how long a single call of the store may take. Default: 5 s.
    ///
    /// # Panics
    ///
    /// Panics if the time is zero.
    #[must_use]
    #[track_caller]
    pub fn store_timeout(self, longest: Duration) -> Self {
        assert!(!longest.is_zero(), "a store needs some time");
        self.set(|config| config.store_timeout = longest)
    }
}

/// How our own answers look.
impl<S> IdempotencyLayer<S> {
    /// Follows a common dialect. Default: [`Profile::Default`]. With [`Profile::Ietf`], keys must be quoted whatever the
    /// key syntax.
    #[must_use]
    pub fn profile(self, profile: Profile) -> Self {
        self.set(|config| config.answers.profile = profile)
    }

    /// Sets what `Retry-After` advises, in whole seconds, while a request is in flight (never beyond the rest of its
    /// lease) and while the store is down. Default: 1 s.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        self.set(|config| config.retry_after = seconds)
    }

    /// Sets the challenge that a 401 for an unknown caller carries in `WWW-Authenticate` (RFC 9110 section 15.5.2 demands
    /// one). Default: `Bearer`.
    #[must_use]
    pub fn challenge(self, challenge: HeaderValue) -> Self {
        self.set(|config| config.answers.challenge = challenge)
    }

    /// Puts `Link: <URL>; rel="describedby"` on our answers with 400, 409 and 422. Default: no link.
    ///
    /// # Panics
    ///
    /// Panics if the URL has bytes that do not belong into a URL: anything but visible ASCII, or `<`, `>`, `"`.
    #[must_use]
    #[track_caller]
    pub fn documentation(self, url: &str) -> Self {
        let link = format!("<{url}>; rel=\"describedby\"; type=\"text/html\"");
        let link = HeaderValue::try_from(link).ok().filter(|_| is_uri(url));
        let link = link.unwrap_or_else(|| panic!("{url:?} is not a URL for a documentation link"));
        self.set(|config| config.answers.link = Some(link))
    }

    /// Sets the start of the problem types; the name of the problem, such as `key-missing`, is appended. Default:
    /// `urn:tower-idempotency:problem:`.
    ///
    /// # Panics
    ///
    /// Panics if the text has bytes that do not belong into a URI.
    #[must_use]
    #[track_caller]
    pub fn problem_types(self, base: &str) -> Self {
        assert!(is_uri(base), "{base:?} is not the start of a URI");
        self.set(|config| config.answers.type_base = base.into())
    }

    /// Replaces or changes our own answers. The function gets the reason and the answer that would be sent. Default:
    /// no change.
    #[must_use]
    pub fn answer_with(
        self,
        customize: impl Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.set(|config| config.answers.customize = Some(Customize(Arc::new(customize))))
    }

    /// Sets how many runs may be under way at a time, those whose client has gone included. A request beyond it is
    /// answered with 503 and runs nothing; replays go on. Default: no limit.
    ///
    /// A limit outside of the layer does not bound the runs, since a run whose client has gone goes on.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0 or above [`Semaphore::MAX_PERMITS`].
    #[must_use]
    #[track_caller]
    pub fn max_runs(self, runs: usize) -> Self {
        assert!((1..=Semaphore::MAX_PERMITS).contains(&runs), "a layer needs at least one run, not {runs}");
        self.set(|config| config.max_runs = Some(Arc::new(Semaphore::new(runs))))
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut Arc::make_mut(&mut self.shared).config);
        self
    }
}

/// Tells whether a text has no byte that cannot stand in a URI (RFC 3986 section 2).
fn is_uri(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>\"\\^`{|}".contains(&byte))
}

impl<S: Store, Inner> Layer<Inner> for IdempotencyLayer<S> {
    type Service = Idempotency<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Idempotency::new(inner, Arc::clone(&self.shared))
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), store: PhantomData }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("store", &self.shared.store)
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}
