//! Sends a statement: prepared, or as text for poolers that keep no prepared statements.

use std::{borrow::Cow, fmt::Write, sync::Arc};

use sqlx::{
    Arguments, AssertSqlSafe, Error, PgConnection,
    postgres::{PgArguments, PgRow},
};
use uuid::Uuid;

/// How statements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Prepared once a connection, by name.
    Prepared,
    /// As text with all values in it, in one message: nothing is left on the connection.
    Text,
}

/// A parameter: always an array.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Texts(Vec<Cow<'a, str>>),
    Uuids(Vec<Uuid>),
    Blobs(Vec<&'a [u8]>),
    /// `None` is null.
    Integers(Vec<Option<i64>>),
}

/// Sends a statement and reads all its rows.
pub(super) async fn fetch(
    connection: &mut PgConnection,
    protocol: Protocol,
    statement: &Arc<str>,
    values: &[Value<'_>],
) -> Result<Vec<PgRow>, Error> {
    match protocol {
        Protocol::Prepared => {
            let mut arguments = PgArguments::default();
            for value in values {
                let added = match value {
                    Value::Texts(texts) => arguments.add(texts),
                    Value::Uuids(uuids) => arguments.add(uuids),
                    Value::Blobs(blobs) => arguments.add(blobs),
                    Value::Integers(integers) => arguments.add(integers),
                };
                added.map_err(Error::Encode)?;
            }
            sqlx::query_with(AssertSqlSafe(Arc::clone(statement)), arguments).fetch_all(connection).await
        }
        Protocol::Text => sqlx::raw_sql(AssertSqlSafe(inlined(statement, values))).fetch_all(connection).await,
    }
}

/// Puts the values into the text. All but numbers are written in hexadecimal, so that nothing has to be escaped.
fn inlined(statement: &str, values: &[Value<'_>]) -> String {
    let mut text = String::with_capacity(statement.len());
    let mut pieces = statement.split('$');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let number: Option<usize> = piece[..digits].parse().ok();
        let value = number.and_then(|number| values.get(number.checked_sub(1)?));
        push(&mut text, value.expect("a statement names only parameters that it is given"));
        text.push_str(&piece[digits..]);
    }
    text
}

fn push(text: &mut String, value: &Value<'_>) {
    text.push_str("array[");
    match value {
        Value::Texts(texts) => each(text, texts, |text, value| {
            text.push_str("convert_from('\\x");
            hexadecimal(text, value.as_bytes());
            text.push_str("'::bytea,'UTF8')");
        }),
        Value::Uuids(uuids) => each(text, uuids, |text, value| {
            text.push('\'');
            hexadecimal(text, value.as_bytes());
            text.push_str("'::uuid");
        }),
        Value::Blobs(blobs) => each(text, blobs, |text, value| {
            text.push_str("'\\x");
            hexadecimal(text, value);
            text.push_str("'::bytea");
        }),
        Value::Integers(integers) => each(text, integers, |text, value| match value {
            Some(value) => {
                let _ = write!(text, "{value}");
            }
            None => text.push_str("null"),
        }),
    }
    text.push(']');
}

fn each<T>(text: &mut String, values: &[T], push: impl Fn(&mut String, &T)) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        push(text, value);
    }
}

fn hexadecimal(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_every_value_in_it_and_needs_no_escape() {
        let values = [
            Value::Texts(vec!["a'b\\".into(), "".into()]),
            Value::Integers(vec![Some(-7), None]),
            Value::Blobs(vec![&[0, 255]]),
            Value::Uuids(vec![Uuid::nil()]),
        ];
        assert_eq!(
            inlined("f($2::int8[], $1::text[]), $3::bytea[]; $4::uuid[]", &values),
            "f(array[-7,null]::int8[], array[convert_from('\\x6127625c'::bytea,'UTF8'),convert_from('\\x'::bytea,'UTF8')]::text[]), \
             array['\\x00ff'::bytea]::bytea[]; array['00000000000000000000000000000000'::uuid]::uuid[]"
        );
    }
}
