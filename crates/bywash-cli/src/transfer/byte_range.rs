//! Byte ranges that a user asks for, as in HTTP's `Range`.

use std::ops::Range;
use std::str::FromStr;

/// A byte range as in HTTP's `Range`: `0-99` (both ends included), `100-`, `-20` (the last 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a range; write 0-99, 100- or -20");
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| bad());
        let (start, end) = text.split_once('-').ok_or_else(bad)?;
        match (start.is_empty(), end.is_empty()) {
            (true, false) => Ok(Self::Last(number(end)?)),
            (false, true) => Ok(Self::From(number(start)?)),
            (false, false) if number(start)? <= number(end)? => {
                Ok(Self::Between(number(start)?, number(end)?))
            }
            _ => Err(bad()),
        }
    }
}

impl ByteRange {
    /// The range in an object of `size` bytes; `None` if it is empty.
    pub(crate) fn of(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Between(start, end) => start..end.saturating_add(1).min(size),
            Self::From(start) => start..size,
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_resolved() {
        for (text, range, of_ten) in [
            ("0-0", ByteRange::Between(0, 0), Some(0..1)),
            ("2-5", ByteRange::Between(2, 5), Some(2..6)),
            ("2-50", ByteRange::Between(2, 50), Some(2..10)),
            ("3-", ByteRange::From(3), Some(3..10)),
            ("-4", ByteRange::Last(4), Some(6..10)),
            ("-40", ByteRange::Last(40), Some(0..10)),
            ("10-", ByteRange::From(10), None),
            ("-0", ByteRange::Last(0), None),
        ] {
            assert_eq!(text.parse(), Ok(range), "{text}");
            assert_eq!(range.of(10), of_ten, "{text}");
        }
        for bad in ["", "-", "5", "5-2", "a-b", "1-2-3", "--2"] {
            assert!(bad.parse::<ByteRange>().is_err(), "{bad}");
        }
    }
}
