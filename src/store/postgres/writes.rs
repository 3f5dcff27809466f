//! Completions and renewals in groups.

use std::time::Duration;

use sqlx::{Postgres, pool::PoolConnection, postgres::PgRow};

use super::{
    execute::Value,
    record::micros,
    table::{NOT_IN_TIME, Table, identities, no_limit, owned},
};
use crate::{
    StoredResponse,
    store::{
        Fenced, Lease, RecordId, StoreError, Token,
        group::{Failure, Grouped, Ran},
    },
};

#[derive(Debug)]
pub(super) struct CompleteCall {
    pub(super) id: RecordId,
    pub(super) token: Token,
    pub(super) response: StoredResponse,
    pub(super) retention: Duration,
}

#[derive(Debug)]
pub(super) struct RenewCall {
    pub(super) id: RecordId,
    pub(super) token: Token,
    pub(super) lease: Lease,
}

/// The completions of one table.
#[derive(Debug)]
pub(super) struct Completions(pub(super) Table);

/// The renewals of one table.
#[derive(Debug)]
pub(super) struct Renewals(pub(super) Table);

impl Grouped for Completions {
    type Call = CompleteCall;
    type Answer = Fenced;
    type Connection = PoolConnection<Postgres>;

    fn id(call: &CompleteCall) -> &RecordId {
        &call.id
    }

    fn bytes(call: &CompleteCall) -> usize {
        call.response.as_encoded().len() + call.id.scope().as_str().len() + call.id.key().as_str().len()
    }

    async fn connect(&self) -> Result<Self::Connection, Failure> {
        self.0.connect().await
    }

    async fn run(&self, connection: Self::Connection, calls: &[CompleteCall]) -> Ran<Self::Connection, Fenced> {
        let (mut connection, rows) = self.0.group(connection, &self.0.statements.complete, calls, completion).await;
        let mut results = Vec::with_capacity(calls.len());
        for (call, row) in calls.iter().zip(rows) {
            results.push(match (row, &mut connection) {
                (Ok(Some(_)), _) => Ok(Fenced::Applied),
                (Ok(None), Some(connection)) => self.0.already_completed(connection, &call.id, call.token).await,
                (Ok(None), None) => Err(StoreError::unavailable(NOT_IN_TIME)),
                (Err(error), _) => Err(error),
            });
        }
        (connection, results)
    }
}

impl Grouped for Renewals {
    type Call = RenewCall;
    type Answer = Fenced;
    type Connection = PoolConnection<Postgres>;

    fn id(call: &RenewCall) -> &RecordId {
        &call.id
    }

    fn bytes(call: &RenewCall) -> usize {
        call.id.scope().as_str().len() + call.id.key().as_str().len()
    }

    async fn connect(&self) -> Result<Self::Connection, Failure> {
        self.0.connect().await
    }

    async fn run(&self, connection: Self::Connection, calls: &[RenewCall]) -> Ran<Self::Connection, Fenced> {
        let (connection, rows) = self.0.group(connection, &self.0.statements.renew, calls, renewal).await;
        let fenced = |row: Option<PgRow>| if row.is_some() { Fenced::Applied } else { Fenced::Lost };
        (connection, rows.into_iter().map(|row| row.map(fenced)).collect())
    }
}

impl Table {
    /// Says what a completion means that found no record in flight.
    pub(super) async fn already_completed(
        &self,
        connection: &mut sqlx::PgConnection,
        id: &RecordId,
        token: Token,
    ) -> Result<Fenced, StoreError> {
        let rows = self.fetch(connection, &self.statements.completed, &owned(id, token)).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        Ok(if rows.is_empty() { Fenced::Lost } else { Fenced::Applied })
    }
}

pub(super) fn completion(calls: &[CompleteCall]) -> Vec<Value<'_>> {
    let [scopes, keys] = identities(calls.iter().map(|call| &call.id));
    vec![
        scopes,
        keys,
        Value::Uuids(calls.iter().map(|call| *call.token.as_uuid()).collect()),
        Value::Integers(calls.iter().map(|call| Some(call.response.status().as_u16().into())).collect()),
        Value::Blobs(calls.iter().map(|call| &call.response.as_encoded()[..]).collect()),
        Value::Integers(calls.iter().map(|call| micros(call.retention)).collect()),
        no_limit(),
    ]
}

fn renewal(calls: &[RenewCall]) -> Vec<Value<'_>> {
    let [scopes, keys] = identities(calls.iter().map(|call| &call.id));
    vec![
        scopes,
        keys,
        Value::Uuids(calls.iter().map(|call| *call.token.as_uuid()).collect()),
        Value::Integers(calls.iter().map(|call| micros(call.lease.term)).collect()),
        Value::Integers(
            calls.iter().map(|call| micros(call.lease.term.saturating_add(call.lease.unsettled))).collect(),
        ),
        Value::Integers(calls.iter().map(|call| micros(call.lease.unsettled)).collect()),
        no_limit(),
    ]
}
