//! JSON strings in their canonical form (RFC 8785, section 3.2.2.2).

use std::{cmp::Ordering, fmt::Write as _};

/// Copies a string with its quotes; `None` if it is malformed or not I-JSON (RFC 7493, section 2.1).
pub(super) fn copy(rest: &mut &str, out: &mut String) -> Option<()> {
    *rest = rest.strip_prefix('"')?;
    out.push('"');
    loop {
        let plain = rest.find(|char| matches!(char, '"' | '\\' | '\0'..='\x1f') || is_noncharacter(char))?;
        out.push_str(&rest[..plain]);
        *rest = &rest[plain..];
        if let Some(behind) = rest.strip_prefix('"') {
            *rest = behind;
            out.push('"');
            return Some(());
        }
        let char = unescape(rest)?;
        if is_noncharacter(char) {
            return None;
        }
        escape(char, out);
    }
}

/// Compares two canonical strings, given with their quotes, as sequences of UTF-16 code units (RFC 8785, section 3.2.3).
pub(super) fn order(a: &str, b: &str) -> Ordering {
    units(&a[1..a.len() - 1]).cmp(units(&b[1..b.len() - 1]))
}

/// Reads one escape sequence; two if they make up a surrogate pair.
fn unescape(rest: &mut &str) -> Option<char> {
    let mut chars = rest.strip_prefix('\\')?.chars();
    let simple = match chars.next()? {
        plain @ ('"' | '\\' | '/') => plain,
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            *rest = chars.as_str();
            return unicode(rest);
        }
        _ => return None,
    };
    *rest = chars.as_str();
    Some(simple)
}

/// Reads what stands behind the `\u`.
fn unicode(rest: &mut &str) -> Option<char> {
    let unit = hex(rest)?;
    if !matches!(unit, 0xD800..=0xDBFF) {
        return char::from_u32(unit);
    }
    *rest = rest.strip_prefix("\\u")?;
    let low = hex(rest)?;
    let pair = 0x1_0000 + ((unit - 0xD800) << 10) + low.checked_sub(0xDC00)?;
    if low > 0xDFFF { None } else { char::from_u32(pair) }
}

fn hex(rest: &mut &str) -> Option<u32> {
    let (digits, behind) = rest.split_at_checked(4)?;
    *rest = behind;
    digits.chars().try_fold(0, |number, digit| Some(number << 4 | digit.to_digit(16)?))
}

fn escape(char: char, out: &mut String) {
    match char {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\x1f' => write!(out, "\\u{:04x}", u32::from(char)).expect("a String takes any text"),
        _ => out.push(char),
    }
}

/// Returns a number for each character, in the order of their UTF-16 forms: a surrogate pair starts with 0xD800 to
/// 0xDBFF, so it comes before 0xE000 to 0xFFFF.
fn units(content: &str) -> impl Iterator<Item = u32> {
    let mut rest = content;
    std::iter::from_fn(move || {
        let char = if rest.starts_with('\\') {
            unescape(&mut rest)?
        } else {
            let mut chars = rest.chars();
            let char = chars.next()?;
            rest = chars.as_str();
            char
        };
        Some(match u32::from(char) {
            above @ 0xE000..=0xFFFF => above + 0x20_0000,
            other => other,
        })
    })
}

fn is_noncharacter(char: char) -> bool {
    let code = u32::from(char);
    code & 0xFFFE == 0xFFFE || matches!(code, 0xFDD0..=0xFDEF)
}
