//! Between a record and its row.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use crate::{
    Fingerprint, StoredResponse,
    store::{Record, State, StoreError, Token},
};

/// The longest text of a scope that is kept as it is, in bytes: an entry of an index must stay below 2,704 bytes.
const LONGEST_SCOPE: usize = 512;

/// Beyond this a duration is "for ever": numbers of microseconds stay exact in a double.
const LONGEST: Duration = Duration::from_secs(250 * 365 * 24 * 60 * 60);

/// Returns the text under which a scope is kept: itself where that is possible. PostgreSQL keeps no NUL, so that is
/// escaped, and with it the backslash; what is too long for an index becomes its digest.
pub(super) fn kept_scope(scope: &str) -> Cow<'_, str> {
    if scope.len() <= LONGEST_SCOPE && !scope.contains(['\0', '\\']) {
        return Cow::Borrowed(scope);
    }
    let escaped = scope.replace('\\', "\\\\").replace('\0', "\\0");
    if escaped.len() <= LONGEST_SCOPE {
        return Cow::Owned(escaped);
    }
    let digest = Sha256::digest(scope.as_bytes());
    // An escaped text has no single backslash before an `s`.
    Cow::Owned(digest.iter().fold("\\sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Returns whole microseconds, rounded up, or `None` for "for ever".
pub(super) fn micros(duration: Duration) -> Option<i64> {
    if duration > LONGEST {
        return None;
    }
    i64::try_from(duration.as_nanos().div_ceil(1000)).ok()
}

/// What a row says.
#[derive(Debug)]
pub(super) enum Found {
    Live(Record),
    /// Its time is over: it counts as absent.
    Expired,
}

/// Reads the columns of `statements::RECORD`, which start at column `at`; `None` if there is no row.
pub(super) fn read(row: &PgRow, at: usize) -> Result<Option<Found>, StoreError> {
    let token: Option<Uuid> = column(row, at)?;
    let Some(token) = token.map(Token::from_uuid) else { return Ok(None) };
    if column::<bool>(row, at + 5)? {
        return Ok(Some(Found::Expired));
    }
    // Owned, since only that can be read from rows that came as text too.
    let hash: Vec<u8> = column(row, at + 1)?;
    let hash: [u8; 32] = hash.try_into().map_err(|_| StoreError::damaged("request_hash is not 32 bytes"))?;
    let attempt = u32::try_from(column::<i32>(row, at + 2)?).ok().filter(|attempt| *attempt > 0);
    let attempt = attempt.ok_or_else(|| StoreError::damaged("attempt is not a positive number"))?;
    let state = match column::<&str>(row, at + 3)? {
        "COMPLETED" => {
            let body: Option<Vec<u8>> = column(row, at + 4)?;
            let body = body.ok_or_else(|| StoreError::damaged("a completed record has no response_body"))?;
            State::Completed(StoredResponse::from_encoded(Bytes::from(body)).map_err(StoreError::damaged)?)
        }
        "STARTED" => match column::<Option<i64>>(row, at + 6)? {
            None => State::InFlight { lease_left: Duration::MAX },
            Some(left @ 1..) => State::InFlight { lease_left: Duration::from_micros(left.unsigned_abs()) },
            Some(left) => State::Abandoned { since: Duration::from_micros(left.unsigned_abs()) },
        },
        status => return Err(StoreError::damaged(format!("there is no status {status:?}"))),
    };
    Ok(Some(Found::Live(Record::new(token, Fingerprint::from_bytes(hash), attempt, state))))
}

/// Reads a column; what cannot be read is damaged.
pub(super) fn column<'r, T>(row: &'r PgRow, at: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(at).map_err(StoreError::damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_scopes_are_never_kept_as_one_text() {
        let long = "x".repeat(4096);
        let scopes =
            ["", "a", "\0", "\\", "\\0", "\\\\", "\\\0", "a\0b", "a\\0b", &long, &long[1..], &"\0".repeat(300)];
        let kept: std::collections::HashSet<_> = scopes.iter().map(|scope| kept_scope(scope)).collect();
        assert_eq!(kept.len(), scopes.len());
        assert!(kept.iter().all(|text| text.len() <= LONGEST_SCOPE && !text.contains('\0')));
        let digest = kept_scope(&long);
        assert_ne!(kept_scope(&digest), digest, "a scope that looks like a digest is escaped");
    }

    #[test]
    fn a_duration_is_rounded_up_and_a_long_one_is_for_ever() {
        assert_eq!(micros(Duration::ZERO), Some(0));
        assert_eq!(micros(Duration::from_nanos(1)), Some(1));
        assert_eq!(micros(Duration::from_millis(1500)), Some(1_500_000));
        assert_eq!(micros(Duration::MAX), None);
        assert_eq!(micros(LONGEST), Some(250 * 365 * 24 * 60 * 60 * 1_000_000));
    }
}
