//! What a replay leaves out, and how it is framed anew.

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

/// Marks a replay, and makes its framing valid: a `Content-Length` stays only where it is allowed and true.
///
/// RFC 9110 section 8.6: none with 1xx and 204; with 304 and in answers to HEAD it states the length of another
/// representation, so that it cannot be checked and stays.
pub(crate) fn make_replay(head: &mut Parts, body_len: usize, is_head: bool) {
    let stated = head.headers.get(header::CONTENT_LENGTH);
    let stays = match head.status {
        status if status.is_informational() || status == StatusCode::NO_CONTENT => false,
        StatusCode::NOT_MODIFIED => true,
        _ => {
            (is_head && body_len == 0)
                || stated.is_some_and(|value| value.as_bytes() == body_len.to_string().as_bytes())
        }
    };
    if stated.is_some() && !stays {
        // Not `remove`: it puts the last header into the place of the removed one, and the lines have an order.
        let headers = std::mem::take(&mut head.headers);
        let stay = headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH);
        head.headers = stay.map(|(name, value)| (name.clone(), value.clone())).collect();
    }
    head.headers.insert(REPLAYED.clone(), HeaderValue::from_static("true"));
}
