//! The URL that picks the store.

/// What is understood.
const SUPPORTED: &str = "memory: and postgres:";

const HOW_TO_POSTGRES: &str = "`--store postgres:` needs the address of a database. On a local server:

  createdb payments
  cargo run --example payments --features postgres -- --store postgres://USER:PASSWORD@localhost:5432/payments

USER is your name and :PASSWORD can be left out, unless the server was told otherwise. Its socket is reached with
postgres:///payments?host=/var/run/postgresql";

/// Where keys and charges are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreUrl<'a> {
    Memory,
    /// In the database at this address, which may hold a password.
    Postgres(&'a str),
}

impl<'a> StoreUrl<'a> {
    /// Reads a URL. The error names the scheme at most: the rest of a URL may hold a password.
    pub(crate) fn parse(url: &'a str) -> Result<Self, String> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("the store must be a URL, such as `--store memory:`; supported: {SUPPORTED}"));
        };
        // RFC 3986, section 3.1: the case of a scheme does not matter.
        match (scheme.to_ascii_lowercase().as_str(), rest) {
            ("memory", "") => Ok(Self::Memory),
            ("memory", _) => {
                Err("the store in memory has no address; write `--store memory:` and nothing after it".to_owned())
            }
            ("postgres" | "postgresql", "" | "/" | "//" | "///") => Err(HOW_TO_POSTGRES.to_owned()),
            ("postgres" | "postgresql", rest) if rest.starts_with("//") => Ok(Self::Postgres(url)),
            ("postgres" | "postgresql", _) => Err(format!("the address begins with `//`; {HOW_TO_POSTGRES}")),
            (scheme, _) => Err(format!("there is no store for {scheme}: URLs; supported: {SUPPORTED}")),
        }
    }
}
