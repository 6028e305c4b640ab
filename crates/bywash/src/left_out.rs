//! Settings of a bucket for entries that its listings leave out, and the entries with a warning.

use std::collections::HashSet;

use bywash_store::{Omission, Omissions, odd_keys::key_of};
use object_store::path::Path;
use parking_lot::Mutex;

use crate::limits::MAX_WARNED_ENTRIES;

/// How a bucket treats entries that it cannot list: names that are no keys, and folders that may not be read.
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
    /// Returns whether there is to be a warning for `name`. Beyond [`MAX_WARNED_ENTRIES`] names they are forgotten, and warned of again.
    pub(crate) fn is_new(&self, name: &str) -> bool {
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
