//! The command line.

use std::time::Duration;

use clap::Parser;
use tower_idempotency::Profile;

/// A small payments API in which a charge can be retried without charging twice.
#[derive(Debug, Parser)]
#[command(name = "payments")]
pub(crate) struct Options {
    /// Where to listen; port 0 takes a free port.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3000")]
    pub(crate) listen: String,

    /// Where idempotency keys and charges are kept: `memory:`, or `postgres://USER:PASSWORD@HOST:PORT/DATABASE` (built
    /// with `--features postgres`).
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) store: String,

    /// How many connections to PostgreSQL are open at most (1 to 1000).
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pool: u32,

    /// With PostgreSQL: write a charge in a statement of its own, not in one transaction with the answer of its key. A
    /// crash between the two is then a second charge.
    #[arg(long)]
    pub(crate) plain: bool,

    /// Which dialect the answers about keys follow: `default`, `ietf` (keys in double quotes, 422 for a key sent with
    /// other content) or `stripe` (Stripe's error object in each answer).
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) profile: Profile,

    /// Refuse a charge without a key.
    #[arg(long)]
    pub(crate) require_key: bool,

    /// How long a charge takes, in milliseconds (0 to 24 h).
    #[arg(long, value_name = "N", default_value = "0", value_parser = |n: &str| millis(n, 0), allow_negative_numbers = true)]
    pub(crate) delay_ms: Duration,

    /// How long a crash blocks a key, in milliseconds (100 ms to 24 h) [default: 30000].
    #[arg(long, value_name = "N", value_parser = |n: &str| millis(n, 100), allow_negative_numbers = true)]
    pub(crate) lease_ms: Option<Duration>,

    /// How long a retry waits while the first request runs, in milliseconds (1 ms to 24 h) [default: 409 at once].
    #[arg(long, value_name = "N", value_parser = |n: &str| millis(n, 1), allow_negative_numbers = true)]
    pub(crate) wait_ms: Option<Duration>,
}

/// A day in milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1000;

fn millis(text: &str, least: u64) -> Result<Duration, String> {
    let valid = text.parse().ok().filter(|millis| (least..=DAY).contains(millis));
    valid
        .map(Duration::from_millis)
        .ok_or_else(|| format!("must be a whole number of milliseconds from {least} to {DAY}, such as 1000"))
}
