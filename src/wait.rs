//! Waits for the owner of a key: woken if it is in this process, polling with growing pauses if not.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    shared::Shared,
    store::{RecordId, State, Token},
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits until the record may not be in flight under `owner` any more. Returns at `deadline` at the latest.
pub(crate) async fn for_owner(shared: &Shared, id: &RecordId, owner: Token, deadline: Instant) {
    match shared.executions.watch(owner) {
        Some(ended) => {
            let _ = timeout_at(deadline, ended).await;
        }
        None => poll(shared, id, owner, deadline).await,
    }
}

async fn poll(shared: &Shared, id: &RecordId, owner: Token, deadline: Instant) {
    let mut pause = FIRST_PAUSE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        sleep(jittered(pause).min(left)).await;
        match shared.bounded(shared.store.lookup(id)).await {
            Ok(Some(record)) if record.token == owner && matches!(record.state, State::InFlight { .. }) => {}
            // The store may recover before the deadline.
            Err(error) if error.is_unavailable() => {}
            Ok(_) | Err(_) => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Spreads waiters that started together: three to five quarters of the pause.
fn jittered(pause: Duration) -> Duration {
    let random = u32::from(Token::random().as_uuid().as_bytes()[0]);
    pause * (384 + random) / 512
}
