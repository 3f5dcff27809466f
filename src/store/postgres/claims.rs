//! Claims in groups.

use sqlx::{Postgres, pool::PoolConnection, postgres::PgRow};
use uuid::Uuid;

use super::{
    execute::Value,
    record::{Found, column, micros, read},
    table::{NOT_IN_TIME, TRIES, Table, identities, no_limit},
};
use crate::store::{
    Claim, NewClaim, RecordId, StoreError,
    group::{Failure, Grouped, Ran},
};

#[derive(Debug)]
pub(super) struct ClaimCall {
    pub(super) id: RecordId,
    pub(super) claim: NewClaim,
}

/// The claims of one table.
#[derive(Debug)]
pub(super) struct Claims(pub(super) Table);

impl Grouped for Claims {
    type Call = ClaimCall;
    type Answer = Claim;
    type Connection = PoolConnection<Postgres>;

    fn id(call: &ClaimCall) -> &RecordId {
        &call.id
    }

    fn bytes(call: &ClaimCall) -> usize {
        call.id.scope().as_str().len() + call.id.key().as_str().len()
    }

    async fn connect(&self) -> Result<Self::Connection, Failure> {
        self.0.connect().await
    }

    async fn run(&self, connection: Self::Connection, calls: &[ClaimCall]) -> Ran<Self::Connection, Claim> {
        let (mut connection, rows) = self.0.group(connection, &self.0.statements.claim, calls, claims).await;
        let mut results = Vec::with_capacity(calls.len());
        for (call, row) in calls.iter().zip(rows) {
            results.push(match row.and_then(outcome) {
                Ok(Some(outcome)) => Ok(outcome),
                Ok(None) => self.stubborn(&mut connection, call).await,
                Err(error) => Err(error),
            });
        }
        (connection, results)
    }
}

/// Reads what became of a claim; `None` if its record came or went at this moment, or its time is over.
fn outcome(row: Option<PgRow>) -> Result<Option<Claim>, StoreError> {
    let row = row.ok_or_else(|| StoreError::unavailable("a claim has no row"))?;
    if column::<bool>(&row, 1)? {
        return Ok(Some(Claim::Acquired { attempt: 1 }));
    }
    Ok(match read(&row, 2)? {
        Some(Found::Live(record)) => Some(Claim::Existing(record)),
        Some(Found::Expired) | None => None,
    })
}

impl Claims {
    /// Claims one record that is not as it was expected.
    async fn stubborn(
        &self,
        connection: &mut Option<PoolConnection<Postgres>>,
        call: &ClaimCall,
    ) -> Result<Claim, StoreError> {
        match connection {
            Some(connection) => self.0.take_over(connection, &call.id, &call.claim).await,
            None => Err(StoreError::unavailable(NOT_IN_TIME)),
        }
    }
}

impl Table {
    /// Claims one record with a statement of its own, which replaces what is expired or abandoned.
    pub(super) async fn take_over(
        &self,
        connection: &mut sqlx::PgConnection,
        id: &RecordId,
        claim: &NewClaim,
    ) -> Result<Claim, StoreError> {
        let call = ClaimCall { id: id.clone(), claim: claim.clone() };
        let mut values = values(std::slice::from_ref(&call));
        // No token is nil, so that it replaces nothing.
        values.push(Value::Uuids(vec![claim.replaces.map_or(Uuid::nil(), |token| *token.as_uuid())]));
        for _ in 0..TRIES {
            let rows = self.fetch(connection, &self.statements.take_over, &values).await;
            let rows = rows.map_err(|error| self.failed(error))?;
            let row = rows.first().ok_or_else(|| StoreError::unavailable("a claim has no row"))?;
            if let Some(attempt) = column::<Option<i32>>(row, 0)? {
                return Ok(Claim::Acquired { attempt: attempt.unsigned_abs() });
            }
            if let Some(Found::Live(record)) = read(row, 1)? {
                return Ok(Claim::Existing(record));
            }
        }
        Err(StoreError::unavailable("the record came and went each time it was claimed"))
    }
}

fn claims(calls: &[ClaimCall]) -> Vec<Value<'_>> {
    let mut values = values(calls);
    values.push(no_limit());
    values
}

fn values(calls: &[ClaimCall]) -> Vec<Value<'_>> {
    let [scopes, keys] = identities(calls.iter().map(|call| &call.id));
    let lease = |call: &ClaimCall| call.claim.lease;
    vec![
        scopes,
        keys,
        Value::Uuids(calls.iter().map(|call| *call.claim.token.as_uuid()).collect()),
        Value::Blobs(calls.iter().map(|call| &call.claim.fingerprint.as_bytes()[..]).collect()),
        Value::Integers(calls.iter().map(|call| micros(lease(call).term)).collect()),
        Value::Integers(
            calls.iter().map(|call| micros(lease(call).term.saturating_add(lease(call).unsettled))).collect(),
        ),
        Value::Integers(calls.iter().map(|call| micros(lease(call).unsettled)).collect()),
    ]
}
