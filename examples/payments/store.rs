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
        return Err(format!("the store must be a URL; supported: {SUPPORTED}"));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStore::new())),
        "memory" => Err("nothing may follow after memory: in the URL of the store".to_owned()),
        _ => Err(format!("there is no store for {scheme}: URLs; supported: {SUPPORTED}")),
    }
}
