//! The stored response: one versioned encoding of status, headers, body and trailers.

use std::{fmt, ops::Range};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};

/// Layout of version 1, all numbers big-endian:
/// version (1), kind (1), status (2), head length (4), body length (4), trailers length (4),
/// then head, body and trailers, and last the CRC-32 of everything before it (4).
/// A header line is: name length (2), value length (4, the top bit marks a sensitive value), name, value.
const VERSION: u8 = 1;
const REPLAYABLE: u8 = 1;
const NOT_REPLAYABLE: u8 = 2;
const PREFIX: usize = 16;
const CHECKSUM: usize = 4;
const SENSITIVE: u32 = 1 << 31;

/// A response as a store keeps it: one opaque, versioned and checksummed run of bytes.
///
/// It either holds a whole response (status, header lines, body, trailers), or the fact that a response went out that
/// cannot be replayed, with its status. Clones share the bytes.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_idempotency::StoredResponse;
///
/// let response = Response::builder().status(201).header("location", "/v1/charges/7").body("{}".into()).unwrap();
/// let stored = StoredResponse::of(&response);
/// let kept_by_a_store = stored.as_encoded().to_vec();
///
/// let read = StoredResponse::from_encoded(kept_by_a_store)?;
/// assert_eq!(read.status(), StatusCode::CREATED);
/// assert_eq!(read.to_response().unwrap().headers()["location"], "/v1/charges/7");
/// # Ok::<(), tower_idempotency::DamagedResponse>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoredResponse {
    encoded: Bytes,
}

impl StoredResponse {
    /// Encodes a whole response, every header line included, without trailers.
    ///
    /// # Panics
    ///
    /// Panics if the headers or the body are 4 GiB or longer.
    #[must_use]
    pub fn of(response: &Response<Bytes>) -> Self {
        let mut encoder = Encoder::new(response.status(), response.headers(), |_| true, response.body().len());
        encoder.push(response.body());
        encoder.finish(None)
    }

    /// Encodes the fact that a response with this status went out that cannot be replayed.
    #[must_use]
    pub fn not_replayable(status: StatusCode) -> Self {
        let mut encoder = Encoder::new(status, &HeaderMap::new(), |_| true, 0);
        encoder.bytes[1] = NOT_REPLAYABLE;
        encoder.finish(None)
    }

    /// Reads what [`as_encoded`](Self::as_encoded) gave, and checks all of it: version, lengths, checksum, every header.
    ///
    /// # Errors
    ///
    /// [`DamagedResponse`] if the bytes are not exactly what this or an earlier version of the crate wrote.
    pub fn from_encoded(encoded: impl Into<Bytes>) -> Result<Self, DamagedResponse> {
        let stored = Self { encoded: encoded.into() };
        stored.check()?;
        Ok(stored)
    }

    /// Returns the bytes that a store has to keep.
    #[must_use]
    pub fn as_encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Returns the status of the first answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(u16::from_be_bytes([self.encoded[2], self.encoded[3]]))
            .expect("the status was checked when the encoding was made or read")
    }

    /// Tells whether the whole response is here, or only the fact that one went out.
    #[must_use]
    pub fn is_replayable(&self) -> bool {
        self.encoded[1] == REPLAYABLE
    }

    /// Decodes status, headers and body; `None` if the response is not replayable. Trailers are left out.
    #[must_use]
    pub fn to_response(&self) -> Option<Response<Bytes>> {
        self.is_replayable().then(|| self.decode().0)
    }

    /// Decodes everything. The header lines are as they were given, in order.
    pub(crate) fn decode(&self) -> (Response<Bytes>, Option<HeaderMap>) {
        let [head, body, trailers] = self.sections();
        let mut response = Response::new(self.encoded.slice(body));
        *response.status_mut() = self.status();
        *response.headers_mut() =
            self.lines(head).expect("the headers were checked when the encoding was made or read");
        let trailers = (!trailers.is_empty())
            .then(|| self.lines(trailers).expect("the trailers were checked when the encoding was made or read"));
        (response, trailers)
    }

    /// Returns the body within the encoding, sharing its bytes.
    pub(crate) fn body(&self) -> Bytes {
        let [_, body, _] = self.sections();
        self.encoded.slice(body)
    }

    fn sections(&self) -> [Range<usize>; 3] {
        let head = PREFIX..PREFIX + self.length(4);
        let body = head.end..head.end + self.length(8);
        let trailers = body.end..body.end + self.length(12);
        [head, body, trailers]
    }

    fn length(&self, at: usize) -> usize {
        let field = self.encoded[at..at + 4].try_into().expect("a range of four is four bytes");
        u32::from_be_bytes(field) as usize
    }

    fn lines(&self, section: Range<usize>) -> Result<HeaderMap, DamagedResponse> {
        let mut rest = self.encoded.slice(section);
        let mut map = HeaderMap::new();
        while !rest.is_empty() {
            if rest.len() < 6 {
                return Err(DamagedResponse("a header line is cut off"));
            }
            let name_len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
            let value_field = u32::from_be_bytes([rest[2], rest[3], rest[4], rest[5]]);
            let value_len = (value_field & !SENSITIVE) as usize;
            if rest.len() - 6 < name_len + value_len {
                return Err(DamagedResponse("a header line is cut off"));
            }
            let _ = rest.split_to(6);
            let name = HeaderName::from_bytes(&rest.split_to(name_len))
                .map_err(|_| DamagedResponse("a header name is not valid"))?;
            let mut value = HeaderValue::from_maybe_shared(rest.split_to(value_len))
                .map_err(|_| DamagedResponse("a header value is not valid"))?;
            value.set_sensitive(value_field & SENSITIVE != 0);
            map.append(name, value);
        }
        Ok(map)
    }

    fn check(&self) -> Result<(), DamagedResponse> {
        let bytes = &self.encoded;
        if bytes.len() < PREFIX + CHECKSUM {
            return Err(DamagedResponse("it is too short"));
        }
        if bytes[0] != VERSION {
            return Err(DamagedResponse("it is of an unknown format version"));
        }
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if crc32fast::hash(content).to_be_bytes() != checksum {
            return Err(DamagedResponse("its checksum does not match"));
        }
        if !matches!(bytes[1], REPLAYABLE | NOT_REPLAYABLE) {
            return Err(DamagedResponse("it is of an unknown kind"));
        }
        if StatusCode::from_u16(u16::from_be_bytes([bytes[2], bytes[3]])).is_err() {
            return Err(DamagedResponse("its status is not an HTTP status"));
        }
        let total = [4, 8, 12].into_iter().try_fold(PREFIX + CHECKSUM, |sum, at| sum.checked_add(self.length(at)));
        if total != Some(bytes.len()) {
            return Err(DamagedResponse("its lengths do not add up"));
        }
        let [head, _, trailers] = self.sections();
        self.lines(head)?;
        self.lines(trailers)?;
        Ok(())
    }
}

