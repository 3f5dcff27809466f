//! Picks the store by its URL.

use std::sync::Arc;

use tower_idempotency::{MemoryStore, Store};

/// What [`open`] understands.
const SUPPORTED: &str = "memory:";

/// Opens the store that a URL names.
///
/// The error names the scheme at most: the rest of a URL may hold a password.
pub(crate) async fn open(url: &str) -> Result<Arc<dyn Store>, String> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(format!("the store must be a URL, such as `--store memory:`; supported: {SUPPORTED}"));
    };
    // RFC 3986, section 3.1: the case of a scheme does not matter.
    match scheme.to_ascii_lowercase().as_str() {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStore::new())),
        "memory" => Err("the store in memory has no address; write `--store memory:` and nothing after it".to_owned()),
        scheme => Err(format!("there is no store for {scheme}: URLs; supported: {SUPPORTED}")),
    }
}
