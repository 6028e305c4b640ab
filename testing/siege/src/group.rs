//! A memory control group of one server, where this process may make one (v1 and v2).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A control group with a limit.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    peak_file: &'static str,
}

/// Where memory groups are made: version 1, version 2, and version 2 beside version 1.
const ROOTS: [(&str, &str, &str); 3] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
    ("/sys/fs/cgroup/unified", "memory.max", "memory.peak"),
];

impl Group {
    /// Makes a group of `limit` bytes; `None` if this machine has none, or this user may not.
    #[must_use]
    pub fn new(limit: u64) -> Option<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the number only has to differ.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("bywash-siege-{}-{number}", std::process::id());
        ROOTS.iter().find_map(|&(root, limit_file, peak_file)| {
            Self::below(Path::new(root), &name, (limit_file, peak_file), limit)
        })
    }

    /// Makes the group `name` in `root`; `None` if `root` is no tree of groups that limit memory.
    fn below(
        root: &Path,
        name: &str,
        (limit_file, peak_file): (&str, &'static str),
        limit: u64,
    ) -> Option<Self> {
        let folder = root.join(name);
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, peak_file };
        // The kernel makes these files. Where version 1 is mounted the folder above may be a plain one, in which a group would be
        // a folder without any effect.
        let limit_file = group.folder.join(limit_file);
        (limit_file.is_file() && group.members().is_file()).then_some(())?;
        fs::write(limit_file, limit.to_string()).ok()?;
        Some(group)
    }

    /// The file that takes the process ids of members.
    #[must_use]
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Max bytes the group has used, with page cache and socket buffers.
    #[must_use]
    pub fn peak(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(self.peak_file)).ok()?;
        text.trim().parse().ok()
    }
}

impl Group {
    /// Removes the group once the kernel has let its last process go, which is a moment after the process was waited for.
    pub async fn remove(self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_folder_is_no_control_group() {
        let root = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for &(_, limit_file, peak_file) in &ROOTS {
            let made = Group::below(root.path(), "group", (limit_file, peak_file), 1 << 30);
            assert!(made.is_none(), "{limit_file}");
        }
        let left = fs::read_dir(root.path()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "the folder that was no group is removed");
    }
}
