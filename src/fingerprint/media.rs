//! What `Content-Type` says about a body (RFC 9110, section 8.3).

use std::borrow::Cow;

use http::{HeaderMap, header};

const OWS: [char; 2] = [' ', '\t'];

/// Tells whether the body is declared as `application/json` or `*/*+json`, with any parameters.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some((kind, subtype)) = only_line(headers).and_then(essence) else { return false };
    let suffix = subtype.len().checked_sub("+json".len()).and_then(|start| subtype.get(start..));
    suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
        || (kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("json"))
}

/// The boundary of a `multipart/*` type, and the text of the header around it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Boundary<'a> {
    /// Everything before the name of the parameter.
    pub(super) before: &'a str,
    /// The boundary without quotes and escapes: 1 to 70 characters.
    pub(super) value: Cow<'a, str>,
    /// Everything after the value of the parameter.
    pub(super) after: &'a str,
}

/// Finds the boundary; `None` unless there is exactly one, well-formed, in one header line of a `multipart/*` type.
pub(super) fn boundary(headers: &HeaderMap) -> Option<Boundary<'_>> {
    let line = only_line(headers)?;
    let (kind, _) = essence(line)?;
    if !kind.eq_ignore_ascii_case("multipart") {
        return None;
    }
    let mut found = None;
    let mut rest = &line[line.find(';')?..];
    while let Some(parameter) = rest.trim_start_matches(OWS).strip_prefix(';') {
        let parameter = parameter.trim_start_matches(OWS);
        let (name, value) = split_token(parameter);
        rest = value;
        if name.is_empty() {
            continue;
        }
        let value = value.strip_prefix('=')?;
        let (text, after) = if value.starts_with('"') { split_quoted(value)? } else { split_plain(value)? };
        rest = after;
        if name.eq_ignore_ascii_case("boundary") {
            let before = &line[..line.len() - parameter.len()];
            if found.replace(Boundary { before, value: text, after }).is_some() {
                return None;
            }
        }
    }
    found.filter(|boundary| rest.trim_start_matches(OWS).is_empty() && is_boundary(&boundary.value))
}

/// Returns `Content-Type` if it has one line, in ASCII.
fn only_line(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::CONTENT_TYPE).iter();
    let line = lines.next()?;
    if lines.next().is_some() { None } else { line.to_str().ok() }
}

/// Returns type and subtype.
fn essence(line: &str) -> Option<(&str, &str)> {
    let essence = line.split(';').next().unwrap_or(line).trim_matches(OWS);
    let (kind, subtype) = essence.split_once('/')?;
    let is_token = |text: &str| !text.is_empty() && split_token(text).1.is_empty();
    (is_token(kind) && is_token(subtype)).then_some((kind, subtype))
}

/// Splits behind the longest token (RFC 9110, section 5.6.2) at the start, which may be empty.
fn split_token(text: &str) -> (&str, &str) {
    let is_token = |char: char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(char);
    text.split_at(text.find(|char| !is_token(char)).unwrap_or(text.len()))
}

fn split_plain(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let (value, rest) = split_token(text);
    (!value.is_empty()).then_some((Cow::Borrowed(value), rest))
}

/// Splits behind a quoted string (RFC 9110, section 5.6.4), which is returned without quotes and escapes.
fn split_quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let content = text.strip_prefix('"')?;
    let end = content.find(['"', '\\'])?;
    if let Some(rest) = content[end..].strip_prefix('"') {
        return Some((Cow::Borrowed(&content[..end]), rest));
    }
    let mut value = String::new();
    let mut chars = content.chars();
    loop {
        match chars.next()? {
            '"' => return Some((Cow::Owned(value), chars.as_str())),
            '\\' => value.push(chars.next()?),
            char => value.push(char),
        }
    }
}

/// RFC 2046, section 5.1.1: 1 to 70 of these characters, the last of them no space.
fn is_boundary(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    matches!(text.len(), 1..=70) && text.bytes().all(is_allowed) && !text.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let line = |line: &&str| (header::CONTENT_TYPE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn json_is_known_by_its_type_or_suffix() {
        for yes in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json ;x",
            "application/vnd.api+json",
            "model/gltf+JSON; v=2",
        ] {
            assert!(is_json(&headers(&[yes])), "{yes}");
        }
        for no in [
            "",
            "json",
            "text/json",
            "application/jsonp",
            "application/json-seq",
            "text/+json5",
            "a b/c+json",
            "/+json",
        ] {
            assert!(!is_json(&headers(&[no])), "{no}");
        }
        assert!(!is_json(&headers(&[])));
        assert!(!is_json(&headers(&["application/json", "application/json"])));
    }

    #[test]
    fn the_boundary_is_found_quoted_or_not_among_other_parameters() {
        for (line, before, value, after) in [
            ("multipart/form-data; boundary=abc", "multipart/form-data; ", "abc", ""),
            ("Multipart/Mixed;BOUNDARY=\"a b\"; x=y", "Multipart/Mixed;", "a b", "; x=y"),
            (
                "multipart/related; type=\"a;boundary=no\" ; boundary=\"a\\:b\"",
                "multipart/related; type=\"a;boundary=no\" ; ",
                "a:b",
                "",
            ),
            ("multipart/form-data; ; boundary=abc;", "multipart/form-data; ; ", "abc", ";"),
        ] {
            let value = Cow::Borrowed(value);
            assert_eq!(boundary(&headers(&[line])), Some(Boundary { before, value, after }), "{line}");
        }
    }

    #[test]
    fn a_boundary_that_is_not_well_formed_is_none() {
        let too_long = format!("multipart/mixed; boundary={}", "a".repeat(71));
        for line in [
            "multipart/mixed",
            "multipart/mixed; boundary",
            "multipart/mixed; boundary=",
            "multipart/mixed; boundary=\"\"",
            "multipart/mixed; boundary=\"a",
            "multipart/mixed; boundary=\"a \"",
            "multipart/mixed; boundary=\"a\\",
            "multipart/mixed; boundary=\"a@b\"",
            "multipart/mixed; boundary=a/b",
            "multipart/mixed; boundary =a",
            "multipart/mixed; boundary=a; boundary=a",
            "multipart/mixed; boundary=a x",
            "multipart/mixed, multipart/mixed; boundary=a",
            "text/plain; boundary=a",
            &too_long,
        ] {
            assert_eq!(boundary(&headers(&[line])), None, "{line}");
        }
    }
}
