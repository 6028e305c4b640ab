//! Formats of numbers and times.

use std::time::Duration;

use chrono::{DateTime, Local};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Stands where there is no number.
pub(super) const NONE: &str = "–";

/// Unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// A count.
    Count,
    /// Events a second.
    Rate,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    ByteRate,
    /// A ratio of 0 to 1.
    Share,
    /// Seconds.
    Time,
}

impl Unit {
    /// The upper end of an axis when all values are 0.
    pub(super) fn min_axis(self) -> f64 {
        match self {
            Self::Bytes | Self::ByteRate => 1024.0,
            Self::Time => 0.001,
            Self::Count | Self::Rate | Self::Share => 1.0,
        }
    }

    /// A value with its unit, with at most three digits before the point.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Count => count(value),
            Self::Rate => format!("{}/s", count(value)),
            Self::Bytes => bytes(value),
            Self::ByteRate => format!("{}/s", bytes(value)),
            Self::Share => format!("{} %", short(value * 100.0)),
            Self::Time => seconds(value),
        }
    }

    /// A step of at least `min` that is a round number of the unit.
    pub(super) fn round_step(self, min: f64) -> f64 {
        let min = min.clamp(1e-9, 1e300);
        if matches!(self, Self::Bytes | Self::ByteRate) {
            return min.log2().ceil().exp2().max(1.0);
        }
        let base: f64 = 1000.0;
        let magnitude = if min >= 1.0 {
            base.powf(min.log(base).floor())
        } else {
            1.0
        };
        let decimal = 10f64.powf((min / magnitude).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decimal * magnitude);
        steps
            .into_iter()
            .find(|step| *step >= min)
            .unwrap_or(10.0 * decimal * magnitude)
    }
}

/// Returns up to three significant digits.
fn short(value: f64) -> String {
    let places = match value.abs() {
        large if large >= 99.95 || large == 0.0 => 0,
        large if large >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    let text = if places > 0 {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    text.to_owned()
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    while value.abs() >= base * 0.9995 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    if value.abs() >= 1e6 {
        return format!("{value:.0e}{}", units[unit]);
    }
    format!("{}{}", short(value), units[unit])
}

/// A count: `950`, `1.2 k`, `3 M`.
pub(super) fn count(value: f64) -> String {
    scaled(value, 1000.0, &["", " k", " M", " G", " T"])
}

/// Returns bytes in powers of 1024.
pub(super) fn bytes(value: f64) -> String {
    scaled(
        value,
        1024.0,
        &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"],
    )
}

/// Returns seconds in the unit that suits them.
fn seconds(value: f64) -> String {
    match value.abs() {
        0.0 => "0 s".to_owned(),
        small if small < 0.000_999_5 => format!("{} µs", short(value * 1e6)),
        small if small < 0.9995 => format!("{} ms", short(value * 1e3)),
        _ => format!("{} s", short(value)),
    }
}

/// Returns a latency.
pub(super) fn latency(value: Duration) -> String {
    seconds(value.as_secs_f64())
}

/// A duration in its two largest units.
pub(crate) fn lasted(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = parts.iter().position(|(unit, _)| seconds >= *unit);
    let at = first.unwrap_or(parts.len() - 1);
    let (unit, name) = parts[at];
    let mut text = format!("{} {name}", seconds / unit);
    if let Some((smaller, name)) = parts.get(at + 1) {
        let rest = seconds % unit / smaller;
        if rest > 0 {
            text.push_str(&format!(" {rest} {name}"));
        }
    }
    text
}

/// A time on the axis of a chart that spans `(first, last)` nanoseconds.
pub(super) fn time_label(at: DateTime<Local>, (first, last): (i64, i64)) -> String {
    let seconds = last.saturating_sub(first) / 1_000_000_000;
    let form = match seconds {
        0..300 => "%H:%M:%S",
        300..172_800 => "%H:%M",
        172_800..31_536_000 => "%e %b",
        _ => "%b %Y",
    };
    at.format(form).to_string().trim().to_owned()
}

/// Encodes a value of an address.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (unit, value, text) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 999.0, "999"),
            (Unit::Count, 1000.0, "1 k"),
            (Unit::Count, 12_345.0, "12.3 k"),
            (Unit::Rate, 0.25, "0.25/s"),
            (Unit::Bytes, 1023.9, "1 KiB"),
            (Unit::Bytes, 1536.0, "1.5 KiB"),
            (Unit::ByteRate, 300.0 * 1024.0 * 1024.0, "300 MiB/s"),
            (Unit::Share, 0.5, "50 %"),
            (Unit::Share, 0.9876, "98.8 %"),
            (Unit::Share, 1.0, "100 %"),
            (Unit::Time, 0.000_25, "250 µs"),
            (Unit::Time, 0.012, "12 ms"),
            (Unit::Time, 2.5, "2.5 s"),
            (Unit::Time, 0.0, "0 s"),
            (Unit::Count, -1500.0, "-1.5 k"),
            (Unit::Count, 1e300, "1e288 T"),
        ] {
            assert_eq!(unit.text(value), text, "{unit:?} {value}");
        }
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min 59 s"),
            (3600, "1 h"),
            (90_000, "1 d 1 h"),
            (86_400 * 400 + 59, "400 d"),
        ] {
            assert_eq!(lasted(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn steps_are_round() {
        for (unit, min, step) in [
            (Unit::Count, 0.3, 0.5),
            (Unit::Count, 1.0, 1.0),
            (Unit::Count, 230.0, 500.0),
            (Unit::Count, 12_000.0, 20_000.0),
            (Unit::Bytes, 0.1, 1.0),
            (Unit::Bytes, 256.0, 256.0),
            (Unit::Bytes, 300.0, 512.0),
            (Unit::Bytes, 1500.0, 2048.0),
            (Unit::ByteRate, 70.0 * 1048576.0, 128.0 * 1048576.0),
            (Unit::Time, 0.003, 0.005),
            (Unit::Share, 0.25, 0.5),
        ] {
            let found = unit.round_step(min);
            assert!(
                (found - step).abs() < 1e-9 * step,
                "{unit:?} {min}: {found}"
            );
        }
    }
}
