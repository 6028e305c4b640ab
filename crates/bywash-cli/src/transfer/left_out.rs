//! Names that the listing of a tree left out: the contents there are unknown, so they count as
//! present.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::escape::plain;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::limits::{MAX_LEFT_OUT_NAMES, MAX_LEFT_OUT_SHOWN};

/// Why a name is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is nothing to copy: a link that points nowhere, a pipe, or a name that has just been removed.
    NoFile,
    /// It could not be read.
    Unreadable,
}

/// Names left out by one listing, relative to its root. Clones share them.
///
/// All listings collect here the names that they leave out: listings of folders now, and of stores
/// if they report it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftOut {
    /// Names that the verb is about. Others are left out without a word.
    filter: Filter,
    names: Arc<Mutex<Names>>,
}

#[derive(Debug, Default)]
struct Names {
    /// At most [`MAX_LEFT_OUT_NAMES`].
    names: BTreeSet<String>,
    count: u64,
    unreadable: u64,
    /// Whether names were left out that are not in `names`.
    incomplete: bool,
}

impl LeftOut {
    pub(crate) fn of(filter: &Filter) -> Self {
        Self {
            filter: filter.clone(),
            names: Arc::default(),
        }
    }

    /// Adds a name of a file, or of a folder with all below it, then with a slash. Logs the first names with their reasons.
    /// `shown`: the place.
    pub(crate) fn add(&self, name: &str, why: Why, shown: impl Display, reason: impl Display) {
        if self.filter.may_take(name) {
            self.note(Some(name.trim_end_matches('/')), why, &shown, &reason);
        }
    }

    /// Adds a name that cannot be compared with names at a destination; `like`: a text that
    /// resembles it.
    pub(crate) fn add_unnamed(&self, like: &str, shown: impl Display, reason: impl Display) {
        if self.filter.may_take(like) {
            self.note(None, Why::Unreadable, &shown, &reason);
        }
    }

    fn note(&self, name: Option<&str>, why: Why, shown: &dyn Display, reason: &dyn Display) {
        let mut all = self.names.lock();
        all.count += 1;
        all.unreadable += u64::from(why == Why::Unreadable);
        match name.filter(|_| all.names.len() < MAX_LEFT_OUT_NAMES) {
            Some(name) => _ = all.names.insert(name.to_owned()),
            None => all.incomplete = true,
        }
        let number = all.count;
        drop(all);
        if number <= MAX_LEFT_OUT_SHOWN {
            tracing::warn!("{shown} is left out: {reason}");
        }
    }

    /// Whether a name is left out, or is below one that is.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let names = &self.names.lock().names;
        let mut above = name.match_indices('/').map(|(at, _)| &name[..at]);
        !names.is_empty() && (names.contains(name) || above.any(|folder| names.contains(folder)))
    }

    /// Whether names were left out that [`Self::covers`] does not know.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.names.lock().incomplete
    }

    /// Number of names.
    pub(crate) fn count(&self) -> u64 {
        self.names.lock().count
    }

    /// The first names, and the number of others.
    pub(crate) fn shown(&self) -> String {
        let all = self.names.lock();
        let first: Vec<_> = (all.names.iter().map(|name| plain(name)))
            .take(MAX_LEFT_OUT_SHOWN as usize)
            .collect();
        let mut text = first.join(", ");
        let others = all.count.saturating_sub(MAX_LEFT_OUT_SHOWN);
        if others > 0 {
            text += &format!(" and {others} others");
        }
        text
    }

    /// Returns the failure of a verb that did all else, if names could not be read. `verb`: done with the other names.
    pub(crate) fn outcome(&self, root: impl Display, verb: &str) -> Result<(), Failure> {
        let unreadable = self.names.lock().unreadable;
        if unreadable == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "{unreadable} names below {root} could not be read and were left out; all others were {verb}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_and_below_are_covered_and_others_are_not() {
        let left_out = LeftOut::default();
        assert!(!left_out.covers("a"));
        left_out.add("dir/sub/", Why::Unreadable, "x", "denied");
        left_out.add("link", Why::NoFile, "x", "points nowhere");
        for (name, covered) in [
            ("dir/sub", true),
            ("dir/sub/a/b", true),
            ("link", true),
            ("link/below", true),
            ("dir", false),
            ("dir/subject", false),
            ("linked", false),
            ("a/link", false),
        ] {
            assert_eq!(left_out.covers(name), covered, "{name}");
        }
        assert!(!left_out.is_incomplete());
        let failure = left_out.outcome("root", "copied").unwrap_err();
        assert!(
            failure.message.starts_with("1 names below root"),
            "{failure:?}"
        );
    }

    #[test]
    fn names_beyond_the_limit_are_only_counted() {
        let left_out = LeftOut::default();
        for index in 0..MAX_LEFT_OUT_NAMES {
            left_out.add(&index.to_string(), Why::NoFile, "x", "points nowhere");
        }
        assert!(!left_out.is_incomplete());
        left_out.add("more", Why::NoFile, "x", "points nowhere");
        assert!(left_out.is_incomplete() && !left_out.covers("more"));
        assert_eq!(left_out.count(), MAX_LEFT_OUT_NAMES as u64 + 1);
        assert!(left_out.outcome("root", "copied").is_ok());
    }

    #[test]
    fn name_that_cannot_be_compared_makes_all_incomplete() {
        let left_out = LeftOut::default();
        left_out.add_unnamed("x", "x", "not UTF-8");
        assert!(left_out.is_incomplete() && !left_out.covers(""));
    }
}
