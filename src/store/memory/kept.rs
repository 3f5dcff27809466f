//! What a record keeps of a key and of a response: copies of their own, packed, where that is cheap.
//!
//! What a request allocates is freed with the request then, and the allocator serves the next request from the same
//! places, instead of fetching new memory for every part of every record.

use std::sync::Arc;

use bytes::Bytes;

use crate::StoredResponse;

/// The longest text that is kept within the record; a UUID has 36 bytes.
const INLINE: usize = 46;

/// A response up to this length in bytes is copied; a longer one is shared with the request that made it.
const COPIED: usize = 4096;

/// A text of any length, without an allocation of its own if it is short.
#[derive(Debug)]
pub(super) enum Text {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<str>),
}

impl Text {
    pub(super) fn new(text: &str) -> Self {
        match u8::try_from(text.len()) {
            Ok(len) if text.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                bytes[..text.len()].copy_from_slice(text.as_bytes());
                Self::Inline { len, bytes }
            }
            _ => Self::Heap(text.into()),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Self::Heap(text) => text.as_bytes(),
        }
    }
}

/// A response.
#[derive(Debug)]
pub(super) enum Response {
    Copied(Arc<[u8]>),
    Shared(StoredResponse),
}

impl Response {
    pub(super) fn new(response: &StoredResponse) -> Self {
        let encoded = response.as_encoded();
        if encoded.len() <= COPIED { Self::Copied(Arc::from(&encoded[..])) } else { Self::Shared(response.clone()) }
    }

    pub(super) fn read(&self) -> StoredResponse {
        match self {
            Self::Copied(encoded) => StoredResponse::checked(Bytes::from_owner(Arc::clone(encoded))),
            Self::Shared(response) => response.clone(),
        }
    }

    /// The length of the encoding in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Copied(encoded) => encoded.len(),
            Self::Shared(response) => response.as_encoded().len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_length_is_kept_as_it_is() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 255, 256, 5000] {
            let text = "é".repeat(len / 2) + &"a".repeat(len % 2);
            assert_eq!(Text::new(&text).as_bytes(), text.as_bytes());
        }
    }

    #[test]
    fn a_response_of_any_length_is_kept_as_it_is() {
        for len in [0, 1, COPIED - 100, COPIED, COPIED + 1, 100_000] {
            let response = http::Response::builder().status(201).header("x", "y").body(vec![7; len].into()).unwrap();
            let stored = StoredResponse::of(&response);
            let kept = Response::new(&stored);
            assert_eq!(kept.read(), stored);
            assert_eq!(kept.len(), stored.as_encoded().len());
        }
        let done = StoredResponse::not_replayable(http::StatusCode::CREATED);
        assert_eq!(Response::new(&done).read(), done);
    }
}
