//! Claims the record of a request, waiting for its owner if that is wanted.

use std::{future::Future, sync::Arc};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    Rejection, StoredResponse,
    config::StoreOutage,
    decide::{Decision, decide},
    executions::Execution,
    obligation::Obligation,
    renew, settle,
    shared::Shared,
    store::{Claim, Fenced, NewClaim, RecordId, State, StoreError, Token},
    wait,
};

/// What a request got when it asked for its record.
pub(crate) enum Acquired {
    Owner(Execution, u32),
    Replay(StoredResponse),
    Refused(Rejection),
    /// The store cannot be asked, and the request runs all the same.
    Unprotected(Execution),
    /// The same record was claimed for this very request by a layer of this kind around this one.
    Outside,
}

/// How often a claim follows abandoned claims that others replace first, before the store is taken for broken.
const TAKEOVERS: u32 = 64;

/// How often a claim is confirmed whose answers are late, before the store is taken for unusable.
const CONFIRMATIONS: u32 = 3;

/// Claims the record; waits for its owner if that is wanted. `outside` is the claim of a layer around this one.
#[expect(clippy::manual_async_fn, reason = "the future of an async function is larger; see `guard`")]
pub(crate) fn acquire(
    shared: &Arc<Shared>,
    id: &RecordId,
    claim: NewClaim,
    outside: Option<Token>,
    obligation: &Obligation,
) -> impl Future<Output = Acquired> {
    async move {
        let execution = shared.executions.enter(claim.token);
        match ask(shared, id, &claim, execution, outside, obligation).await {
            Asked::Acquired(acquired) => acquired,
            // Boxed, since most requests meet nobody.
            Asked::Contended(execution, contender) => {
                Box::pin(contend(shared, id, claim, execution, contender, outside, obligation)).await
            }
        }
    }
}

/// What one claim came to.
enum Asked {
    Acquired(Acquired),
    Contended(Execution, Contender),
}

/// Who stands in the way.
enum Contender {
    /// An owner at work. A refusal names `retry_after`.
    Owner { token: Token, retry_after: u64 },
    /// A claim that was abandoned.
    Abandoned { token: Token },
    /// Somebody who took our claim over before we knew that it was ours.
    Successor,
}

/// Sends one claim.
#[expect(clippy::manual_async_fn, reason = "the future of an async function is larger; see `guard`")]
fn ask(
    shared: &Arc<Shared>,
    id: &RecordId,
    claim: &NewClaim,
    mut execution: Execution,
    outside: Option<Token>,
    obligation: &Obligation,
) -> impl Future<Output = Asked> {
    async move {
        let config = &shared.config;
        // From here on the claim may stand, so that a dropped future has to find out and go on.
        obligation.set(true);
        let sent = Instant::now();
        let decision = match shared.bounded(shared.store.claim(id, claim)).await {
            Ok(Claim::Existing(record)) if Some(record.token) == outside => {
                obligation.set(false);
                return Asked::Acquired(Acquired::Outside);
            }
            Ok(outcome) => {
                let outcome = seen_from_here(shared, outcome, claim.token);
                decide(outcome, claim.token, claim.fingerprint, config)
            }
            Err(error) => {
                return Asked::Acquired(outage(shared, id, execution, claim, &error));
            }
        };
        let contender = match decision {
            Decision::Run { attempt } => {
                let mut since = sent;
                if sent.elapsed() >= config.lease / renew::PART {
                    // Boxed, since it is rare.
                    match Box::pin(confirm(shared, id, claim)).await {
                        Ok(Some(confirmed)) => since = confirmed,
                        Ok(None) => return Asked::Contended(execution, Contender::Successor),
                        Err(error) => return Asked::Acquired(outage(shared, id, execution, claim, &error)),
                    }
                }
                let renew_at = Some(since + config.lease / renew::PART);
                if !execution.hold(id.clone(), claim.lease, Handle::current().id(), renew_at) {
                    // Boxed, since it is rare.
                    Box::pin(renew::start(shared)).await;
                }
                return Asked::Acquired(Acquired::Owner(execution, attempt));
            }
            Decision::Replay(response) => return Asked::Acquired(Acquired::Replay(response)),
            Decision::Refuse(rejection) => return Asked::Acquired(Acquired::Refused(rejection)),
            Decision::Wait { owner, retry_after } => Contender::Owner { token: owner, retry_after },
            Decision::TakeOver { previous } => Contender::Abandoned { token: previous },
        };
        Asked::Contended(execution, contender)
    }
}

