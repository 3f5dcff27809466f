//! The encoding of a stored response: written piece by piece into one allocation, read with every byte checked.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{DamagedResponse, StoredResponse};

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

/// Reads and checks an encoding.
pub(super) fn read(encoded: Bytes) -> Result<StoredResponse, DamagedResponse> {
    if encoded.len() < PREFIX + CHECKSUM {
        return Err(DamagedResponse("it is too short"));
    }
    if encoded[0] != VERSION {
        return Err(DamagedResponse("it is of an unknown format version"));
    }
    let (content, checksum) = encoded.split_at(encoded.len() - CHECKSUM);
    if crc32fast::hash(content).to_be_bytes() != checksum {
        return Err(DamagedResponse("its checksum does not match"));
    }
    let replayable = match encoded[1] {
        REPLAYABLE => true,
        NOT_REPLAYABLE => false,
        _ => return Err(DamagedResponse("it is of an unknown kind")),
    };
    let status = StatusCode::from_u16(u16::from_be_bytes([encoded[2], encoded[3]]))
        .map_err(|_| DamagedResponse("its status is not an HTTP status"))?;
    let total = [4, 8, 12].into_iter().try_fold(PREFIX + CHECKSUM, |sum, at| sum.checked_add(length(&encoded, at)));
    if total != Some(encoded.len()) {
        return Err(DamagedResponse("its lengths do not add up"));
    }
    let [head, _, trailers] = sections(&encoded);
    lines(encoded.slice(head))?;
    lines(encoded.slice(trailers))?;
    Ok(StoredResponse { encoded, status, replayable })
}

/// Takes an encoding that was checked before.
#[cfg(feature = "memory")]
pub(super) fn checked(encoded: Bytes) -> StoredResponse {
    let status = StatusCode::from_u16(u16::from_be_bytes([encoded[2], encoded[3]]));
    let status = status.expect("the status was checked when the encoding was made or read");
    let replayable = encoded[1] == REPLAYABLE;
    StoredResponse { encoded, status, replayable }
}

/// Decodes headers, body and trailers of a checked encoding.
pub(super) fn decode(encoded: &Bytes) -> (HeaderMap, Bytes, Option<HeaderMap>) {
    let [head, body, trailers] = sections(encoded);
    let checked = "the lines were checked when the encoding was made or read";
    let trailers = (!trailers.is_empty()).then(|| lines(encoded.slice(trailers)).expect(checked));
    (lines(encoded.slice(head)).expect(checked), encoded.slice(body), trailers)
}

/// Returns the body of a checked encoding.
pub(super) fn body(encoded: &Bytes) -> Bytes {
    let [_, body, _] = sections(encoded);
    encoded.slice(body)
}

fn sections(encoded: &[u8]) -> [Range<usize>; 3] {
    let head = PREFIX..PREFIX + length(encoded, 4);
    let body = head.end..head.end + length(encoded, 8);
    let trailers = body.end..body.end + length(encoded, 12);
    [head, body, trailers]
}

fn length(encoded: &[u8], at: usize) -> usize {
    let field = encoded[at..at + 4].try_into().expect("a range of four is four bytes");
    u32::from_be_bytes(field) as usize
}

fn lines(mut rest: Bytes) -> Result<HeaderMap, DamagedResponse> {
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

/// Writes a stored response piece by piece into one allocation.
#[derive(Debug)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
    body_start: usize,
    status: StatusCode,
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
        Self { body_start: bytes.len(), bytes, status }
    }

    /// Starts the record of a response that cannot be replayed.
    pub(super) fn not_replayable(status: StatusCode) -> Self {
        let mut encoder = Self::new(status, &HeaderMap::new(), |_| true, 0);
        encoder.bytes[1] = NOT_REPLAYABLE;
        encoder
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

    /// Ends the encoding with the trailers that `keep` lets through.
    pub(crate) fn finish(mut self, trailers: Option<&HeaderMap>, keep: impl Fn(&HeaderName) -> bool) -> StoredResponse {
        let body = self.body_len();
        set_length(&mut self.bytes, 8, body);
        let start = self.bytes.len();
        for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| keep(name)) {
            push_line(&mut self.bytes, name, value);
        }
        let trailers = self.bytes.len() - start;
        set_length(&mut self.bytes, 12, trailers);
        let checksum = crc32fast::hash(&self.bytes);
        self.bytes.reserve_exact(CHECKSUM);
        self.bytes.extend_from_slice(&checksum.to_be_bytes());
        self.bytes.shrink_to_fit();
        let replayable = self.bytes[1] == REPLAYABLE;
        StoredResponse { encoded: Bytes::from(self.bytes), status: self.status, replayable }
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
        encoder.finish(Some(&trailers), |_| true)
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
        let golden = include_bytes!("../../tests/golden/response-v1.bin");
        assert_eq!(sample().as_encoded(), &golden[..]);
        assert_eq!(StoredResponse::from_encoded(&golden[..]).unwrap(), sample());
    }
}
