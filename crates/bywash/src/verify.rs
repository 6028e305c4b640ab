//! Which reads are compared with the digest that the store states.

use std::fmt;
use std::str::FromStr;

/// Which reads are compared with the digest of the whole object that the store states. A digest that the caller gives
/// is always compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// None.
    Off,
    /// Reads and downloads of whole objects.
    #[default]
    Whole,
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Whole => "whole",
        })
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "whole" => Ok(Self::Whole),
            other => Err(format!("{other:?} is not known; write off or whole")),
        }
    }
}
