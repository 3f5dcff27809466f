//! Whether a guarded future must run to its end.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells the holder of a guarded future whether it must run to its end, even if nobody waits for it: a claim may stand.
#[derive(Debug, Default)]
pub(crate) struct Obligation(AtomicBool);

impl Obligation {
    pub(crate) fn stands(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, stands: bool) {
        self.0.store(stands, Ordering::Release);
    }
}
