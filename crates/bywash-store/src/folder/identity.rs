//! Identity of a file's version, and the clock that makes versions distinct.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::time::{date_of, unique_nanos};

/// Identity of one version of a file.
///
/// A folder store never repeats one, because every file it places gets an mtime of its own. Other programs set mtimes back
/// (`tar x`, `cp -p`), and file systems reuse the inode of a deleted file. The ctime distinguishes such versions: no
/// system call sets it. The kernel's change cookie is not available to programs (`statx` masks it out).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    /// Nanoseconds since 1970; wide, because foreign files may carry any date.
    modified: i128,
    /// The ctime, in nanoseconds since 1970.
    changed: i128,
    /// Number of names (hard links) of the file.
    links: u64,
}

/// The part of an [`Identity`] that any change of the file's bytes or attributes changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: i64,
    changed: i64,
}

impl FileVersion {
    /// Returns device and inode.
    pub(super) fn node(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    #[cfg(test)]
    pub(super) fn of_test(inode: u64, changed: i64) -> Self {
        Self {
            device: 1,
            inode,
            size: 3,
            modified: 1,
            changed,
        }
    }
}

impl From<&Metadata> for Identity {
    fn from(meta: &Metadata) -> Self {
        let nanos =
            |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: nanos(meta.mtime(), meta.mtime_nsec()),
            changed: nanos(meta.ctime(), meta.ctime_nsec()),
            links: meta.nlink(),
        }
    }
}

/// Nanoseconds of the longest tick of the clock of ctimes, doubled.
const TICK_NS: i128 = 20_000_000;
/// Nanoseconds of a tick on a file system that stores ctimes in whole seconds, or in every second one.
const WHOLE_SECONDS_TICK_NS: i128 = 2_000_000_000;

/// Max nanoseconds between the mtime that this store gives a file and the file's rename to its place.
const PLACED_WITHIN_NS: i128 = 60_000_000_000;

impl Identity {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the fields' widths differ between operating systems"
    )]
    /// Returns the identity of a file or a link with this status.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as u64,
            modified: i128::from(stat.st_mtime) * 1_000_000_000 + stat.st_mtime_nsec as i128,
            changed: i128::from(stat.st_ctime) * 1_000_000_000 + stat.st_ctime_nsec as i128,
            links: stat.st_nlink as u64,
        }
    }

    /// Returns whether an open file that had the identity `before` still has its bytes.
    ///
    /// A rename over the file and the removal of its name change its ctime and its number of names, but no byte.
    #[must_use]
    pub fn has_bytes_of(&self, before: &Self) -> bool {
        let same_change = self.changed == before.changed || self.links != before.links;
        self.is_renamed(before) && same_change
    }

    /// Returns whether this is the file `before` under another name. A rename changes the ctime, which is not compared.
    #[must_use]
    pub fn is_renamed(&self, before: &Self) -> bool {
        let same_file = self.node() == before.node();
        same_file && self.stamp_parts() == before.stamp_parts()
    }

    /// Whether each later change of the file gets another ctime. The kernel takes the ctime from a clock that ticks every 1 to
    /// 10 ms, and some file systems store whole seconds, so a second change within a tick would go unseen.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i128::try_from(now.as_nanos()).unwrap_or(0));
        self.is_settled_at(now)
    }

    pub(super) fn is_settled_at(&self, now: i128) -> bool {
        now - self.changed >= self.tick_ns()
    }

    /// The time after which a file that is changed no more is settled.
    #[must_use]
    pub fn settles_within(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.tick_ns()).unwrap_or_default())
    }

    fn tick_ns(&self) -> i128 {
        match self.changed % 1_000_000_000 {
            0 => WHOLE_SECONDS_TICK_NS,
            _ => TICK_NS,
        }
    }

    /// Whether the ctime fits a file which this store has placed: close to its mtime. Every later change moves the
    /// ctime away, also one whose program sets the mtime back.
    pub(super) fn is_as_placed(&self) -> bool {
        (self.changed - self.modified).abs() <= PLACED_WITHIN_NS
    }

    /// The version of the file; `None` if a time of it is not within some 290 years of 1970.
    pub(super) fn version(&self) -> Option<FileVersion> {
        Some(FileVersion {
            device: self.device,
            inode: self.inode,
            size: self.size,
            modified: i64::try_from(self.modified).ok()?,
            changed: i64::try_from(self.changed).ok()?,
        })
    }

    /// Returns the identity of the file with another mtime; its ctime is not known before.
    pub(super) fn modified_at(&self, time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        Self {
            modified: since.map_or(0, |since| {
                i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
            }),
            ..*self
        }
    }

    /// Its mtime, in nanoseconds since 1970.
    pub(super) fn modified(&self) -> i128 {
        self.modified
    }

    /// Whether the file has no second name (hard link).
    pub(super) fn has_one_name(&self) -> bool {
        self.links == 1
    }

    fn stamp_parts(&self) -> (i128, u64) {
        (self.modified, self.size)
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns device and inode, which identify a folder.
    pub(super) fn node(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// An opaque ETag, without quotes, and with dashes so that no client takes it for an MD5. The device is
    /// left out: its number can change when a disk is mounted again.
    pub(super) fn e_tag(&self) -> String {
        format!("{:x}-{}-{:x}", self.inode, self.stamp(), self.changed)
    }

    /// Returns mtime and size, which distinguish the versions of one key even after the folder was copied or restored
    /// with its dates, when inodes and ctimes are new.
    pub(super) fn stamp(&self) -> String {
        format!("{:x}-{:x}", self.modified, self.size)
    }

    fn modified_date(&self) -> DateTime<Utc> {
        let seconds = self.modified.div_euclid(1_000_000_000);
        let nanos = self.modified.rem_euclid(1_000_000_000);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        date_of(seconds, u32::try_from(nanos).unwrap_or_default())
    }

    pub(super) fn meta(&self, location: Path) -> ObjectMeta {
        ObjectMeta {
            location,
            last_modified: self.modified_date(),
            size: self.size,
            e_tag: Some(self.e_tag()),
            version: None,
        }
    }
}

/// [`unique_nanos`] as an mtime.
pub(super) fn unique_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(unique_nanos())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn version_is_settled_a_tick_after_its_ctime() {
        let file = tempfile::tempfile().unwrap();
        let mut stat = rustix::fs::fstat(&file).unwrap();
        let second = i128::from(stat.st_ctime) * 1_000_000_000;
        for (nanos, tick) in [(1, TICK_NS), (0, WHOLE_SECONDS_TICK_NS)] {
            stat.st_ctime_nsec = nanos;
            let (identity, changed) = (Identity::of(&stat), second + i128::from(nanos));
            assert!(!identity.is_settled_at(changed + tick - 1), "{nanos}");
            assert!(identity.is_settled_at(changed + tick), "{nanos}");
        }
    }
}
