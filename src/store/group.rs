//! Lets calls that arrive while a statement is under way travel together in the next one.

use std::{
    collections::{HashSet, VecDeque},
    error::Error as StdError,
    fmt,
    future::Future,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Semaphore, oneshot};

use super::{RecordId, StoreError};

/// How many calls of a kind wait at most; more wait for room.
const QUEUE: usize = 4096;

/// The most calls of one statement. Larger groups gain nothing, and hold more if they fail.
const MOST_CALLS: usize = 256;

/// The most bytes of one statement, beyond its first call.
const MOST_BYTES: usize = 1 << 20;

/// A kind of call that can travel in groups.
pub(crate) trait Grouped: Send + Sync + 'static {
    /// What a caller asks for.
    type Call: Send + Sync + 'static;
    /// What it gets.
    type Answer: Send + 'static;
    /// What a statement runs on.
    type Connection: Send + 'static;

    /// Names the record of a call: a group holds one call a record, and is ordered by record.
    fn id(call: &Self::Call) -> &RecordId;

    /// Returns about how many bytes a call adds to a statement.
    fn bytes(call: &Self::Call) -> usize;

    /// Takes a connection.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Runs a group. Each call gets an answer of its own, in the order of the calls; `None` gives the connection up.
    fn run(
        &self,
        connection: Self::Connection,
        calls: &[Self::Call],
    ) -> impl Future<Output = Ran<Self::Connection, Self::Answer>> + Send;
}

/// The connection, if it can be used again, and what became of each call.
pub(crate) type Ran<Connection, Answer> = (Option<Connection>, Vec<Result<Answer, StoreError>>);

/// A cause that several calls share.
#[derive(Debug, Clone)]
pub(crate) struct Failure(Arc<dyn StdError + Send + Sync>);

impl Failure {
    pub(crate) fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Arc::from(cause.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// The calls of one kind: at most one statement of them is under way, and what arrives meanwhile goes into the next.
///
/// One at a time, since fewer and larger groups are faster than several small ones side by side.
pub(crate) struct Lane<G: Grouped> {
    shared: Arc<Shared<G>>,
}

struct Shared<G: Grouped> {
    grouped: G,
    queue: Mutex<Queue<G>>,
    room: Semaphore,
}

struct Queue<G: Grouped> {
    waiting: VecDeque<Waiting<G>>,
    /// Whether a task runs statements.
    running: bool,
}

struct Waiting<G: Grouped> {
    call: G::Call,
    answer: oneshot::Sender<Result<G::Answer, StoreError>>,
}

impl<G: Grouped> Lane<G> {
    pub(crate) fn new(grouped: G) -> Self {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), running: false });
        Self { shared: Arc::new(Shared { grouped, queue, room: Semaphore::new(QUEUE) }) }
    }

    /// Sends a call with the next statement, at once if none is under way.
    ///
    /// # Cancel safety
    ///
    /// A dropped call is left out if its statement was not sent yet; otherwise it takes its course.
    pub(crate) async fn call(&self, call: G::Call) -> Result<G::Answer, StoreError> {
        let _room = self.shared.room.acquire().await.map_err(StoreError::unavailable)?;
        let (answer, answered) = oneshot::channel();
        if self.shared.enqueue(Waiting { call, answer }) {
            // Not under the lock: a runtime that shuts down drops the task within `spawn`.
            tokio::spawn(Runner { shared: Arc::clone(&self.shared), over: false }.run());
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::unavailable("the runtime that ran the statement ended")))
    }
}

impl<G: Grouped> fmt::Debug for Lane<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue();
        let (waiting, running) = (queue.waiting.len(), queue.running);
        drop(queue);
        f.debug_struct("Lane").field("waiting", &waiting).field("running", &running).finish()
    }
}

impl<G: Grouped> Shared<G> {
    // A panic cannot leave the queue half changed.
    fn queue(&self) -> MutexGuard<'_, Queue<G>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a runner has to be started.
    fn enqueue(&self, waiting: Waiting<G>) -> bool {
        let mut queue = self.queue();
        if queue.waiting.len() >= QUEUE {
            queue.waiting.retain(|waiting| !waiting.answer.is_closed());
        }
        queue.waiting.push_back(waiting);
        !mem::replace(&mut queue.running, true)
    }

    /// Takes the next group, ordered by record; if nobody waits, the runner is over.
    fn next(&self) -> Vec<Waiting<G>> {
        let mut queue = self.queue();
        let mut group: Vec<Waiting<G>> = Vec::new();
        let mut later = VecDeque::new();
        let mut records = HashSet::new();
        let mut bytes = 0;
        while let Some(waiting) = queue.waiting.pop_front() {
            if waiting.answer.is_closed() {
                continue;
            }
            let more = G::bytes(&waiting.call);
            if !group.is_empty() && bytes + more > MOST_BYTES {
                later.push_back(waiting);
                break;
            }
            if !records.insert(G::id(&waiting.call).clone()) {
                later.push_back(waiting);
                continue;
            }
            bytes += more;
            group.push(waiting);
            if group.len() == MOST_CALLS {
                break;
            }
        }
        later.append(&mut queue.waiting);
        queue.waiting = later;
        queue.running = !group.is_empty();
        drop(queue);
        group.sort_unstable_by(|one, other| {
            let (one, other) = (G::id(&one.call), G::id(&other.call));
            (one.scope(), one.key()).cmp(&(other.scope(), other.key()))
        });
        group
    }
}

/// The task that runs the statements of a lane while somebody waits.
struct Runner<G: Grouped> {
    shared: Arc<Shared<G>>,
    over: bool,
}

impl<G: Grouped> Runner<G> {
    async fn run(mut self) {
        let mut free = None;
        loop {
            let connection = match free.take() {
                Some(connection) => Ok(connection),
                None => self.shared.grouped.connect().await,
            };
            // Taken only now, so that what arrives while a connection is waited for goes along.
            let group = self.shared.next();
            if group.is_empty() {
                self.over = true;
                return;
            }
            let (calls, answers): (Vec<_>, Vec<_>) =
                group.into_iter().map(|waiting| (waiting.call, waiting.answer)).unzip();
            let results = match connection {
                Ok(connection) => {
                    let (again, results) = self.shared.grouped.run(connection, &calls).await;
                    free = again;
                    results
                }
                Err(failure) => calls.iter().map(|_| Err(StoreError::unavailable(failure.clone()))).collect(),
            };
            for (answer, result) in answers.into_iter().zip(results) {
                // A caller that is gone needs no answer.
                let _ = answer.send(result);
            }
        }
    }
}

/// If the runtime ends the task, or a statement panics, those who wait are told, and the next call starts anew.
impl<G: Grouped> Drop for Runner<G> {
    fn drop(&mut self) {
        if !self.over {
            let mut queue = self.shared.queue();
            queue.running = false;
            let abandoned = mem::take(&mut queue.waiting);
            // Without the lock, since each wakes its caller.
            drop(queue);
            drop(abandoned);
        }
    }
}
