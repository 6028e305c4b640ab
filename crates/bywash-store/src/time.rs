//! Dates and durations as text.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a number and a unit: 250ms, 90s, 5m, 12h, 7d or 2w")]
pub struct ParseDurationError(String);

/// Parses a duration in any unit of `humantime`, from `ns` to `years`; months are `months`, since `M` is easily
/// mistaken for minutes.
///
/// # Errors
/// Anything but one number and one unit, and more than 292 years, the maximum of 64-bit nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let unit = text.trim_start_matches(|character: char| character.is_ascii_digit());
    // Also: humantime panics at sums of several units that are too large.
    let is_plain = unit != "M" && unit.bytes().all(|byte| byte.is_ascii_alphabetic());
    let duration = is_plain.then(|| humantime::parse_duration(text).ok());
    duration
        .flatten()
        .filter(|duration| i64::try_from(duration.as_nanos()).is_ok())
        .ok_or_else(|| ParseDurationError(text.to_owned()))
}

/// Parses the date of an HTTP header (RFC 9110, section 5.6.7). Also accepts a day of one digit and a numeric time zone,
/// which some servers and clients send.
pub fn parse_http_date(text: &str) -> Option<DateTime<Utc>> {
    let parse = |text: &str| httpdate::parse_http_date(text).map(DateTime::from).ok();
    parse(text)
        .or_else(|| parse(&with_two_digits(text)?))
        .or_else(|| Some(DateTime::parse_from_rfc2822(text).ok()?.to_utc()))
}

/// Returns a date whose day has one digit with two. In each form the day is the first number; the form of C's `asctime` has a
/// space before it, and ends with the year.
fn with_two_digits(text: &str) -> Option<String> {
    let (before, day) = text.split_at(text.find(|character: char| character.is_ascii_digit())?);
    let is_short = day
        .as_bytes()
        .get(1)
        .is_some_and(|byte| !byte.is_ascii_digit());
    let filler = if before.contains(',') { "0" } else { " " };
    is_short.then(|| format!("{before}{filler}{day}"))
}

/// Returns a time in seconds and nanoseconds since 1970; the nearest one with a year of four digits for others, so that each form of
/// a date can show it.
pub fn date_of(seconds: i64, nanos: u32) -> DateTime<Utc> {
    // From the year 1 to 9999.
    const FIRST: i64 = -62_135_596_800;
    const LAST: i64 = 253_402_300_799;
    let date = DateTime::from_timestamp(seconds.clamp(FIRST, LAST), nanos);
    date.unwrap_or(DateTime::UNIX_EPOCH)
}

/// Formats the date of an HTTP header.
pub fn http_date(date: DateTime<Utc>) -> String {
    let date = date_of(date.timestamp(), 0);
    date.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Returns the time in nanoseconds since 1970, but later than every earlier result in this process.
pub fn unique_nanos() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        });
    // Relaxed: only the value itself must be unique; it orders nothing else.
    let mut last = LAST.load(Ordering::Relaxed);
    loop {
        let next = now.max(last.saturating_add(1));
        match LAST.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return next,
            Err(seen) => last = seen,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_of_one_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("90s", 90_000),
            ("30m", 1_800_000),
            ("12h", 43_200_000),
            ("7d", 604_800_000),
            ("2w", 1_209_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for bad in [
            "",
            "d",
            "7",
            "-1d",
            "1.5h",
            "1h 30m",
            "5M",
            "7\u{e4}",
            "300y",
            "18446744073709551615s",
            "18446744073709551615s1000ms",
            "99999999999999999999d",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn http_dates_round_trip() {
        let text = "Sun, 06 Nov 1994 08:49:37 GMT";
        let date = parse_http_date(text).unwrap();
        assert_eq!(http_date(date), text);
        for same in [
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov 06 08:49:37 1994",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sunday, 6-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 +0000",
        ] {
            assert_eq!(parse_http_date(same), Some(date), "{same}");
        }
        for wrong in [
            "yesterday",
            "",
            "6",
            "Sun, 6",
            "Mon, 6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse_http_date(wrong), None, "{wrong}");
        }
        for (seconds, text) in [
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
            (-149_731_200, "Sun, 04 Apr 1965 00:00:00 GMT"),
            (10_413_792_000, "Mon, 01 Jan 2300 00:00:00 GMT"),
        ] {
            let date = date_of(seconds, 0);
            assert_eq!((date.timestamp(), &*http_date(date)), (seconds, text));
            assert_eq!(parse_http_date(text), Some(date), "{text}");
        }
        let texts = [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC].map(http_date);
        assert_eq!(
            texts,
            [
                "Mon, 01 Jan 0001 00:00:00 GMT",
                "Fri, 31 Dec 9999 23:59:59 GMT"
            ]
        );
    }
}
