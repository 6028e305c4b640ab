//! How long a known version may be used without asking the origin.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long the engine trusts the known version of an object.
///
/// In every mode, one read never mixes two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Revalidates a version confirmed longer ago than this, by one request for all waiting reads. Cached blocks stay
    /// if the version is the same.
    Revalidate(Duration),
    /// Same as `Revalidate`, under the usual name for long times.
    Ttl(Duration),
    /// Objects never change once written: never revalidated.
    Immutable,
}

impl Consistency {
    /// Returns the maximum age of a confirmation; `None` means any.
    #[must_use]
    pub fn max_age(self) -> Option<Duration> {
        match self {
            Self::Revalidate(age) | Self::Ttl(age) => Some(age),
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
            Self::Ttl(age) => write!(f, "ttl={}ms", age.as_millis()),
            Self::Immutable => write!(f, "immutable"),
        }
    }
}

/// The text is not a consistency setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "consistency {0:?} is not understood; write revalidate=1s, ttl=5m or immutable (units ms, s, m, h)"
)]
pub struct ParseConsistencyError(String);

impl FromStr for Consistency {
    type Err = ParseConsistencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseConsistencyError(text.to_owned());
        match text.split_once('=') {
            None if text == "immutable" => Ok(Self::Immutable),
            Some(("revalidate", age)) => parse_duration(age).map(Self::Revalidate).ok_or_else(bad),
            Some(("ttl", age)) => parse_duration(age).map(Self::Ttl).ok_or_else(bad),
            _ => Err(bad()),
        }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
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
            ("ttl=5m", Consistency::Ttl(Duration::from_secs(300))),
            ("ttl=250ms", Consistency::Ttl(Duration::from_millis(250))),
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
