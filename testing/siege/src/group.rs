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

/// Where memory groups are made: version 1 and version 2.
const ROOTS: [(&str, &str, &str); 2] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
];

impl Group {
    /// Makes a group of `limit` bytes; `None` if this machine has none, or this user may not.
    #[must_use]
    pub fn new(limit: u64) -> Option<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the number only has to differ.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("bywash-siege-{}-{number}", std::process::id());
        ROOTS.iter().find_map(|(root, limit_file, peak_file)| {
            let folder = Path::new(root).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Self { folder, peak_file };
            fs::write(group.folder.join(limit_file), limit.to_string()).ok()?;
            Some(group)
        })
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
