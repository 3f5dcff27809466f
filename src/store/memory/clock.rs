//! The clock of a memory store: nanoseconds since the store was made.

use std::time::Duration;

use tokio::time::Instant;

/// A moment, in nanoseconds since the store was made.
pub(super) type Moment = u64;

/// Later than every moment: what a shard without records publishes as its earliest expiry.
pub(super) const NEVER: Moment = u64::MAX;

/// The latest moment, 584 years on: where durations that are too long end.
const FOR_EVER: Moment = NEVER - 1;

/// Reads the monotonic clock of this process, which Tokio's tests can pause.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(super) fn now(&self) -> Moment {
        nanos(self.start.elapsed())
    }
}

/// Returns the moment `duration` after `moment`, [`FOR_EVER`] at the latest.
pub(super) fn after(moment: Moment, duration: Duration) -> Moment {
    moment.saturating_add(nanos(duration)).min(FOR_EVER)
}

/// Returns how long it is from `earlier` to `later`, zero if the order is the other one.
pub(super) fn between(earlier: Moment, later: Moment) -> Duration {
    Duration::from_nanos(later.saturating_sub(earlier))
}

fn nanos(duration: Duration) -> Moment {
    // Not `as_nanos`: 128-bit arithmetic is slower, and every claim comes through here.
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_too_long_ends_at_the_latest_moment() {
        assert_eq!(after(5, Duration::from_nanos(7)), 12);
        for long in [Duration::MAX, Duration::from_secs(u64::MAX / 1_000_000_000), Duration::from_nanos(u64::MAX)] {
            assert_eq!(after(u64::MAX / 2, long), FOR_EVER);
        }
        assert_eq!(after(FOR_EVER, Duration::ZERO), FOR_EVER);
    }

    #[test]
    fn the_time_between_two_moments_is_never_negative() {
        assert_eq!(between(3, 10), Duration::from_nanos(7));
        assert_eq!(between(10, 3), Duration::ZERO);
    }
}
