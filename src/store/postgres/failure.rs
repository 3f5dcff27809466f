//! What a database error means for a call: try again, try alone, or give up.

use std::{error::Error as StdError, fmt};

use sqlx::Error;

use crate::store::{StoreError, group::Failure};

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The statement did nothing, and may succeed next time: a serialization failure or a deadlock.
    Again,
    /// One member of the group is at fault, or somebody holds its row.
    Alone,
    /// The server or the connection failed: it fails every member.
    Nothing,
}

impl Remedy {
    pub(super) fn of(error: &Error) -> Self {
        let Some(code) = code(error) else { return Self::Nothing };
        match &*code {
            "40001" | "40P01" => Self::Again,
            // Insufficient resources, operator intervention, connection exceptions, a server that only reads, and
            // missing objects or rights, fail every member alike.
            code if ["53", "57", "58", "08", "XX", "42", "3F", "3D", "28"].contains(&&code[..2]) => Self::Nothing,
            "25006" => Self::Nothing,
            _ => Self::Alone,
        }
    }
}

/// Tells whether an error is of the kind that a repetition of the whole transaction may heal: a serialization failure, a
/// deadlock, a lock not got in time, a connection that broke or could not be had.
pub(super) fn is_transient(error: &Error) -> bool {
    match code(error) {
        Some(code) => {
            matches!(&*code, "40001" | "40P01" | "55P03" | "25P02" | "25006")
                || ["08", "53", "57"].contains(&&code[..2])
        }
        None => matches!(
            error,
            Error::Io(_)
                | Error::Tls(_)
                | Error::Protocol(_)
                | Error::PoolTimedOut
                | Error::PoolClosed
                | Error::WorkerCrashed
        ),
    }
}

/// Says what a failed call of one record comes to.
pub(super) fn store_error(table: &str, error: Error) -> StoreError {
    let is_about_the_value = code(&error).is_some_and(|code| ["22", "23", "54"].contains(&&code[..2]));
    let cause = shared(table, error);
    if is_about_the_value { StoreError::rejected(cause) } else { StoreError::unavailable(cause) }
}

/// Makes of an error a cause that several calls can share.
pub(super) fn shared(table: &str, error: Error) -> Failure {
    match code(&error).as_deref() {
        Some("42P01" | "3F000") => Failure::new(Missing { table: table.to_owned(), source: Some(error) }),
        _ => Failure::new(error),
    }
}

fn code(error: &Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    (code.len() == 5 && code.is_ascii()).then(|| code.into_owned())
}

/// The table is not there.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) table: String,
    /// What the server said, if it was asked by a statement that needs the table.
    pub(super) source: Option<Error>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the table {} is missing: run `PostgresStore::migrate`, or the statements that `PostgresStore::ddl` returns",
            self.table
        )
    }
}

impl StdError for Missing {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