impl fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResponse")
            .field("status", &self.status().as_u16())
            .field("replayable", &self.is_replayable())
            .field("len", &self.encoded.len())
            .finish()
    }
}

/// Marks a response whose request was not executed: put into the extensions of a response, it makes the layer
/// release the key instead of storing the response, so that a retry runs.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_idempotency::NothingExecuted;
///
/// fn sold_out() -> Response<&'static str> {
///     let mut response = Response::new("nobody is at the counter, come back later");
///     *response.status_mut() = StatusCode::CONFLICT;
///     response.extensions_mut().insert(NothingExecuted);
///     response
/// }
/// # assert!(sold_out().extensions().get::<NothingExecuted>().is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NothingExecuted;

/// Bytes that are not a stored response: cut off, changed, or of another format version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedResponse(&'static str);

impl fmt::Display for DamagedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stored response cannot be read: {}", self.0)
    }
}

impl std::error::Error for DamagedResponse {}

/// Writes a stored response piece by piece into one allocation.
#[derive(Debug)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
    body_start: usize,
}

impl Encoder {
    /// Starts with status and the header lines that `keep` lets through, and room for a body of `body_hint` bytes.
    pub(crate) fn new(
        status: StatusCode,
        headers: &HeaderMap,
        keep: impl Fn(&HeaderName) -> bool,
        body_hint: usize,
    ) -> Self {
        let kept = || headers.iter().filter(|(name, _)| keep(name));
        let head: usize = kept().map(|(name, value)| line_len(name, value)).sum();
        let mut bytes = Vec::with_capacity(PREFIX + head + body_hint + CHECKSUM);
        bytes.extend_from_slice(&[VERSION, REPLAYABLE]);
        bytes.extend_from_slice(&status.as_u16().to_be_bytes());
        bytes.extend_from_slice(&[0; PREFIX - 4]);
        kept().for_each(|(name, value)| push_line(&mut bytes, name, value));
        set_length(&mut bytes, 4, head);
        Self { body_start: bytes.len(), bytes }
    }

    /// Appends a piece of the body.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// Returns how many bytes of body there are so far.
    pub(crate) fn body_len(&self) -> usize {
        self.bytes.len() - self.body_start
    }

    /// Takes back the body pushed so far, giving the encoding up.
    pub(crate) fn into_body(self) -> Bytes {
        Bytes::from(self.bytes).slice(self.body_start..)
    }

    /// Ends the encoding.
    pub(crate) fn finish(mut self, trailers: Option<&HeaderMap>) -> StoredResponse {
        let body = self.body_len();
        set_length(&mut self.bytes, 8, body);
        let start = self.bytes.len();
        for (name, value) in trailers.into_iter().flatten() {
            push_line(&mut self.bytes, name, value);
        }
        let trailers = self.bytes.len() - start;
        set_length(&mut self.bytes, 12, trailers);
        let checksum = crc32fast::hash(&self.bytes);
        self.bytes.reserve_exact(CHECKSUM);
        self.bytes.extend_from_slice(&checksum.to_be_bytes());
        self.bytes.shrink_to_fit();
        StoredResponse { encoded: Bytes::from(self.bytes) }
    }
}

