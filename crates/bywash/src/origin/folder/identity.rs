//! What tells one version of a file from another, and the clock that keeps versions apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;
use rustix::fs::Stat;

/// Identity of one version of a file.
///
/// The store never repeats one, because every file it places gets an mtime of its own. Another
/// program that rewrites a file in place and sets size and mtime back is outside the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    /// Nanoseconds since 1970; wide, because foreign files may carry any date.
    modified: i128,
}

impl Identity {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the fields' widths differ between operating systems"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as u64,
            modified: i128::from(stat.st_mtime) * 1_000_000_000 + stat.st_mtime_nsec as i128,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Device and inode, which tell one folder from another.
    pub(super) fn node(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Opaque, without quotes, and with dashes so that no client takes it for an MD5 digest. The
    /// device is left out: its number can change when a disk is mounted again.
    pub(super) fn e_tag(&self) -> String {
        format!("{:x}-{}", self.inode, self.stamp())
    }

    /// Mtime and size, which tell the versions of one key apart even after the folder was copied
    /// or restored with its dates, when inodes are new.
    pub(super) fn stamp(&self) -> String {
        format!("{:x}-{:x}", self.modified, self.size)
    }

    pub(super) fn meta(&self, location: Path) -> ObjectMeta {
        ObjectMeta {
            location,
            last_modified: i64::try_from(self.modified)
                .map_or(DateTime::<Utc>::UNIX_EPOCH, DateTime::from_timestamp_nanos),
            size: self.size,
            e_tag: Some(self.e_tag()),
            version: None,
        }
    }
}

/// The time now, in nanoseconds since 1970, but later than every earlier answer in this process.
pub(super) fn unique_nanos() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        });
    // Relaxed: only the value itself must be unique; it orders nothing else.
    let mut last = LAST.load(Ordering::Relaxed);
    loop {
        let next = now.max(last.saturating_add(1));
        match LAST.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return next,
            Err(seen) => last = seen,
        }
    }
}

/// [`unique_nanos`] as an mtime.
pub(super) fn unique_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(unique_nanos())
}
