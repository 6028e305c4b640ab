//! Times and durations in requests.

use std::ops::RangeInclusive;

use bywash::time::parse_duration;
use bywash_series::{Clock, SystemClock};
use chrono::DateTime;

/// The current time in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    SystemClock.now()
}

/// Returns the range between two times, both inclusive. A missing one is unbounded.
pub(crate) fn range(
    start: Option<&str>,
    end: Option<&str>,
    now: i64,
) -> Result<RangeInclusive<i64>, String> {
    let start = start.map_or(Ok(i64::MIN), |text| moment("start", text, now))?;
    let end = end.map_or(Ok(i64::MAX), |text| moment("end", text, now))?;
    if start > end {
        return Err("the start is after the end".to_owned());
    }
    Ok(start..=end)
}

/// Parses a time: nanoseconds since 1970, `2026-11-22T07:00:00Z`, `now`, or `-15m` for a time ago.
fn moment(name: &str, text: &str, now: i64) -> Result<i64, String> {
    let wrong = || {
        format!(
            "{name} {text:?} is no moment; write nanoseconds since 1970, 2026-11-22T07:00:00Z, now, or -15m"
        )
    };
    if text == "now" {
        return Ok(now);
    }
    if let Some(ago) = text.strip_prefix('-').and_then(span) {
        return Ok(now.saturating_sub(ago));
    }
    if let Ok(nanoseconds) = text.parse() {
        return Ok(nanoseconds);
    }
    // A plus sign in a query is a space.
    let time = DateTime::parse_from_rfc3339(&text.replace(' ', "+")).map_err(|_| wrong())?;
    time.timestamp_nanos_opt().ok_or_else(wrong)
}

/// Parses a duration greater than zero, in nanoseconds: `10s`, `5m`, `1h`, `7d`, `250ms`.
pub(crate) fn span(text: &str) -> Option<i64> {
    let duration = parse_duration(text).ok()?;
    i64::try_from(duration.as_nanos())
        .ok()
        .filter(|nanoseconds| *nanoseconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000_000_000;

    #[test]
    fn moments_are_read() {
        for (text, at) in [
            ("0", 0),
            ("-5", -5),
            ("now", NOW),
            ("-15m", NOW - 900_000_000_000),
            ("-1d", NOW - 86_400_000_000_000),
            ("1970-01-01T00:00:01Z", 1_000_000_000),
            ("1970-01-01T01:00:00.5 01:00", 500_000_000),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(moment("start", text, NOW), Ok(at), "{text}");
        }
        for text in [
            "",
            "-",
            "-m",
            "yesterday",
            "1.5",
            "-300y",
            "1970-01-01",
            "9999-01-01T00:00:00Z",
            "-99999999999999999999d",
        ] {
            let message = moment("start", text, NOW).unwrap_err();
            assert!(
                message.starts_with("start ") && message.contains("-15m"),
                "{message}"
            );
        }
    }

    #[test]
    fn range_with_start_after_end_is_rejected() {
        assert_eq!(range(None, None, NOW), Ok(i64::MIN..=i64::MAX));
        assert_eq!(range(Some("5"), Some("5"), NOW), Ok(5..=5));
        assert!(range(Some("6"), Some("5"), NOW).is_err());
    }

    #[test]
    fn spans_have_a_unit() {
        assert_eq!(
            (span("10s"), span("250ms"), span("2w")),
            (
                Some(10_000_000_000),
                Some(250_000_000),
                Some(1_209_600_000_000_000)
            )
        );
        for text in ["", "5", "s", "0s", "-1s", "1.5s", "300y", "9999999999999w"] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