/// Goes on claiming, after each contender is gone.
async fn contend(
    shared: &Arc<Shared>,
    id: &RecordId,
    mut claim: NewClaim,
    mut execution: Execution,
    mut contender: Contender,
    outside: Option<Token>,
    obligation: &Obligation,
) -> Acquired {
    let config = &shared.config;
    let deadline = config.wait.map(|wait| Instant::now() + wait);
    let mut takeovers = 0;
    while takeovers < TAKEOVERS {
        takeovers += u32::from(!matches!(contender, Contender::Owner { .. }));
        match contender {
            Contender::Abandoned { token } => claim.replaces = Some(token),
            // The next claim finds out who it is.
            Contender::Successor => {}
            Contender::Owner { token, retry_after } => {
                drop(execution);
                obligation.set(false);
                match deadline {
                    Some(deadline) if deadline > Instant::now() => wait::for_owner(shared, id, token, deadline).await,
                    Some(_) | None => return Acquired::Refused(Rejection::InFlight { retry_after }),
                }
                execution = shared.executions.enter(claim.token);
            }
        }
        match ask(shared, id, &claim, execution, outside, obligation).await {
            Asked::Acquired(acquired) => return acquired,
            Asked::Contended(same, next) => (execution, contender) = (same, next),
        }
    }
    Acquired::Refused(Rejection::StoreUnavailable { retry_after: config.retry_after })
}

/// Takes an abandoned record for in flight if its run is alive in this process: only its renewal failed.
fn seen_from_here(shared: &Shared, outcome: Claim, own: Token) -> Claim {
    match outcome {
        Claim::Existing(mut record)
            if matches!(record.state, State::Abandoned { .. })
                && record.token != own
                && shared.executions.holds(record.token) =>
        {
            record.state = State::InFlight { lease_left: shared.config.lease };
            Claim::Existing(record)
        }
        outcome => outcome,
    }
}

/// Renews a claim whose answer took long: it may have been taken over since. Returns since when the lease runs at the
/// latest, or `None` if the claim is lost.
async fn confirm(shared: &Shared, id: &RecordId, claim: &NewClaim) -> Result<Option<Instant>, StoreError> {
    for _ in 0..CONFIRMATIONS {
        let sent = Instant::now();
        let renewed = shared.bounded(shared.store.renew(id, claim.token, claim.lease)).await?;
        if renewed == Fenced::Lost {
            return Ok(None);
        }
        if sent.elapsed() < claim.lease.term / renew::PART {
            return Ok(Some(sent));
        }
    }
    Err(StoreError::unavailable("its answers take longer than the lease allows"))
}

/// Makes the best of a claim that failed. What it may have written all the same is freed.
fn outage(shared: &Arc<Shared>, id: &RecordId, execution: Execution, claim: &NewClaim, error: &StoreError) -> Acquired {
    if error.is_unavailable() {
        settle::give_back(shared, id, execution, claim.replaces.is_some());
    }
    let retry_after = shared.config.retry_after;
    match shared.config.outage {
        _ if error.is_damaged() => Acquired::Refused(Rejection::RecordDamaged),
        StoreOutage::Proceed => Acquired::Unprotected(shared.executions.enter(Token::random())),
        StoreOutage::Refuse if error.is_full() => Acquired::Refused(Rejection::StoreFull { retry_after }),
        StoreOutage::Refuse => Acquired::Refused(Rejection::StoreUnavailable { retry_after }),
    }
}
