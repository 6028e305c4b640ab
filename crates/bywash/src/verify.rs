//! Reads that are compared with the digest that the store states.

use std::fmt;
use std::str::FromStr;

/// Reads that are compared with the digest of the whole object that the store states. A digest that the caller gives
/// is always compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// None.
    Off,
    /// Reads and downloads of whole objects.
    #[default]
    Whole,
    /// As [`Self::Whole`], and before a ranged read the whole object is read and compared, unless all of its blocks in
    /// memory were. An object that does not fit the memory is read whole for each range.
    Always,
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Whole => "whole",
            Self::Always => "always",
        })
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "whole" => Ok(Self::Whole),
            "always" => Ok(Self::Always),
            other => Err(format!(
                "{other:?} is not known; write off, whole or always"
            )),
        }
    }
}
