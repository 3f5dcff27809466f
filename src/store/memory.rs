//! Records in the memory of this process.

/// Keeps records in the memory of this process.
#[derive(Debug)]
pub struct MemoryStore {}
