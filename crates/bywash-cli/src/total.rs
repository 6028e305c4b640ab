//! Sums of sizes reported by endpoints, which may be false.

use std::fmt;

use indicatif::HumanBytes;
use serde::{Serialize, Serializer};

/// A sum of bytes that saturates at `u64::MAX` and records that.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Total {
    bytes: u64,
    exceeded: bool,
}

impl Total {
    pub(crate) fn add(&mut self, bytes: u64) {
        let (sum, exceeded) = self.bytes.overflowing_add(bytes);
        self.exceeded |= exceeded;
        self.bytes = if self.exceeded { u64::MAX } else { sum };
    }

    /// The sum, or `u64::MAX` if it is larger.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether the sum is larger than `u64::MAX`.
    pub(crate) fn exceeded(&self) -> bool {
        self.exceeded
    }

    /// The sum as text; one that is too large begins with `>`.
    pub(crate) fn shown(self, human: bool) -> String {
        let mark = if self.exceeded { ">" } else { "" };
        if human {
            format!("{mark}{}", HumanBytes(self.bytes))
        } else {
            format!("{mark}{}", self.bytes)
        }
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(false))
    }
}

impl Serialize for Total {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflowing_sum_saturates_and_is_marked() {
        let sum = |sizes: &[u64]| {
            let mut total = Total::default();
            sizes.iter().for_each(|bytes| total.add(*bytes));
            total
        };
        let exact = sum(&[u64::MAX - 1, 1]);
        assert_eq!((exact.bytes(), exact.exceeded()), (u64::MAX, false));
        let more = sum(&[u64::MAX, 1, 5]);
        assert_eq!((more.bytes(), more.exceeded()), (u64::MAX, true));
        assert_eq!(more.to_string(), ">18446744073709551615");
        assert_eq!(more.shown(true), ">16.00 EiB");
    }
}
