//! Names to series. A known name is found without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::Names;

use crate::SeriesError;
use crate::head::{Charge, Series};

/// The most bytes of a source's or a metric's name.
pub const MAX_NAME: usize = 64 << 10;

/// What a series costs beside its names and rows, in bytes: its place, its cells in tables that grow by doubling.
const SERIES_BYTES: usize = 256;
/// Lengths below this are one character of a key.
const SHORT: usize = 0x7f;

/// One series of one open database; worth nothing in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesHandle(pub(crate) u32);

/// All series that were ever named since the database was opened. None is forgotten, and no id is used again.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    series: Names<Series>,
    /// Names of sources and metrics.
    texts: Names<Text>,
    /// What all of it was charged.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Text {
    id: u32,
    text: Arc<str>,
}

/// Room in which the two names of a series become one, kept from row to row.
#[derive(Debug, Default)]
pub(crate) struct Key(String);

impl Key {
    /// Two pairs of names never become the same text: it begins with the length of the first.
    #[inline]
    fn of(&mut self, source: &str, metric: &str) -> &str {
        let Self(key) = self;
        key.clear();
        let septet = |shift: usize| char::from((source.len() >> shift & 0x7f) as u8);
        if source.len() < SHORT {
            key.push(septet(0));
        } else {
            key.push(char::from(SHORT as u8));
            key.extend([septet(0), septet(7), septet(14)]);
        }
        key.push_str(source);
        key.push_str(metric);
        key
    }
}

impl Catalog {
    /// The series of these names, made if it is new.
    #[inline]
    pub(crate) fn handle(
        &self,
        (source, metric): (&str, &str),
        key: &mut Key,
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        let key = key.of(source, metric);
        match self.series.get(key) {
            Some(series) => Ok(series.handle),
            None => self.enter((source, metric), key, charge),
        }
    }

    #[cold]
    fn enter(
        &self,
        (source, metric): (&str, &str),
        key: &str,
        charge: &Charge,
    ) -> Result<SeriesHandle, SeriesError> {
        for (what, name) in [("source", source), ("metric", metric)] {
            if name.len() > MAX_NAME {
                let bytes = name.len();
                return Err(SeriesError::NameTooLong { what, bytes });
            }
        }
        let bytes = (SERIES_BYTES + 3 * key.len()) as u64;
        if !charge.take(bytes) {
            return Err(SeriesError::TooManySeries {
                series: self.len(),
                limit: charge.limit(),
            });
        }
        let mut made = false;
        let series = self.series.get_or_insert_numbered(key, |id| {
            made = true;
            Series::new(SeriesHandle(id), self.text(source), self.text(metric))
        });
        if made {
            // Relaxed: a count.
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            charge.give(bytes);
        }
        Ok(series.handle)
    }

    fn text(&self, text: &str) -> u32 {
        let entry = self.texts.get_or_insert_numbered(text, |id| Text {
            id,
            text: text.into(),
        });
        entry.id
    }

    /// The series of these names, if there is one.
    pub(crate) fn find(&self, source: &str, metric: &str) -> Option<&Series> {
        self.series.get(Key::default().of(source, metric))
    }

    #[inline]
    pub(crate) fn series(&self, handle: SeriesHandle) -> Option<&Series> {
        self.series.value(handle.0)
    }

    /// Source and metric.
    pub(crate) fn names(&self, series: &Series) -> (&Arc<str>, &Arc<str>) {
        let text = |id| {
            &self
                .texts
                .value(id)
                .expect("entered before the series")
                .text
        };
        (text(series.source), text(series.metric))
    }

    /// All series in the order of their ids, with what is entered meanwhile.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Series> {
        (0..u32::MAX).map_while(|id| self.series.value(id))
    }

    /// What was charged for names, which are never given back.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: a count.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.series.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_any_bytes_in_them_are_never_taken_for_each_other() {
        let long = "x".repeat(MAX_NAME);
        let names = [
            "",
            "a",
            "ab",
            "b",
            "/",
            "a/b",
            "\0",
            "\u{7f}",
            "\u{1}a",
            "日本",
            &long,
            &long[1..],
            &long[..200],
        ];
        let mut seen = std::collections::HashMap::new();
        for source in names {
            for metric in names {
                let key = Key::default().of(source, metric).to_owned();
                let before = seen.insert(key, (source, metric));
                assert_eq!(before, None, "of {} and {}", source.len(), metric.len());
            }
        }
    }
}
