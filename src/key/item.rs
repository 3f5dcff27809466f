//! RFC 9651 strings and parameters, read in place.

use std::borrow::Cow;

use super::KeyError;

/// What is left to read of a field line.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { rest: line }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn skip_spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    /// Reads a String (section 4.2.5). Its content is printable ASCII.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, KeyError> {
        let content = self.rest.strip_prefix(b"\"").ok_or(KeyError::NotQuoted)?;
        let mut end = 0;
        let mut escaped = false;
        loop {
            match content[end..] {
                [b'"', ..] => break,
                [b'\\', b'"' | b'\\', ..] => {
                    escaped = true;
                    end += 2;
                }
                [b'\\', _, ..] => return Err(KeyError::BadEscape),
                [] | [b'\\'] => return Err(KeyError::Unterminated),
                [0x20..=0x7E, ..] => end += 1,
                [byte, ..] => return Err(KeyError::unprintable(byte)),
            }
        }
        self.rest = &content[end + 1..];
        let text = std::str::from_utf8(&content[..end]).expect("every byte was checked to be ASCII");
        Ok(if escaped { Cow::Owned(unescape(text)) } else { Cow::Borrowed(text) })
    }

    /// Reads Parameters (section 4.2.3.2) and forgets them.
    pub(super) fn parameters(&mut self) -> Result<(), KeyError> {
        while self.take(b';') {
            self.skip_spaces();
            self.parameter().ok_or(KeyError::BadParameters)?;
        }
        Ok(())
    }

    fn parameter(&mut self) -> Option<()> {
        if !matches!(self.rest.first()?, b'a'..=b'z' | b'*') {
            return None;
        }
        self.take_while(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'));
        if self.take(b'=') { self.bare_item() } else { Some(()) }
    }

    /// Section 4.2.3.1.
    fn bare_item(&mut self) -> Option<()> {
        match self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number().map(drop),
            b'"' => self.string().ok().map(drop),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => self.token(),
            b':' => self.byte_sequence(),
            b'?' => self.boolean(),
            b'@' => self.date(),
            b'%' => self.display_string(),
            _ => None,
        }
    }

    /// Section 4.2.4: an Integer of at most 15 digits, or a Decimal of at most 12 before and 3 after the point.
    fn number(&mut self) -> Option<Number> {
        self.take(b'-');
        let whole = self.take_while(|byte| byte.is_ascii_digit()).len();
        if !self.take(b'.') {
            return matches!(whole, 1..=15).then_some(Number::Integer);
        }
        let fraction = self.take_while(|byte| byte.is_ascii_digit()).len();
        (matches!(whole, 1..=12) && matches!(fraction, 1..=3)).then_some(Number::Decimal)
    }

    /// Section 4.2.6; the first character was looked at.
    fn token(&mut self) -> Option<()> {
        self.take_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte));
        Some(())
    }

    /// Section 4.2.7: padding may be left out, but not be wrong; pad bits are not looked at.
    fn byte_sequence(&mut self) -> Option<()> {
        self.take(b':');
        let data = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/').len();
        let padding = self.take_while(|byte| byte == b'=').len();
        let padded = padding <= 2 && (data + padding).is_multiple_of(4);
        (data % 4 != 1 && (padding == 0 || padded) && self.take(b':')).then_some(())
    }

    /// Section 4.2.8.
    fn boolean(&mut self) -> Option<()> {
        self.take(b'?');
        (self.take(b'0') || self.take(b'1')).then_some(())
    }

    /// Section 4.2.9.
    fn date(&mut self) -> Option<()> {
        self.take(b'@');
        matches!(self.number()?, Number::Integer).then_some(())
    }

    /// Section 4.2.10: percent-encoded UTF-8, hexadecimal digits in lower case.
    fn display_string(&mut self) -> Option<()> {
        self.rest = self.rest.strip_prefix(b"%\"")?;
        let mut decoded = Vec::new();
        loop {
            let (byte, rest) = match *self.rest {
                [b'%', high, low, ref rest @ ..] => (hex(high)? << 4 | hex(low)?, rest),
                [b'%', ..] => return None,
                [b'"', ref rest @ ..] => {
                    self.rest = rest;
                    return std::str::from_utf8(&decoded).ok().map(drop);
                }
                [byte @ 0x20..=0x7E, ref rest @ ..] => (byte, rest),
                _ => return None,
            };
            decoded.push(byte);
            self.rest = rest;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !belongs(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

enum Number {
    Integer,
    Decimal,
}

/// Takes the backslashes out of a string whose escapes were checked.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        plain.extend(if char == '\\' { chars.next() } else { Some(char) });
    }
    plain
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
