//! Time for which a known version may be used without a request to the origin.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bywash_store::time::parse_duration;

/// Time for which the engine trusts the known version of an object.
///
/// In every mode, one read never mixes two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Revalidates a version confirmed longer ago than this, by one request for all waiting reads. Cached blocks stay
    /// if the version is the same.
    Revalidate(Duration),
    /// Objects never change once written: never revalidated.
    Immutable,
}

impl Consistency {
    /// Returns the maximum age of a confirmation; `None` means any.
    #[must_use]
    pub fn max_age(self) -> Option<Duration> {
        match self {
            Self::Revalidate(age) => Some(age),
            Self::Immutable => None,
        }
    }
}

impl Default for Consistency {
    /// One second: staleness that a person does not notice, and one request for all reads of a query.
    fn default() -> Self {
        Self::Revalidate(Duration::from_secs(1))
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revalidate(age) => write!(f, "revalidate={}ms", age.as_millis()),
            Self::Immutable => write!(f, "immutable"),
        }
    }
}

/// The text is not a consistency setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "consistency {0:?} is not understood; write revalidate=1s, ttl=7d or immutable (units ms, s, m, h, d, w)"
)]
pub struct ParseConsistencyError(String);

impl FromStr for Consistency {
    type Err = ParseConsistencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseConsistencyError(text.to_owned());
        match text.split_once('=') {
            None if text == "immutable" => Ok(Self::Immutable),
            // "ttl" is the usual name for long times.
            Some(("revalidate" | "ttl", age)) => {
                parse_duration(age).map(Self::Revalidate).map_err(|_| bad())
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_output_and_rejects_other_text() {
        for (text, value) in [
            (
                "revalidate=1s",
                Consistency::Revalidate(Duration::from_secs(1)),
            ),
            (
                "ttl=7d",
                Consistency::Revalidate(Duration::from_secs(604_800)),
            ),
            (
                "ttl=250ms",
                Consistency::Revalidate(Duration::from_millis(250)),
            ),
            ("immutable", Consistency::Immutable),
        ] {
            assert_eq!(text.parse(), Ok(value));
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for bad in [
            "",
            "ttl",
            "ttl=",
            "ttl=5",
            "ttl=s",
            "revalidate=-1s",
            "forever",
            "immutable=1s",
        ] {
            assert!(bad.parse::<Consistency>().is_err(), "{bad}");
        }
    }
}
