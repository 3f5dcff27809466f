//! The dialects that our own answers can follow.

use std::{fmt, str::FromStr};

/// Which of the common dialects the answers follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// A key sent with other content is answered with 400; keys may be bare or quoted.
    #[default]
    Default,
    /// The IETF draft "The Idempotency-Key HTTP Header Field": a key sent with other content is answered with 422, and
    /// the key must be a String of RFC 9651, in double quotes.
    Ietf,
    /// Stripe's conventions: as the default, and each problem document also carries Stripe's `error` object, with the
    /// type `idempotency_error` for a mismatch and the code `idempotency_key_in_use` while the first request runs.
    Stripe,
}

/// Writes the name: `default`, `ietf` or `stripe`.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Ietf => "ietf",
            Self::Stripe => "stripe",
        })
    }
}

/// Reads the name: `default`, `ietf` or `stripe`.
impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        [Self::Default, Self::Ietf, Self::Stripe]
            .into_iter()
            .find(|profile| profile.to_string() == name)
            .ok_or(UnknownProfile(()))
    }
}

/// A name that is not one of a [`Profile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownProfile(());

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a profile is `default`, `ietf` or `stripe`")
    }
}

impl std::error::Error for UnknownProfile {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_by_the_name_it_is_written_by() {
        for profile in [Profile::Default, Profile::Ietf, Profile::Stripe] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("IETF".parse::<Profile>().unwrap_err().to_string().contains("`ietf`"));
    }
}