fn line_len(name: &HeaderName, value: &HeaderValue) -> usize {
    6 + name.as_str().len() + value.len()
}

fn push_line(bytes: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    let name_len = u16::try_from(name.as_str().len()).expect("the http crate limits a header name to 64 KiB");
    let value_len = u32::try_from(value.len())
        .ok()
        .filter(|len| len & SENSITIVE == 0)
        .expect("a header value is shorter than 2 GiB, since servers bound their header size far below");
    let sensitive = if value.is_sensitive() { SENSITIVE } else { 0 };
    bytes.extend_from_slice(&name_len.to_be_bytes());
    bytes.extend_from_slice(&(value_len | sensitive).to_be_bytes());
    bytes.extend_from_slice(name.as_str().as_bytes());
    bytes.extend_from_slice(value.as_bytes());
}

fn set_length(bytes: &mut [u8], at: usize, len: usize) {
    let len = u32::try_from(len).expect("a stored response is limited to less than 4 GiB");
    bytes[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

/// Tells whether a header line belongs to one connection or one moment, and so is never part of a replay: the
/// connection-specific fields of RFC 9110 section 7.6.1, those named by `Connection`, `Date`, and our own marker.
pub(crate) fn is_momentary(name: &HeaderName, headers: &HeaderMap) -> bool {
    const NEVER: [HeaderName; 5] =
        [header::CONNECTION, header::TRANSFER_ENCODING, header::TE, header::UPGRADE, header::DATE];
    NEVER.contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | REPLAYED)
        || headers.get_all(header::CONNECTION).iter().any(|value| {
            value
                .as_bytes()
                .split(|byte| *byte == b',')
                .any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
        })
}

/// The name of the header line that marks a replay.
pub(crate) const REPLAYED: &str = "idempotent-replayed";

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
        head.headers.remove(header::CONTENT_LENGTH);
    }
    head.headers.insert(HeaderName::from_static(REPLAYED), HeaderValue::from_static("true"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_bytes(&[0xE9, 0xFF]).unwrap());
        let mut secret = HeaderValue::from_static("s");
        secret.set_sensitive(true);
        headers.append("x-b", secret);
        let mut trailers = HeaderMap::new();
        trailers.append("grpc-status", HeaderValue::from_static("0"));
        let mut encoder = Encoder::new(StatusCode::CREATED, &headers, |_| true, 3);
        encoder.push(b"a\0");
        encoder.push(b"b");
        encoder.finish(Some(&trailers))
    }

    #[test]
    fn a_response_survives_the_round_trip() {
        let read = StoredResponse::from_encoded(sample().as_encoded().clone()).unwrap();
        let (response, trailers) = read.decode();
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(&response.body()[..], b"a\0b");
        let values: Vec<_> = response.headers().get_all("x-a").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(values, [&b"1"[..], &[0xE9, 0xFF]]);
        assert!(response.headers()["x-b"].is_sensitive());
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
        assert!(read.is_replayable());
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let whole = sample().as_encoded().to_vec();
        for at in 0..whole.len() {
            for flip in [1, 0x80] {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                assert!(StoredResponse::from_encoded(changed).is_err(), "byte {at} changed");
            }
            assert!(StoredResponse::from_encoded(whole[..at].to_vec()).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_valid_checksum_over_nonsense_is_refused() {
        let whole = sample().as_encoded().to_vec();
        for (at, value) in [(0, 2), (1, 9), (2, 0xFF), (4, 0xFF), (7, 1), (11, 200), (15, 1), (17, 200), (22, b' ')] {
            let mut changed = whole[..whole.len() - CHECKSUM].to_vec();
            changed[at] = value;
            let checksum = crc32fast::hash(&changed);
            changed.extend_from_slice(&checksum.to_be_bytes());
            assert!(StoredResponse::from_encoded(changed).is_err(), "byte {at} set to {value}");
        }
    }

    #[test]
    fn an_unreplayable_response_keeps_its_status() {
        let stored = StoredResponse::not_replayable(StatusCode::ACCEPTED);
        let read = StoredResponse::from_encoded(stored.as_encoded().clone()).unwrap();
        assert!(!read.is_replayable());
        assert_eq!(read.status(), StatusCode::ACCEPTED);
        assert!(read.to_response().is_none());
    }

    /// The golden file: a release must read what an earlier one wrote.
    #[test]
    fn version_1_reads_and_writes_the_golden_bytes() {
        let golden = include_bytes!("../tests/golden/response-v1.bin");
        assert_eq!(sample().as_encoded(), &golden[..]);
        assert_eq!(StoredResponse::from_encoded(&golden[..]).unwrap(), sample());
    }
}
