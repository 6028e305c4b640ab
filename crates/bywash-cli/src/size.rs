//! Parsing and formatting of sizes.

/// A memory size: bytes, or a fraction of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Memory {
    Bytes(u64),
    /// Above 0, at most 100.
    Percent(f64),
}

impl Memory {
    /// The size in bytes, given the memory of the machine or its control group.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of memory needs no more than 53 bits, and is positive"
    )]
    pub(crate) fn bytes(self, available: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (available as f64 * percent / 100.0) as u64,
        }
    }
}

impl std::str::FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is not an amount of memory; write 512MiB, 4GiB, 25% or a number of bytes"
            )
        };
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
            let fits = percent > 0.0 && percent <= 100.0;
            return fits.then_some(Self::Percent(percent)).ok_or_else(bad);
        }
        parse_bytes(text)
            .filter(|bytes| *bytes > 0)
            .map(Self::Bytes)
            .ok_or_else(bad)
    }
}

/// Parses a size such as `10GiB`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text:?} is no size; write 512MiB, 10GiB or a number of bytes"))
}

/// Parses a number of bytes: `K`, `M`, `G`, `T` and `KiB` are powers of 1024, `KB` of 1000.
fn parse_bytes(text: &str) -> Option<u64> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    // Digits beyond the ninth are less than a byte in all units but the largest, and never matter.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(unit) * fraction.parse::<u128>().ok()? / scale;
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_read() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64M", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("123", 123),
            ("123b", 123),
        ] {
            assert_eq!(text.parse(), Ok(Memory::Bytes(bytes)), "{text}");
        }
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
        assert!(parse("25%").is_err() && parse("0").is_err());
        assert_eq!("25%".parse(), Ok(Memory::Percent(25.0)));
        assert_eq!(Memory::Percent(25.0).bytes(8 << 30), 2 << 30);
        assert_eq!(Memory::Bytes(7).bytes(1), 7);
        for bad in [
            "",
            "0",
            "MiB",
            "-1",
            "1.2.3M",
            "1XB",
            "0%",
            "101%",
            "%",
            "nan%",
            "99999999T",
        ] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
