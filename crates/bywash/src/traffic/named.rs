//! Bounded table of statistics by name, in the order of first use. Entries are never removed.

use std::sync::OnceLock;

/// A name and its entry.
type NamedEntry<T> = OnceLock<(Box<str>, T)>;

/// Entries by name. A lookup is a linear scan: names used early are usually hot, and found first.
#[derive(Debug)]
pub(super) struct NamedTable<T>(Box<[NamedEntry<T>]>);

impl<T: Default> NamedTable<T> {
    /// Returns an empty table that holds at most `max` entries.
    pub(super) fn new(max: usize) -> Self {
        Self((0..max).map(|_| OnceLock::new()).collect())
    }

    /// Returns the entry of `name`, created if it is new; `None` if the table is full.
    pub(super) fn entry(&self, name: &str) -> Option<&T> {
        let entries = self.0.iter().map(|slot| {
            // If another thread fills this slot with another name first, the scan continues with the next slot.
            slot.get_or_init(|| (name.into(), T::default()))
        });
        let mut found = entries.filter(|(known, _)| **known == *name);
        found.next().map(|(_, entry)| entry)
    }

    /// All entries, in the order of their first use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let entries = self.0.iter().map_while(NamedEntry::get);
        entries.map(|(name, entry)| (&**name, entry))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::thread;

    use super::*;

    #[test]
    fn entries_are_bounded_and_each_name_has_one() {
        let table: NamedTable<AtomicU64> = NamedTable::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for name in ["a", "b", "c", "d", "a", "e"] {
                        if let Some(count) = table.entry(name) {
                            count.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
        });
        let mut found: Vec<_> = table
            .iter()
            .map(|(name, count)| (name, count.load(Relaxed)))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [("a", 8), ("b", 4), ("c", 4), ("d", 4)]);
        assert!(table.entry("e").is_none());
    }
}
