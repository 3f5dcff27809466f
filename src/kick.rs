//! Wakes runtimes up, so that their timers run although a task blocks a thread.
//!
//! The thread of a multi-thread runtime that watches timers and sockets also runs tasks. While a task blocks it, and
//! nothing else happens, the idle threads sleep, and no timer runs. A task that comes from outside wakes one of them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::runtime::Handle;

/// The runtimes to wake up, and whether a thread does it.
#[derive(Debug, Default)]
pub(crate) struct Kicker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    runtimes: Vec<Handle>,
    running: bool,
}

impl Kicker {
    /// Wakes this runtime up about every `interval`, until the result is dropped.
    pub(crate) fn kick(self: &Arc<Self>, interval: Duration) -> Kicked {
        let runtime = Handle::current();
        let id = runtime.id();
        let mut state = self.lock();
        state.runtimes.push(runtime);
        if !state.running {
            let kicker = Arc::clone(self);
            let thread = thread::Builder::new().name("idempotency-kick".to_owned());
            // Without a thread to be had, leases are renewed as well as the runtime's own timers go.
            state.running = thread.spawn(move || kicker.run(interval)).is_ok();
        }
        drop(state);
        Kicked { kicker: Arc::clone(self), id }
    }

    fn run(&self, interval: Duration) {
        loop {
            thread::sleep(interval);
            let runtimes = {
                let mut state = self.lock();
                if state.runtimes.is_empty() {
                    state.running = false;
                    return;
                }
                state.runtimes.clone()
            };
            for runtime in runtimes {
                runtime.spawn(async {});
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for a runtime that is being woken up.
#[derive(Debug)]
pub(crate) struct Kicked {
    kicker: Arc<Kicker>,
    id: tokio::runtime::Id,
}

impl Drop for Kicked {
    fn drop(&mut self) {
        let mut state = self.kicker.lock();
        let place = state.runtimes.iter().position(|runtime| runtime.id() == self.id);
        let gone = place.map(|place| state.runtimes.swap_remove(place));
        drop(state);
        // Without the lock, since the last handle of a runtime takes with it what was left on it.
        drop(gone);
    }
}
