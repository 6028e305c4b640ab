//! Files that got another mtime with the same bytes, so that readers of the version before continue.
//!
//! A reader compares the mtime of its open file after each piece. A rename of an object changes it in place; the table knows which
//! mtimes of a file belong to the same bytes. A program that changes the bytes sets another one.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::identity::Identity;
use crate::limits::MAX_RESTAMPED_FILES;

static RESTAMPED: LazyLock<Mutex<Restamped>> = LazyLock::new(Mutex::default);

/// Device and inode.
type Node = (u64, u64);

/// Size, and the mtimes that it had with the same bytes, in nanoseconds since 1970.
#[derive(Debug)]
struct SameBytes {
    size: u64,
    times: Vec<i128>,
}

#[derive(Debug, Default)]
struct Restamped {
    files: HashMap<Node, SameBytes>,
    /// In the order of their first entry.
    order: VecDeque<Node>,
}

impl Restamped {
    fn note(&mut self, before: &Identity, next: &Identity, max: usize) {
        let node = before.node();
        if let Some(known) = self.files.get_mut(&node)
            && known.size == before.size()
            && known.times.last() == Some(&before.modified())
        {
            if known.times.len() == KEPT_TIMES {
                known.times.remove(0);
            }
            known.times.push(next.modified());
            return;
        }
        let same = SameBytes {
            size: before.size(),
            times: vec![before.modified(), next.modified()],
        };
        if self.files.insert(node, same).is_none() {
            self.order.push_back(node);
        }
        if self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
    }

    fn has_bytes_of(&self, now: &Identity, before: &Identity) -> bool {
        let known = self.files.get(&now.node());
        known.is_some_and(|known| {
            let is_known = |identity: &Identity| {
                identity.size() == known.size && known.times.contains(&identity.modified())
            };
            now.node() == before.node() && is_known(now) && is_known(before) && now.is_as_placed()
        })
    }
}

/// Mtimes of a file that are known to belong to the same bytes.
const KEPT_TIMES: usize = 8;

/// Notes that a file is about to get the mtime of `next`, without another change.
pub(super) fn note(before: &Identity, next: &Identity) {
    RESTAMPED.lock().note(before, next, MAX_RESTAMPED_FILES);
}

/// Returns whether an open file that had the identity `before` still has its bytes, although its mtime or ctime changed.
pub(super) fn has_bytes_of(now: &Identity, before: &Identity) -> bool {
    RESTAMPED.lock().has_bytes_of(now, before)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Identities of one file with other mtimes, close to its ctime.
    fn identities(count: u64) -> (tempfile::NamedTempFile, Vec<Identity>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let now = SystemTime::now();
        let at = |number| Identity::of(&stat).modified_at(now + Duration::from_millis(number));
        (file, (0..count).map(at).collect())
    }

    #[test]
    fn renamed_file_has_the_bytes_of_the_versions_before() {
        let (_file, versions) = identities(4);
        let mut table = Restamped::default();
        table.note(&versions[0], &versions[1], 1);
        table.note(&versions[1], &versions[2], 1);
        assert!(table.has_bytes_of(&versions[2], &versions[0]));
        assert!(!table.has_bytes_of(&versions[3], &versions[0]));
        // Another program wrote the version 3, which is renamed.
        table.note(&versions[3], &versions[1], 1);
        assert!(!table.has_bytes_of(&versions[1], &versions[0]));
        assert!(table.has_bytes_of(&versions[1], &versions[3]));
    }

    #[test]
    fn files_and_versions_beyond_the_limits_are_forgotten() {
        let mut table = Restamped::default();
        let files: Vec<_> = (0..=MAX_RESTAMPED_FILES).map(|_| identities(2)).collect();
        for (_, versions) in &files {
            table.note(&versions[0], &versions[1], MAX_RESTAMPED_FILES);
        }
        let is_known = |at: usize| table.has_bytes_of(&files[at].1[1], &files[at].1[0]);
        assert!(!is_known(0) && is_known(1) && is_known(MAX_RESTAMPED_FILES));
        let (_file, versions) = identities(2 + KEPT_TIMES as u64);
        for pair in versions.windows(2) {
            table.note(&pair[0], &pair[1], MAX_RESTAMPED_FILES);
        }
        let last = versions.last().unwrap();
        assert!(!table.has_bytes_of(last, &versions[0]));
        assert!(table.has_bytes_of(last, &versions[2]));
    }
}
