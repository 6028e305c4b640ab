//! The spans of time a page can show.

/// A span that ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    /// As the page's address names it.
    pub(super) name: &'static str,
    /// As people name it.
    pub(super) label: &'static str,
    seconds: i64,
}

const fn range(name: &'static str, label: &'static str, seconds: i64) -> Range {
    Range {
        name,
        label,
        seconds,
    }
}

impl Range {
    pub(super) const ALL: [Self; 5] = [
        range("15m", "15 min", 900),
        range("1h", "1 h", 3600),
        range("6h", "6 h", 6 * 3600),
        range("24h", "24 h", 24 * 3600),
        range("7d", "7 d", 7 * 24 * 3600),
    ];
    /// Points of a line: about every other pixel of a chart.
    const POINTS: i64 = 240;

    /// By its name; an hour when there is none of that name.
    pub(super) fn named(name: Option<&str>) -> Self {
        let found = Self::ALL.into_iter().find(|range| Some(range.name) == name);
        found.unwrap_or(Self::ALL[1])
    }

    /// First and last nanosecond, `now` the last. The first is one at which a step begins, so that a page fetched again draws the
    /// same points.
    pub(super) fn span(self, now: i64, every: i64) -> (i64, i64) {
        let step = self.step(every);
        let first = now.saturating_sub(self.seconds * 1_000_000_000);
        (first.div_euclid(step).saturating_mul(step), now)
    }

    /// Nanoseconds between points, a multiple of those between records.
    pub(super) fn step(self, every: i64) -> i64 {
        let wanted = self.seconds * 1_000_000_000 / Self::POINTS;
        (wanted / every).max(1) * every
    }
}
