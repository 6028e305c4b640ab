//! Memory control group of a process (v1 and v2), if this process may create one.

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

/// Roots and files of memory groups: version 1, version 2, and version 2 beside version 1.
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
    /// Creates a group with a limit of `limit` bytes; `None` if the machine or this user's rights do not allow it.
    #[must_use]
    pub fn new(limit: u64) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to be unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bywash-{}-{number}", std::process::id());
        ROOTS.iter().find_map(|&(root, limit_file, peak_file)| {
            Self::below(Path::new(root), &name, (limit_file, peak_file), limit)
        })
    }

    /// Creates the group `name` in `root`; `None` if `root` is not a hierarchy of memory groups.
    fn below(
        root: &Path,
        name: &str,
        (limit_file, peak_file): (&str, &'static str),
        limit: u64,
    ) -> Option<Self> {
        let folder = root.join(name);
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, peak_file };
        // The kernel creates these files. With version 1 mounted, the root of version 2 may be a plain folder, in which a
        // group would have no effect.
        let limit_file = group.folder.join(limit_file);
        (limit_file.is_file() && group.members().is_file()).then_some(())?;
        fs::write(limit_file, limit.to_string()).ok()?;
        Some(group)
    }

    /// Returns the path of the file with the process ids of members.
    #[must_use]
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns the peak memory of the group, with page cache and socket buffers.
    #[must_use]
    pub fn peak(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join(self.peak_file)).ok()?;
        text.trim().parse().ok()
    }
}

impl Group {
    /// Removes the group. Retries, as the kernel removes the last member shortly after its exit status is read.
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
    fn plain_folder_is_not_a_control_group() {
        let root = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for &(_, limit_file, peak_file) in &ROOTS {
            let made = Group::below(root.path(), "group", (limit_file, peak_file), 1 << 30);
            assert!(made.is_none(), "{limit_file}");
        }
        let left = fs::read_dir(root.path()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "the folder is removed");
    }
}
