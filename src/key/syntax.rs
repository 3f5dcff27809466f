//! What a key looks like on the wire.

use std::borrow::Cow;

use http::HeaderValue;

use super::{IdempotencyKey, KeyError, item::Cursor};

/// What a key looks like on the wire.
///
/// By default a key is one of these, 1 to 255 characters after decoding:
///
/// * quoted, an Item of type String (RFC 9651, section 3.3.3): `"order \"7\""`. Parameters after it must be well-formed
///   and mean nothing.
/// * bare: visible ASCII without `"`, `\`, `,` and `;`. Space and tab around it are not part of it.
///
/// `abc` and `"abc"` are the same key. Keys are compared byte by byte: `abc` and `ABC` are two.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use tower_idempotency::{KeyError, KeySyntax};
///
/// let syntax = KeySyntax::new().max_length(64);
/// let bare = HeaderValue::from_static("abc");
/// let quoted = HeaderValue::from_static("\"abc\"; v=1");
/// assert_eq!(syntax.parse([&bare])?, syntax.parse([&quoted])?);
///
/// let mut headers = HeaderMap::new();
/// headers.append("idempotency-key", bare);
/// headers.append("idempotency-key", quoted);
/// assert_eq!(syntax.parse(headers.get_all("idempotency-key")), Err(KeyError::Repeated));
/// # Ok::<(), KeyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySyntax {
    max_length: usize,
    quoted_only: bool,
    uuid_only: bool,
}

impl KeySyntax {
    /// Quoted or bare, at most 255 characters.
    #[must_use]
    pub fn new() -> Self {
        Self { max_length: 255, quoted_only: false, uuid_only: false }
    }

    /// Sets the most characters that a key may have, counted after decoding; 255 by default.
    ///
    /// # Panics
    ///
    /// Panics if `max` is 0 or above [`IdempotencyKey::MAX_LENGTH`] (1024).
    #[must_use]
    #[track_caller]
    pub fn max_length(mut self, max: usize) -> Self {
        assert!(
            (1..=IdempotencyKey::MAX_LENGTH).contains(&max),
            "the maximum length of an idempotency key must be 1 to {}, not {max}",
            IdempotencyKey::MAX_LENGTH,
        );
        self.max_length = max;
        self
    }

    /// Refuses bare keys; by default they are allowed.
    #[must_use]
    pub fn quoted_only(mut self) -> Self {
        self.quoted_only = true;
        self
    }

    /// Refuses keys that are not the text of a UUID (RFC 9562, section 4): 8-4-4-4-12 hexadecimal digits in any case.
    ///
    /// Any version is allowed. The comparison stays byte-exact: the same UUID in another case is another key.
    #[must_use]
    pub fn uuid_only(mut self) -> Self {
        self.uuid_only = true;
        self
    }

    /// Reads the key from all lines of the header.
    ///
    /// # Errors
    ///
    /// [`KeyError::Empty`] if there is no line at all, [`KeyError::Repeated`] if there is more than one (even equal
    /// ones), and any other [`KeyError`] if the line is not a key.
    pub fn parse<'a>(&self, lines: impl IntoIterator<Item = &'a HeaderValue>) -> Result<IdempotencyKey, KeyError> {
        let mut lines = lines.into_iter();
        let line = lines.next().ok_or(KeyError::Empty)?;
        if lines.next().is_some() {
            return Err(KeyError::Repeated);
        }
        self.parse_line(line.as_bytes())
    }

    fn parse_line(&self, line: &[u8]) -> Result<IdempotencyKey, KeyError> {
        let mut cursor = Cursor::new(line);
        cursor.skip_spaces();
        let text = if cursor.rest().starts_with(b"\"") {
            quoted(cursor)?
        } else if self.quoted_only && !line.trim_ascii().is_empty() {
            return Err(KeyError::NotQuoted);
        } else {
            Cow::Borrowed(bare(line)?)
        };
        let key = IdempotencyKey::printable(&text, self.max_length)?;
        if self.uuid_only && !is_uuid(text.as_bytes()) {
            return Err(KeyError::NotUuid);
        }
        Ok(key)
    }
}

impl Default for KeySyntax {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads an Item (RFC 9651, section 4.2.3) that is a String, to the end of the line.
fn quoted(mut cursor: Cursor<'_>) -> Result<Cow<'_, str>, KeyError> {
    let text = cursor.string()?;
    cursor.parameters()?;
    cursor.skip_spaces();
    match cursor.rest() {
        [] => Ok(text),
        [b',', ..] => Err(KeyError::List),
        _ => Err(KeyError::TrailingText),
    }
}

/// Takes a line as it is. Tab goes with space around it: both are optional whitespace (RFC 9110, section 5.6.3).
fn bare(line: &[u8]) -> Result<&str, KeyError> {
    let is_whitespace = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(start) = line.iter().position(|byte| !is_whitespace(byte)) else {
        return Err(if line.is_empty() { KeyError::Empty } else { KeyError::Blank });
    };
    let end = line.iter().rposition(|byte| !is_whitespace(byte)).map_or(start, |last| last + 1);
    let text = &line[start..end];
    if text.starts_with(b"\"") {
        // There was a tab before the quote, and RFC 9651 has only spaces around an Item.
        return Err(KeyError::ControlCharacter);
    }
    for byte in text {
        match byte {
            b',' => return Err(KeyError::List),
            b' ' | b'"' | b'\\' | b';' => return Err(KeyError::NeedsQuotes),
            0x21..=0x7E => {}
            other => return Err(KeyError::unprintable(*other)),
        }
    }
    Ok(std::str::from_utf8(text).expect("every byte was checked to be ASCII"))
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests;
