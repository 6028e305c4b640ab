//! Spans of time that a page shows: the last hour and the like, or any other.

use chrono::{DateTime, Local, NaiveDateTime, TimeZone};

use super::format::encoded;
use crate::limits::MAX_RANGE_S;

const NANOS: i64 = 1_000_000_000;
/// Formats of a local time in an address, as in a browser's `datetime-local` input.
const FORMATS: [&str; 2] = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"];

/// A span that ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Preset {
    /// Its name in the page's address.
    pub(super) name: &'static str,
    /// Its name for people.
    pub(super) label: &'static str,
    seconds: i64,
}

const fn preset(name: &'static str, label: &'static str, seconds: i64) -> Preset {
    Preset {
        name,
        label,
        seconds,
    }
}

impl Preset {
    pub(super) const ALL: [Self; 5] = [
        preset("15m", "15 min", 900),
        preset("1h", "1 h", 3600),
        preset("6h", "6 h", 6 * 3600),
        preset("24h", "24 h", 24 * 3600),
        preset("7d", "7 d", 7 * 24 * 3600),
    ];
    /// The span of a page without a range in its address: an hour.
    const DEFAULT: Self = Self::ALL[1];
}

/// The span of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// The time before now.
    Last(Preset),
    /// Between two times, in nanoseconds since 1970.
    Between(i64, i64),
}

impl Range {
    /// Points of a line: about every other pixel of a chart.
    const POINTS: i64 = 240;

    /// The preset of this name, or the default.
    pub(super) fn named(name: Option<&str>) -> Self {
        let mut presets = Preset::ALL.into_iter();
        let named = presets.find(|preset| Some(preset.name) == name);
        Self::Last(named.unwrap_or(Preset::DEFAULT))
    }

    /// Returns the range of an address: `from` and `to` if either is given, else the preset of this
    /// name, or the default.
    ///
    /// # Errors
    /// If `from` or `to` is invalid; the message is a sentence for people.
    pub(super) fn of_address(
        name: Option<&str>,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<Self, String> {
        if from.is_none() && to.is_none() {
            return Ok(Self::named(name));
        }
        let (from, to) = (time("From", from)?, time("To", to)?);
        if from >= to {
            return Err("The range is empty: From must be before To.".to_owned());
        }
        if (to - from) / NANOS > MAX_RANGE_S {
            let days = MAX_RANGE_S / 86_400;
            return Err(format!("The range is longer than {days} days."));
        }
        Ok(Self::Between(from, to))
    }

    /// The part of an address that selects this range.
    pub(super) fn query(self) -> String {
        match self {
            Self::Last(preset) => format!("range={}", preset.name),
            Self::Between(from, to) => {
                let [from, to] = [from, to].map(|at| encoded(&input(at)));
                format!("from={from}&to={to}")
            }
        }
    }

    /// The range in words, to stand after "Charts of".
    pub(super) fn words(self) -> String {
        match self {
            Self::Last(preset) => format!("the last {}", preset.label),
            Self::Between(from, to) => {
                let [from, to] = [from, to].map(|at| local(at).format("%e %b %Y %H:%M:%S"));
                format!("{from} to {to}").trim().to_owned()
            }
        }
    }

    /// The first and last nanosecond. The first is one at which a step begins, so that a page
    /// fetched again draws the same points.
    pub(super) fn span(self, now: i64, every: i64) -> (i64, i64) {
        let step = self.step(every);
        let (first, last) = match self {
            Self::Last(preset) => (now.saturating_sub(preset.seconds * NANOS), now),
            Self::Between(from, to) => (from, to),
        };
        (first.div_euclid(step).saturating_mul(step), last)
    }

    /// The nanoseconds between points, a multiple of those between records.
    pub(super) fn step(self, every: i64) -> i64 {
        let length = match self {
            Self::Last(preset) => preset.seconds * NANOS,
            Self::Between(from, to) => to - from,
        };
        (length / Self::POINTS / every).max(1) * every
    }
}

/// Parses a time of the server's zone.
fn time(name: &str, text: Option<&str>) -> Result<i64, String> {
    let text = text.unwrap_or_default();
    let wrong = || {
        format!("{name} is no time: {text:?}. Write it as 2026-11-22T07:00, in the server's zone.")
    };
    let mut formats = FORMATS.into_iter();
    let parsed = formats.find_map(|format| NaiveDateTime::parse_from_str(text, format).ok());
    // Of the two times with this name at the end of summer, the first.
    let local = Local.from_local_datetime(&parsed.ok_or_else(wrong)?);
    let time = local.earliest().ok_or_else(wrong)?;
    time.timestamp_nanos_opt().ok_or_else(wrong)
}

/// A time as `datetime-local` inputs and [`time`] read it, in whole seconds.
pub(super) fn input(nanos: i64) -> String {
    local(nanos).format(FORMATS[1]).to_string()
}

fn local(nanos: i64) -> DateTime<Local> {
    DateTime::from_timestamp_nanos(nanos).with_timezone(&Local)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn between(from: &str, to: &str) -> Result<Range, String> {
        Range::of_address(Some("6h"), Some(from), Some(to))
    }

    #[test]
    fn range_of_an_address_is_a_preset_or_between_two_times() {
        let last = |name| Range::of_address(name, None, None).unwrap();
        assert_eq!(last(Some("6h")).query(), "range=6h");
        assert_eq!(last(Some("unknown")).query(), "range=1h");
        assert_eq!(last(None).words(), "the last 1 h");
        let range = between("2026-11-22T07:00", "2026-11-22T09:30:15").unwrap();
        let Range::Between(from, to) = range else {
            panic!("{range:?}");
        };
        assert_eq!(to - from, (2 * 3600 + 30 * 60 + 15) * NANOS);
        assert_eq!(input(from), "2026-11-22T07:00:00");
        assert_eq!(
            range.query(),
            "from=2026%2D11%2D22T07%3A00%3A00&to=2026%2D11%2D22T09%3A30%3A15"
        );
        assert_eq!(
            range.words(),
            "22 Nov 2026 07:00:00 to 22 Nov 2026 09:30:15"
        );
    }

    #[test]
    fn range_that_is_empty_too_long_or_no_time_is_refused() {
        for (from, to, reason) in [
            ("2026-11-22T07:00", "2026-11-22T07:00", "before To"),
            ("2026-11-22T07:00", "2026-11-21T07:00", "before To"),
            (
                "2024-11-22T07:00",
                "2026-11-22T07:00",
                "longer than 400 days",
            ),
            (
                "yesterday",
                "2026-11-22T07:00",
                "From is no time: \"yesterday\"",
            ),
            ("2026-11-22T07:00", "", "To is no time"),
            ("9999-11-22T07:00", "9999-11-22T08:00", "From is no time"),
        ] {
            let error = between(from, to).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(Range::of_address(None, Some("2026-11-22T07:00"), None).is_err());
    }

    #[test]
    fn step_follows_the_length() {
        let range = between("2026-11-22T07:00", "2026-11-23T07:00").unwrap();
        assert_eq!(range.step(10 * NANOS), 360 * NANOS);
        let (first, last) = range.span(0, 10 * NANOS);
        assert_eq!((first % (360 * NANOS), last % NANOS), (0, 0));
        let minute = between("2026-11-22T07:00", "2026-11-22T07:01").unwrap();
        assert_eq!(minute.step(10 * NANOS), 10 * NANOS);
    }
}
