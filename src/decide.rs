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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;
    use crate::Verdict;

    const FINGERPRINT: [u8; 32] = [1; 32];

    fn existing(token: Token, fingerprint: [u8; 32], state: State) -> Claim {
        Claim::Existing(Record::new(token, Fingerprint::from_bytes(fingerprint), 3, state))
    }

    fn states() -> [State; 4] {
        [
            State::InFlight { lease_left: Duration::from_secs(9) },
            State::Abandoned { since: Duration::from_secs(1) },
            State::Completed(StoredResponse::not_replayable(StatusCode::CREATED)),
            State::Completed(StoredResponse::of(&http::Response::default())),
        ]
    }

    fn policies() -> [Config; 5] {
        let waiting = Config { wait: Some(Duration::from_secs(1)), ..Config::default() };
        let with = |abandoned| Config { abandoned, ..Config::default() };
        let asking = OnAbandoned::ask(|_| async { Verdict::Rerun });
        [Config::default(), waiting, with(OnAbandoned::Rerun), with(OnAbandoned::Refuse), with(asking)]
    }

    fn decided(claim: Claim, own: Token, config: &Config) -> Decision {
        decide(claim, own, Fingerprint::from_bytes(FINGERPRINT), config)
    }

    #[test]
    fn an_acquired_record_is_run() {
        for config in policies() {
            assert_eq!(decided(Claim::Acquired { attempt: 7 }, Token::random(), &config), Decision::Run { attempt: 7 });
        }
    }

    #[test]
    fn another_fingerprint_is_a_mismatch_in_every_state_and_under_every_policy() {
        for config in policies() {
            for state in states() {
                let own = Token::random();
                for token in [own, Token::random()] {
                    let claim = existing(token, [2; 32], state.clone());
                    assert_eq!(decided(claim, own, &config), Decision::Refuse(Rejection::Mismatch), "{state:?}");
                }
            }
        }
    }

    #[test]
    fn a_completed_record_is_replayed_or_said_to_be_done() {
        let [_, _, done, whole] = states();
        for config in policies() {
            let claim = |state: &State| existing(Token::random(), FINGERPRINT, state.clone());
            let refusal = Rejection::NotReplayable { status: StatusCode::CREATED };
            assert_eq!(decided(claim(&done), Token::random(), &config), Decision::Refuse(refusal));
            assert!(matches!(decided(claim(&whole), Token::random(), &config), Decision::Replay(_)));
        }
    }

    #[test]
    fn a_claim_whose_answer_got_lost_is_recognized_by_its_token() {
        let [in_flight, abandoned, ..] = states();
        let own = Token::random();
        for config in policies() {
            let claim = existing(own, FINGERPRINT, in_flight.clone());
            assert_eq!(decided(claim, own, &config), Decision::Run { attempt: 3 });
            let claim = existing(own, FINGERPRINT, abandoned.clone());
            assert_eq!(decided(claim, own, &config), Decision::TakeOver { previous: own });
        }
    }

    #[test]
    fn retry_after_never_goes_beyond_the_rest_of_the_lease() {
        for (advice, left_ms, expected) in [(1, 9000, 1), (60, 9000, 9), (60, 9999, 9), (1, 999, 0)] {
            let config = Config { retry_after: advice, ..Config::default() };
            let state = State::InFlight { lease_left: Duration::from_millis(left_ms) };
            let refusal = Rejection::InFlight { retry_after: expected };
            let claim = existing(Token::random(), FINGERPRINT, state);
            assert_eq!(decided(claim, Token::random(), &config), Decision::Refuse(refusal));
        }
    }

    #[test]
    fn a_request_waits_for_the_owner_where_that_is_wanted() {
        let [_, waiting, ..] = policies();
        let owner = Token::random();
        let claim = existing(owner, FINGERPRINT, states()[0].clone());
        assert_eq!(decided(claim, Token::random(), &waiting), Decision::Wait { owner, retry_after: 1 });
    }

    #[test]
    fn an_abandoned_record_is_taken_over_unless_the_outcome_must_be_settled() {
        let [_, _, rerun, refuse, ask] = policies();
        let previous = Token::random();
        let claim = || existing(previous, FINGERPRINT, states()[1].clone());
        for config in [rerun, ask] {
            assert_eq!(decided(claim(), Token::random(), &config), Decision::TakeOver { previous });
        }
        assert_eq!(decided(claim(), Token::random(), &refuse), Decision::Refuse(Rejection::OutcomeUnknown));
    }
}
