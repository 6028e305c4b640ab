//! Memory that the machine and the control group (cgroup v1 or v2) of this process allow.

use std::fs;

/// Default if neither the machine nor its control group states a limit: small enough to be safe anywhere.
const UNKNOWN_MEMORY_BYTES: u64 = 1 << 30;

/// Returns the memory in bytes that the machine, or the control group of this process, allows.
///
/// Reads `/proc/meminfo` and the limits of cgroup v2 (every level up to the root) and v1. Blocks for a few file
/// reads.
#[must_use]
pub fn available_memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_total(&text));
    let group = cgroup_limit();
    match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (Some(bytes), None) | (None, Some(bytes)) => bytes,
        (None, None) => UNKNOWN_MEMORY_BYTES,
    }
}

fn meminfo_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn cgroup_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let files = groups.lines().flat_map(limit_files);
    files
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// Returns the files that may hold a limit for one line of `/proc/self/cgroup`.
///
/// Limits of ancestors apply too. A file that contains `max`, or is absent, limits nothing.
fn limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (mount, file) = if controllers.is_empty() {
        ("/sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return Vec::new();
    };
    let mut files = vec![format!("{mount}/{file}")];
    let mut folder = mount.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        folder = format!("{folder}/{part}");
        files.push(format!("{folder}/{file}"));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_meminfo_and_each_cgroup_level() {
        assert_eq!(
            meminfo_total("MemTotal:       2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(meminfo_total("nothing"), None);
        assert_eq!(
            limit_files("0::/a/b"),
            [
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/a/b/memory.max"
            ]
        );
        assert_eq!(
            limit_files("5:cpu,memory:/x"),
            [
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes"
            ]
        );
        assert!(limit_files("3:cpu:/x").is_empty());
        assert!(available_memory() >= 64 << 20);
    }
}
