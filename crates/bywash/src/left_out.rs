//! Entries that listings of a bucket leave out: counted, and each named once by a warning.

use std::collections::HashSet;

use object_store::path::Path;
use parking_lot::Mutex;

use crate::error::EngineError;
use crate::limits::MAX_WARNED_ENTRIES;
use crate::origin::odd_keys::key_of;
use crate::origin::{LeftOut, Omission, Omissions};
use crate::shared::BucketShared;

/// What a bucket does about entries that it cannot list: names that are those of no key, and folders that may not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unlistable {
    /// Lists the others, with a warning that names the entry.
    #[default]
    LeaveOut,
    /// Fails the listing, by an error that names the entry.
    Error,
}

impl std::str::FromStr for Unlistable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "leave-out" => Ok(Self::LeaveOut),
            "error" => Ok(Self::Error),
            other => Err(format!("{other:?} is not known; write leave-out or error")),
        }
    }
}

/// Names of a bucket's entries for which there was a warning.
#[derive(Debug, Default)]
pub(crate) struct WarnedEntries(Mutex<HashSet<String>>);

impl WarnedEntries {
    /// Returns whether there is to be a warning for `name`. Beyond [`MAX_WARNED_ENTRIES`] names they are forgotten, and warned of anew.
    fn is_new(&self, name: &str) -> bool {
        let mut names = self.0.lock();
        if names.contains(name) {
            return false;
        }
        if names.len() == MAX_WARNED_ENTRIES {
            names.clear();
        }
        names.insert(name.to_owned())
    }
}

/// What of a listing in progress is counted already.
#[derive(Debug, Default)]
pub(crate) struct CountedOmissions {
    count: u64,
    named: usize,
}

impl BucketShared {
    /// Counts what a listing has left out since the last call, and warns of it.
    ///
    /// # Errors
    /// If the bucket's listings are to fail for it.
    pub(crate) fn count_left_out(
        &self,
        omissions: &Omissions,
        counted: &mut CountedOmissions,
    ) -> Result<(), EngineError> {
        if omissions.count() == counted.count {
            return Ok(());
        }
        let left = omissions.left_out();
        let named = left.named.get(counted.named..).unwrap_or_default();
        let result = self.count_entries(left.count - counted.count, named);
        *counted = CountedOmissions {
            count: left.count,
            named: left.named.len(),
        };
        result
    }

    /// Counts what a page has left out, and warns of it.
    ///
    /// # Errors
    /// If the bucket's listings are to fail for it.
    pub(crate) fn count_page_left_out(&self, left: &LeftOut) -> Result<(), EngineError> {
        match left.count {
            0 => Ok(()),
            count => self.count_entries(count, &left.named),
        }
    }

    fn count_entries(&self, count: u64, named: &[(String, Omission)]) -> Result<(), EngineError> {
        self.counters.left_out(count);
        if self.unlistable == Unlistable::Error {
            let (entry, reason) = match named.first() {
                Some((name, omission)) => (format!("{name:?}"), omission.to_string()),
                None => (
                    format!("{count} entries"),
                    "the origin's server leaves them out".to_owned(),
                ),
            };
            return Err(EngineError::Unlistable {
                bucket: self.name.clone(),
                entry,
                reason,
            });
        }
        for (name, omission) in named {
            if self.warned_entries.is_new(name) {
                tracing::warn!(
                    bucket = self.name,
                    entry = ?name,
                    reason = %omission,
                    "listings leave out an entry",
                );
            }
        }
        Ok(())
    }
}

/// Notes the odd key of `path`.
pub(crate) fn note_odd(omissions: &Omissions, path: &Path) {
    omissions.note(key_of(path), Omission::OddKey);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_warned_of_once() {
        let warned = WarnedEntries::default();
        assert!(warned.is_new("a") && !warned.is_new("a"));
        for number in 1..MAX_WARNED_ENTRIES {
            assert!(warned.is_new(&number.to_string()));
        }
        assert!(!warned.is_new("a"));
        assert!(warned.is_new("b") && warned.is_new("a"), "forgotten");
    }

    #[test]
    fn settings_are_read() {
        assert_eq!("leave-out".parse(), Ok(Unlistable::LeaveOut));
        assert_eq!("error".parse(), Ok(Unlistable::Error));
        let error = "no".parse::<Unlistable>().err().unwrap_or_default();
        assert!(error.contains("leave-out or error"), "{error}");
    }
}
