//! Entries that a listing leaves out: one such entry does not make the others unlistable.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::MAX_FAILURES_NAMED;

/// Reason for which an entry is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Omission {
    /// A folder, or a link, that the server may not read or that its disk fails to.
    Unreadable(String),
    /// A name that is not UTF-8, or has a control character, and so is no key.
    NotAKey,
    /// A key that no path of object_store has.
    OddKey,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(reason) => write!(f, "it cannot be read: {reason}"),
            Self::NotAKey => f.write_str("its name is not UTF-8, or has a control character"),
            Self::OddKey => {
                f.write_str("its key has an empty segment, `.` or `..`, or a control character")
            }
        }
    }
}

/// Entries that listings have left out. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Omissions(Arc<Mutex<LeftOut>>);

/// Number and names of entries that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of entries.
    pub count: u64,
    /// The first ones, at most [`MAX_FAILURES_NAMED`]: names with reasons. A remote server states only their number.
    pub named: Vec<(String, Omission)>,
}

impl Omissions {
    /// Notes an entry.
    pub fn note(&self, name: impl Into<String>, omission: Omission) {
        let mut left = self.0.lock();
        left.count += 1;
        if left.named.len() < MAX_FAILURES_NAMED {
            left.named.push((name.into(), omission));
        }
    }

    /// Begins with the entries left out before.
    pub fn of(left_out: Option<LeftOut>) -> Self {
        Self(Arc::new(Mutex::new(left_out.unwrap_or_default())))
    }

    /// Notes entries that are known by their number.
    pub fn note_unnamed(&self, count: u64) {
        self.0.lock().count += count;
    }

    /// Number of entries so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// The entries left out so far.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_entries_are_counted_and_the_first_are_named() {
        let omissions = Omissions::default();
        for number in 0..MAX_FAILURES_NAMED + 5 {
            omissions.note(number.to_string(), Omission::NotAKey);
        }
        omissions.note_unnamed(7);
        let left = omissions.left_out();
        assert_eq!(left.count, MAX_FAILURES_NAMED as u64 + 12);
        assert_eq!(left.named.len(), MAX_FAILURES_NAMED);
        assert_eq!(left.named[0], ("0".to_owned(), Omission::NotAKey));
    }
}
