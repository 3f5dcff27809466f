//! What a replay leaves out, and how it is framed anew.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response::Parts};

/// Tells which header lines belong to one connection or one moment, and so are never part of a replay: the
/// connection-specific fields of RFC 9110 section 7.6.1, those named by `Connection`, `Date`, and our own marker.
pub(crate) fn is_momentary(headers: &HeaderMap) -> impl Fn(&HeaderName) -> bool {
    const NEVER: [HeaderName; 5] =
        [header::CONNECTION, header::TRANSFER_ENCODING, header::TE, header::UPGRADE, header::DATE];
    let options = headers.contains_key(header::CONNECTION).then(|| headers.get_all(header::CONNECTION));
    move |name| {
        NEVER.contains(name)
            || matches!(name.as_str(), "keep-alive" | "proxy-connection")
            || *name == REPLAYED
            || options.iter().flatten().any(|line| names(line, name))
    }
}

/// Tells whether a line of `Connection` names a field.
fn names(line: &HeaderValue, field: &HeaderName) -> bool {
    line.as_bytes()
        .split(|byte| *byte == b',')
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(field.as_str().as_bytes()))
}

/// The name of the header line that marks a replay.
pub(crate) static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Makes the framing of a response valid whose body is all here, and returns the body to send.
///
/// Without a body are answers to HEAD, and those with 204, 205 and 304 (RFC 9110 sections 9.3.2, 15.3.5, 15.3.6 and
/// 15.4.5). `Transfer-Encoding` goes, since the length is known. `Content-Length` stays only where it is allowed and
/// true (section 8.6): none with 204; with 304 and in answers to HEAD it states the length of another
/// representation, so that it cannot be checked and stays. HEAD is told the length of the body that is left out.
pub(crate) fn frame(head: &mut Parts, body: Bytes, is_head: bool) -> Bytes {
    let bodiless =
        is_head || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED);
    if is_head && !body.is_empty() && !head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, body.len().into());
    }
    let body = if bodiless { Bytes::new() } else { body };
    let length_stays = match (head.headers.get(header::CONTENT_LENGTH), head.status) {
        (None, _) => true,
        (Some(_), StatusCode::NO_CONTENT) => false,
        (Some(_), StatusCode::NOT_MODIFIED) => true,
        (Some(_), _) if is_head => true,
        (Some(stated), _) => stated.as_bytes() == body.len().to_string().as_bytes(),
    };
    let stated_once = head.headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_none();
    if !length_stays || !stated_once {
        remove(&mut head.headers, &header::CONTENT_LENGTH);
    }
    remove(&mut head.headers, &header::TRANSFER_ENCODING);
    body
}

/// Takes our marker out of the headers or the trailers of a first answer.
pub(crate) fn unmark(headers: &mut HeaderMap) {
    remove(headers, &REPLAYED);
}

/// Removes all lines of a header. `HeaderMap::remove` would put the last header into their place, and the lines have an
/// order.
fn remove(headers: &mut HeaderMap, name: &HeaderName) {
    if headers.contains_key(name) {
        let all = std::mem::take(headers);
        let others = all.iter().filter(|(other, _)| *other != name);
        *headers = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    }
}
