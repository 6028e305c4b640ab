//! Free disk space, checked before the gate builds anything: a disk that fills up half an hour later fails in the middle of a test.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::gate::Stage;
use crate::run::{Failure, Step, doing, target};
use crate::tools;

const MIB: u64 = 1 << 20;

/// Folders of the gate with the stages that fill them, and what each stage adds to them from a fresh clone, MiB: by `du -m`,
/// with a tenth more; an estimate for `shuttle`, by what it has of each crate.
const COLD_RUN_MIB: [(&str, &[(Stage, u64)]); 5] = [
    ("xtask-cache", &[(Stage::Tools, 2900)]),
    (
        "debug",
        &[
            (Stage::Clippy, 550),
            (Stage::Unit, 2600),
            (Stage::Siege, 100),
        ],
    ),
    ("doc", &[(Stage::Doc, 700)]),
    ("loom", &[(Stage::Loom, 350)]),
    ("shuttle", &[(Stage::Shuttle, 350)]),
];
/// What tests and clients have in the temporary folder at a time, MiB: bodies of 200 MiB with their copies, folders of servers, and the
/// images of file systems that are filled.
const TEMPORARY_MIB: u64 = 2048;

/// Space that will be taken in a folder.
#[derive(Debug, Clone)]
struct Need {
    folder: PathBuf,
    bytes: u64,
}

/// Fails unless the disks of the target folder, of the tools and of temporary files have enough free space for what these stages have yet
/// to build.
pub(crate) fn check(stages: &[Stage]) -> Result<(), Failure> {
    let mut needs = Vec::new();
    for (name, filled_by) in COLD_RUN_MIB {
        let chosen = filled_by.iter().filter(|(stage, _)| stages.contains(stage));
        let cold: u64 = chosen.map(|(_, mib)| mib * MIB).sum();
        if cold == 0 {
            continue;
        }
        let folder = match name {
            "xtask-cache" => tools::cache()?,
            name => target().join(name),
        };
        let bytes = cold.saturating_sub(size_of(&folder, &mut HashSet::new()));
        needs.push(Need { folder, bytes });
    }
    if stages.iter().any(Stage::runs_tests) {
        needs.push(Need {
            folder: std::env::temp_dir(),
            bytes: TEMPORARY_MIB * MIB,
        });
    }
    let mut by_disk: BTreeMap<u64, Vec<Need>> = BTreeMap::new();
    for need in needs {
        let folder = existing(&need.folder);
        let metadata =
            fs::metadata(&folder).map_err(doing(format!("stat {}", folder.display())))?;
        by_disk.entry(metadata.dev()).or_default().push(need);
    }
    for needs in by_disk.into_values() {
        enough(&needs, free(&existing(&needs[0].folder))?)?;
    }
    Ok(())
}

/// Fails if the needs of one disk are more than it has free, and names them and the remedies.
fn enough(needs: &[Need], free: u64) -> Result<(), Failure> {
    let needed: u64 = needs.iter().map(|need| need.bytes).sum();
    if needed <= free {
        return Ok(());
    }
    let folders = needs.iter().filter(|need| need.bytes > 0);
    let folders: Vec<_> = folders
        .map(|need| format!("{} {} MiB", need.folder.display(), need.bytes.div_ceil(MIB)))
        .collect();
    Err(Failure::Missing(format!(
        "the disk of {} has {} MiB free, and this run needs {} MiB of it ({}): run `cargo clean`, or name folders of another disk by \
         CARGO_TARGET_DIR, BYWASH_CACHE for the tools and TMPDIR for files of tests",
        needs[0].folder.display(),
        free / MIB,
        needed.div_ceil(MIB),
        folders.join(", ")
    )))
}

/// Returns the folder, or the nearest one above it that exists.
fn existing(folder: &Path) -> PathBuf {
    let mut above = folder.ancestors();
    let found = above.find(|folder| folder.exists());
    found.unwrap_or(Path::new("/")).to_path_buf()
}

/// Returns the bytes on disk of all files below a folder, 0 if it is absent. `seen` has the files with several names, which cargo makes.
fn size_of(folder: &Path, seen: &mut HashSet<(u64, u64)>) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut bytes = 0;
    for entry in entries {
        // A file that is removed meanwhile has no size.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            bytes += size_of(&entry.path(), seen);
        } else if metadata.nlink() == 1 || seen.insert((metadata.dev(), metadata.ino())) {
            bytes += metadata.blocks() * 512;
        }
    }
    bytes
}

/// Returns the bytes that are free on the disk of a folder.
fn free(folder: &Path) -> Result<u64, Failure> {
    let shown = Step::new("df").args(["-P", "-k"]).args([folder]).output()?;
    available(&shown).ok_or_else(|| {
        Failure::Missing(format!(
            "`df -P -k {}` states no free space: {shown}",
            folder.display()
        ))
    })
}

/// Returns the bytes that a table of `df -P -k` with one row has as available.
fn available(shown: &str) -> Option<u64> {
    let row = shown.lines().nth(1)?;
    let kib: u64 = row.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> [Need; 2] {
        [("/t/debug", 3), ("/tmp", 2)].map(|(folder, mib)| Need {
            folder: folder.into(),
            bytes: mib * MIB,
        })
    }

    #[test]
    fn disk_with_less_than_what_is_left_to_build_is_refused_with_the_remedies() {
        enough(&needs(), 5 * MIB).unwrap();
        let failure = enough(&needs(), 5 * MIB - 1).unwrap_err().to_string();
        for part in [
            "the disk of /t/debug has 4 MiB free",
            "needs 5 MiB",
            "/t/debug 3 MiB",
            "/tmp 2 MiB",
            "cargo clean",
            "CARGO_TARGET_DIR",
        ] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn files_with_two_names_are_counted_once() {
        let folder = std::env::temp_dir().join(format!("xtask-disk-{}", std::process::id()));
        fs::create_dir_all(folder.join("deps")).unwrap();
        fs::write(folder.join("deps/one"), [1; 10_000]).unwrap();
        let once = size_of(&folder, &mut HashSet::new());
        fs::hard_link(folder.join("deps/one"), folder.join("two")).unwrap();
        let twice = size_of(&folder, &mut HashSet::new());
        fs::remove_dir_all(&folder).unwrap();
        assert!(once >= 10_000);
        assert_eq!(once, twice);
        assert_eq!(size_of(&folder, &mut HashSet::new()), 0);
    }

    #[test]
    fn folder_that_is_not_made_yet_is_on_the_disk_of_the_one_above() {
        let here = std::env::temp_dir();
        assert_eq!(existing(&here.join("absent/debug")), here);
        assert!(free(&here).unwrap() > 0);
    }

    #[test]
    fn table_of_df_is_read() {
        let table =
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 100 60 30 67% /\n";
        assert_eq!(available(table), Some(30 << 10));
        assert_eq!(available("df: no such file"), None);
    }
}
