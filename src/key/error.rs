//! Why a key is refused.

use std::{error::Error as StdError, fmt};

/// Why a key is refused.
///
/// The messages are written for the developer of the client and never repeat any part of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The header came in more than one line, be they equal or not.
    Repeated,
    /// The header line, or the quoted string in it, is empty.
    Empty,
    /// The header line, or the quoted string in it, holds nothing but spaces.
    Blank,
    /// The key is too long, counted after decoding.
    TooLong {
        /// The most characters that a key may have here.
        max: usize,
    },
    /// A byte above 0x7F.
    NotAscii,
    /// A byte below 0x20, or 0x7F.
    ControlCharacter,
    /// A comma outside of quotes: more than one key in one line, or a key that needs quotes.
    List,
    /// A bare key with a space, a double quote, a backslash or a semicolon.
    NeedsQuotes,
    /// A bare key where [`quoted_only`](crate::KeySyntax::quoted_only) is set.
    NotQuoted,
    /// A quoted key without its closing quote.
    Unterminated,
    /// A backslash in a quoted key before anything but a double quote or a backslash.
    BadEscape,
    /// Malformed parameters behind a quoted key (RFC 9651, section 4.2.3.2).
    BadParameters,
    /// Something behind the closing quote that is not a parameter.
    TrailingText,
    /// Not the text of a UUID where [`uuid_only`](crate::KeySyntax::uuid_only) is set.
    NotUuid,
}

impl KeyError {
    /// Names the fault of a byte that is not printable ASCII.
    pub(super) fn unprintable(byte: u8) -> Self {
        if byte.is_ascii() { Self::ControlCharacter } else { Self::NotAscii }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong { max } => return write!(f, "the key is longer than {max} characters"),
            Self::Repeated => "the header was sent more than once; send it in exactly one line",
            Self::Empty => "the key is empty",
            Self::Blank => "the key is blank: it holds nothing but spaces",
            Self::NotAscii => "the key contains a byte outside of ASCII; use printable ASCII, for example a UUID",
            Self::ControlCharacter => "the header contains a control character, such as a tab; use printable ASCII",
            Self::List => "the header contains a list; send one key, in double quotes if there is a comma in it",
            Self::NeedsQuotes => {
                "a key with a space, double quote, backslash or semicolon in it must be sent in double quotes"
            }
            Self::NotQuoted => "the key must be sent in double quotes, as a String of RFC 9651",
            Self::Unterminated => "the double quote at the end of the key is missing",
            Self::BadEscape => "a backslash in a quoted key must be followed by a double quote or another backslash",
            Self::BadParameters => "the parameters after the key are malformed; see RFC 9651, section 3.1.2",
            Self::TrailingText => "there is text after the double quote at the end of the key",
            Self::NotUuid => "the key must be a UUID: 8-4-4-4-12 hexadecimal digits",
        })
    }
}

impl StdError for KeyError {}
