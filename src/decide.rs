//! What the outcome of a claim means for the request that made it. Pure: no clock, no store, no HTTP.

use crate::{
    Fingerprint, StoredResponse,
    config::{Config, OnAbandoned},
    reject::Rejection,
    store::{Claim, Record, State, Token},
};

/// What a request does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It owns the record: it runs the handler.
    Run { attempt: u32 },
    /// It answers from the record.
    Replay(StoredResponse),
    /// It is refused.
    Refuse(Rejection),
    /// It waits for the owner, then claims again; a refusal after that names `retry_after` in whole seconds.
    Wait { owner: Token, retry_after: u64 },
    /// It claims again, and may replace the abandoned claim of `previous`.
    TakeOver { previous: Token },
}

/// Decides. The fingerprint is compared before the state is looked at, so that a mismatch is one at any time.
pub(crate) fn decide(claim: Claim, own: Token, fingerprint: Fingerprint, config: &Config) -> Decision {
    match claim {
        Claim::Acquired { attempt } => Decision::Run { attempt },
        Claim::Existing(record) if record.fingerprint != fingerprint => Decision::Refuse(Rejection::Mismatch),
        Claim::Existing(Record { token, attempt, state, .. }) => match state {
            // The claim was made, but its answer got lost on the way.
            State::InFlight { .. } if token == own => Decision::Run { attempt },
            State::InFlight { lease_left } => {
                let retry_after = config.retry_after.min(lease_left.as_secs());
                match config.wait {
                    Some(_) => Decision::Wait { owner: token, retry_after },
                    None => Decision::Refuse(Rejection::InFlight { retry_after }),
                }
            }
            State::Abandoned { .. } => match config.abandoned {
                OnAbandoned::Refuse if token != own => Decision::Refuse(Rejection::OutcomeUnknown),
                OnAbandoned::Rerun | OnAbandoned::Ask(_) | OnAbandoned::Refuse => {
                    Decision::TakeOver { previous: token }
                }
            },
            State::Completed(response) if response.is_replayable() => Decision::Replay(response),
            State::Completed(response) => Decision::Refuse(Rejection::NotReplayable { status: response.status() }),
        },
    }
}
