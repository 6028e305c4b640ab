//! Spans of time, as people write them.

use std::time::Duration;

/// Reads `7d`, `12h`, `30m` or `90s`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no span of time; write 7d, 12h, 30m or 90s");
    let units = [("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1)];
    let read = |(unit, seconds)| Some((text.strip_suffix(unit)?, seconds));
    let (count, seconds) = units.into_iter().find_map(read).ok_or_else(bad)?;
    let count: u64 = count.parse().map_err(|_| bad())?;
    count
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, seconds) in [("7d", 604_800), ("12h", 43_200), ("30m", 1800), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in [
            "",
            "d",
            "7",
            "7w",
            "-1d",
            "1.5h",
            "7\u{e4}",
            "99999999999999999999d",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
