//! The command line.

use std::time::Duration;

use clap::{Parser, value_parser};
use tower_idempotency::Profile;

/// A small payments API in which a charge can be retried without charging twice.
#[derive(Debug, Parser)]
#[command(name = "payments")]
pub(crate) struct Options {
    /// Where to listen; port 0 takes a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    pub(crate) listen: String,

    /// Where idempotency keys are kept: `memory:`.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) store: String,

    /// Which dialect the answers about keys follow: `default`, `ietf` (keys in double quotes, 422 for a key sent with
    /// other content) or `stripe` (Stripe's error object in each answer).
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) profile: Profile,

    /// Refuse a charge without a key.
    #[arg(long)]
    pub(crate) require_key: bool,

    /// How long a charge takes, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 0)]
    delay_ms: u64,

    /// How long a crash blocks a key, in milliseconds (1 ms to 24 h) [default: 30000].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=DAY))]
    lease_ms: Option<u64>,

    /// How long a retry waits while the first request runs, in milliseconds (1 ms to 24 h) [default: 409 at once].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=DAY))]
    wait_ms: Option<u64>,
}

/// A day in milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1000;

impl Options {
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms)
    }

    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease_ms.map(Duration::from_millis)
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait_ms.map(Duration::from_millis)
    }
}
