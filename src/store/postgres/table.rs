//! One table and the way to it: what every kind of call shares.

use std::{borrow::Cow, sync::Arc, time::Duration};

use sqlx::{Error, PgConnection, PgPool, Postgres, pool::PoolConnection, postgres::PgRow};
use tokio::time::{sleep, timeout};

use super::{
    execute::{Protocol, Value, fetch},
    failure::{Remedy, shared, store_error},
    record::{column, kept_scope},
    schema::{Checked, Schema},
    statements::Statements,
};
use crate::store::{
    RecordId, StoreError, Token,
    group::{Failure, Ran},
};

/// How often a statement is sent that meets serialization failures, deadlocks, or rows that come and go.
pub(super) const TRIES: u32 = 5;

/// The pause before the second try; each further one is as much longer.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a call fails whose statement took too long, or whose connection was given up for one before it.
pub(super) const NOT_IN_TIME: &str = "the database did not answer in time";

#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) pool: PgPool,
    pub(super) schema: Schema,
    pub(super) statements: Statements,
    pub(super) protocol: Protocol,
    pub(super) statement_time: Duration,
    pub(super) checked: Checked,
}

impl Table {
    /// Takes a connection; the first time, the table is checked.
    pub(super) async fn connect(&self) -> Result<PoolConnection<Postgres>, Failure> {
        if !self.checked.has_passed() {
            self.checked.ensure(&self.schema, &self.pool).await.map_err(Failure::new)?;
        }
        self.pool.acquire().await.map_err(|error| shared(&self.schema.name(), error))
    }

    /// Sends a statement, again after a conflict that is nobody's fault.
    pub(super) async fn fetch(
        &self,
        connection: &mut PgConnection,
        statement: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, Error> {
        let mut tries = 1;
        loop {
            match fetch(connection, self.protocol, statement, values).await {
                Err(error) if Remedy::of(&error) == Remedy::Again && tries < TRIES => {
                    sleep(PAUSE * tries).await;
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends a statement about one record on a connection of its own.
    pub(super) async fn single(&self, statement: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<PgRow>, StoreError> {
        let mut connection = self.connect().await.map_err(StoreError::unavailable)?;
        let rows = self.fetch(&mut connection, statement, values).await;
        rows.map_err(|error| self.failed(error))
    }

    pub(super) fn failed(&self, error: Error) -> StoreError {
        store_error(&self.schema.name(), error)
    }

    /// Sends a statement for a group. If it fails because of one member, each is sent alone.
    ///
    /// Returns for each member its row, if it has one, or its failure. The first column of a row is its member's number.
    pub(super) async fn group<'a, C>(
        &self,
        connection: PoolConnection<Postgres>,
        statement: &Arc<str>,
        calls: &'a [C],
        values: impl Fn(&'a [C]) -> Vec<Value<'a>>,
    ) -> Ran<PoolConnection<Postgres>, Option<PgRow>> {
        let mut session = Session { connection: Some(connection) };
        let failure = match self.in_time(&mut session, statement, &values(calls)).await {
            Ok(rows) => return (session.connection, by_number(calls.len(), rows)),
            Err(failure) => failure,
        };
        let alone = calls.len() > 1 && matches!(&failure, Late::Failed(error) if Remedy::of(error) == Remedy::Alone);
        if !alone {
            let is_one = calls.len() == 1;
            let results = match failure {
                Late::Failed(error) if is_one => vec![Err(self.failed(error))],
                Late::Failed(error) => self.all(calls.len(), &shared(&self.schema.name(), error)),
                Late::TimeIsUp => self.all(calls.len(), &Failure::new(NOT_IN_TIME)),
            };
            return (session.connection, results);
        }
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            match self.in_time(&mut session, statement, &values(std::slice::from_ref(call))).await {
                Ok(rows) => results.append(&mut by_number(1, rows)),
                Err(Late::Failed(error)) => results.push(Err(self.failed(error))),
                Err(Late::TimeIsUp) => results.push(Err(StoreError::unavailable(NOT_IN_TIME))),
            }
        }
        (session.connection, results)
    }

    fn all<T>(&self, members: usize, failure: &Failure) -> Vec<Result<T, StoreError>> {
        (0..members).map(|_| Err(StoreError::unavailable(failure.clone()))).collect()
    }

    /// Sends a statement within the time limit. A connection that is late or broke is closed.
    async fn in_time(
        &self,
        session: &mut Session,
        statement: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, Late> {
        let Some(connection) = &mut session.connection else { return Err(Late::TimeIsUp) };
        match timeout(self.statement_time, self.fetch(connection, statement, values)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                if error.as_database_error().is_none() {
                    session.close();
                }
                Err(Late::Failed(error))
            }
            Err(_) => {
                session.close();
                Err(Late::TimeIsUp)
            }
        }
    }
}

/// Gives each member of a group the row with its number.
fn by_number(members: usize, rows: Vec<PgRow>) -> Vec<Result<Option<PgRow>, StoreError>> {
    let mut own: Vec<_> = (0..members).map(|_| Ok(None)).collect();
    for row in rows {
        let number = column::<i64>(&row, 0).ok().and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
        if let Some(place) = number.and_then(|number| own.get_mut(number)) {
            *place = Ok(Some(row));
        }
    }
    own
}

enum Late {
    Failed(Error),
    TimeIsUp,
}

struct Session {
    connection: Option<PoolConnection<Postgres>>,
}

impl Session {
    fn close(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.close_on_drop();
        }
    }
}

/// The parameters that name the records of some calls.
pub(super) fn identities<'a>(ids: impl Iterator<Item = &'a RecordId> + Clone) -> [Value<'a>; 2] {
    [
        Value::Texts(ids.clone().map(|id| kept_scope(id.scope().as_str())).collect()),
        Value::Texts(ids.map(|id| Cow::Borrowed(id.key().as_str())).collect()),
    ]
}

/// The parameter for a `limit` that only the planner heeds.
pub(super) fn no_limit<'a>() -> Value<'a> {
    Value::Integers(vec![Some(i64::MAX)])
}

/// The parameters that name one record and its owner.
pub(super) fn owned(id: &RecordId, token: Token) -> [Value<'_>; 3] {
    let [scope, key] = identities(std::iter::once(id));
    [scope, key, Value::Uuids(vec![*token.as_uuid()])]
}
