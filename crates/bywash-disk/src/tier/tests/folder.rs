//! Real folders. Of a disk tier's 20 hardest cases: 13 (two processes, a copied folder), 14 (other formats), 16 (files changed under the
//! tier).

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Instant;

use super::*;
use crate::format::{Entry, FOOTER, Header, Seal};
use crate::health::TierState;

fn open_folder(path: &Path, segments: u32) -> Result<Tier, DiskError> {
    let options = TierOptions {
        path: path.to_owned(),
        ..options(segments)
    };
    Tier::open(&options, FOLDER)
}

#[test]
fn folder_is_of_one_process_and_its_copy_works_apart() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("tier"), directory.path().join("copy"));
    let tier = open_folder(&path, 4).unwrap();
    write(&tier, &[(1, 0)]).unwrap();
    assert!(matches!(
        open_folder(&path, 4),
        Err(DiskError::Locked { .. })
    ));
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&path).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let copied = open_folder(&copy, 4).unwrap();
    for number in 1..200 {
        write(&copied, &[(2, number)]).unwrap();
    }
    assert!(check(&tier, 1, 0) && !check(&copied, 1, 0));
}

/// Removed, cut off, replaced, unreadable: right bytes or none, the size holds, and blocks are written again.
#[test]
fn files_changed_under_the_tier_cost_their_blocks() {
    let changes: [fn(&Path); 5] = [
        |file| fs::remove_file(file).unwrap(),
        |file| {
            File::options()
                .write(true)
                .open(file)
                .unwrap()
                .set_len(5000)
                .unwrap()
        },
        |file| {
            fs::remove_file(file).unwrap();
            fs::write(file, b"other").unwrap();
        },
        |file| fs::set_permissions(file, Permissions::from_mode(0o000)).unwrap(),
        |file| fs::write(file, vec![7; SEGMENT as usize]).unwrap(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tier");
        let tier = open_folder(&path, 4).unwrap();
        for number in 0..200 {
            if number == 40 {
                change(&path.join("000000.seg"));
                change(&path.join("000001.seg"));
            }
            // A write that fails is a probe a second later; no read is ever wrong.
            let _ = write(&tier, &[(1, number)]);
            for number in 0..number {
                check(&tier, 1, number);
            }
        }
        let lasting = (0..200).filter(|&number| check(&tier, 1, number)).count() as u64;
        assert_eq!(tier.stats().blocks, lasting, "change {index}");
        assert_eq!(tier.state().state, TierState::On, "change {index}");
        drop(tier);
        let tier = open_folder(&path, 4).unwrap();
        write(&tier, &[(1, 500)]).unwrap();
        assert!(check(&tier, 1, 500), "change {index}");
    }
}

#[test]
fn moved_folder_turns_off_when_it_must_grow_and_on_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (
        directory.path().join("tier"),
        directory.path().join("moved"),
    );
    let time = Arc::default();
    let folder = Folder::open(path.clone(), FOLDER, SEGMENT).unwrap();
    let clock = Clock::Manual(Arc::clone(&time));
    let tier = Tier::over(Arc::new(folder), FOLDER, &options(4), clock).unwrap();
    write(&tier, &[(1, 0)]).unwrap();
    fs::rename(&path, &elsewhere).unwrap();
    let failed = (1..100).find(|&number| write(&tier, &[(1, number)]).is_err());
    assert_eq!(tier.state().state, TierState::Off);
    assert!(!path.exists() && !check(&tier, 1, 0));
    fs::rename(&elsewhere, &path).unwrap();
    time.store(1000, Ordering::Relaxed);
    write(&tier, &[(1, failed.unwrap())]).unwrap();
    assert!(check(&tier, 1, 0) && check(&tier, 1, failed.unwrap()));
}

/// Sparse segments of 64 MiB with 64 blocks of 1 MiB each: a start reads the same as of full ones.
fn make_segments(path: &Path, segments: u32, segment_size: u32) {
    let pages = segment_size / PAGE as u32;
    for number in 0..segments {
        let record = record(number);
        let (generation, version) = (u64::from(number) + 1, VersionKey::of(&record));
        let footer = Summary {
            generation,
            number: FOOTER,
            entries: (0..63)
                .map(|block| Entry {
                    version,
                    block,
                    length: 1 << 20,
                    page: 2 + block * 257,
                    crc: block,
                })
                .collect(),
            records: vec![record],
            erasures: Vec::new(),
        };
        let seal = Seal {
            generation,
            footer: pages - 10,
            footer_pages: footer.pages(),
        };
        let header = Header {
            folder: FOLDER,
            generation,
            segment: number,
            pages,
        };
        let name = path.join(format!("{number:06}.seg"));
        let file = OpenOptions::new().write(true).create_new(true).open(name);
        let file = file.unwrap();
        file.set_len(u64::from(segment_size)).unwrap();
        let write = |bytes: &[u8], page: u32| {
            let offset = u64::from(page) * PAGE as u64;
            file.write_all_at(bytes, offset).unwrap();
        };
        write(&header.encode(), 0);
        write(&footer.encode(), seal.footer);
        write(&seal.encode(), pages - 1);
    }
}

/// Run by hand, in release: `cargo test --release -p bywash-disk --lib -- --ignored --nocapture hundred_gib`.
#[test]
#[ignore = "measures: it makes 1,600 files"]
fn hundred_gib_of_segments_are_found_within_a_second() {
    let directory = tempfile::tempdir_in(".").unwrap();
    let path = directory.path().join("tier");
    let segment_size = 64 << 20;
    let options = TierOptions {
        path: path.clone(),
        size: size_of(1600, u64::from(segment_size)),
        segment_size,
        block_size: 1 << 20,
        index_memory: 0,
        max_index_memory: 64 << 20,
    };
    drop(Tier::open(&options, FOLDER).unwrap());
    make_segments(&path, 1600, segment_size);
    rustix::fs::sync();
    let start = Instant::now();
    let tier = Tier::open(&options, FOLDER).unwrap();
    let time = start.elapsed();
    assert_eq!(tier.stats().blocks, 1600 * 63);
    println!(
        "{} blocks of 100 GiB found in {time:?}, index of {} bytes",
        tier.stats().blocks,
        tier.index_memory()
    );
    assert!(time.as_secs_f64() < 1.0, "{time:?}");
}

#[test]
fn blocks_of_a_version_under_comparison_are_not_found_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tier");
    let version = |object| VersionKey::of(&record(object));
    let found = |tier: &Tier| [9, 1, 2, 3].map(|object| check(tier, object, 0));
    let tier = open_folder(&path, 4).unwrap();
    write(&tier, &[(9, 0)]).unwrap();
    for object in 1..4 {
        tier.begin_check(version(object));
    }
    write(&tier, &[(1, 0), (2, 0), (3, 0)]).unwrap();
    assert_eq!(found(&tier), [true; 4]);
    // The first comparison held. The second one did not, and no batch names its erasure yet. The
    // third one is in progress.
    assert!(tier.end_check(version(1)));
    tier.erase(version(2));
    assert!(tier.end_check(version(2)));
    tier.release_marks();
    drop(tier);
    for _ in 0..2 {
        let tier = open_folder(&path, 4).unwrap();
        assert_eq!(found(&tier), [true, true, false, false]);
        drop(tier);
    }
    // With the erasures on the disk, blocks written from then on are found.
    let tier = open_folder(&path, 4).unwrap();
    write(&tier, &[(3, 0)]).unwrap();
    tier.release_marks();
    drop(tier);
    let tier = open_folder(&path, 4).unwrap();
    assert_eq!(found(&tier), [true, true, false, true]);
}

#[test]
fn another_size_keeps_the_segments_and_their_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tier");
    let resized = |segments: u32, segment_size: u32| {
        let options = TierOptions {
            path: path.clone(),
            size: size_of(segments as usize, u64::from(segment_size)),
            segment_size,
            ..options(segments)
        };
        Tier::open(&options, FOLDER).unwrap()
    };
    let tier = resized(8, SEGMENT);
    for number in 0..20 {
        write(&tier, &[(1, number)]).unwrap();
    }
    tier.close().unwrap();
    drop(tier);
    for (segments, segment_size) in [(8, 2 * SEGMENT), (8, SEGMENT / 2), (8, SEGMENT)] {
        let tier = resized(segments, segment_size);
        assert!(check(&tier, 1, 19), "segments of {segment_size} bytes");
        let size = size_of(segments as usize, u64::from(segment_size));
        assert!(tier.size() <= size, "{} bytes of {size}", tier.size());
    }
}

#[test]
fn refused_size_costs_no_segment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tier");
    let tier = open_folder(&path, 8).unwrap();
    write(&tier, &[(1, 0)]).unwrap();
    drop(tier);
    let mistyped = TierOptions {
        path: path.clone(),
        size: 10,
        segment_size: SEGMENT / 2,
        ..options(8)
    };
    assert!(Tier::open(&mistyped, FOLDER).is_err());
    assert!(check(&open_folder(&path, 8).unwrap(), 1, 0));
}

/// The segments of format 1 tell their size.
#[test]
fn folder_of_format_1_keeps_its_blocks_and_becomes_one_of_format_2() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tier");
    let tier = open_folder(&path, 8).unwrap();
    write(&tier, &[(1, 0)]).unwrap();
    drop(tier);
    let format = path.join("format");
    let text = fs::read_to_string(&format).unwrap();
    let id = text.lines().nth(1).unwrap();
    fs::write(&format, format!("bywash disk tier 1\n{id}\n")).unwrap();
    let options = TierOptions {
        path,
        segment_size: SEGMENT / 2,
        ..options(8)
    };
    let tier = Tier::open(&options, FOLDER).unwrap();
    assert!(check(&tier, 1, 0));
    assert_eq!(fs::read_to_string(&format).unwrap(), text);
}

#[test]
fn folder_whose_segments_are_too_large_for_the_size_begins_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tier");
    let tier = open_folder(&path, 8).unwrap();
    write(&tier, &[(1, 0)]).unwrap();
    drop(tier);
    let options = TierOptions {
        path,
        size: size_of(8, u64::from(SEGMENT / 4)),
        segment_size: SEGMENT / 4,
        ..options(8)
    };
    for again in [false, true] {
        let tier = Tier::open(&options, FOLDER).unwrap();
        assert!(!check(&tier, 1, 0) && check(&tier, 2, 0) == again);
        write(&tier, &[(2, 0)]).unwrap();
    }
}

#[test]
fn more_versions_under_comparison_than_can_be_marked_leave_the_tier_on() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open_folder(&directory.path().join("tier"), 8).unwrap();
    let version = |object| VersionKey::of(&record(object));
    for object in 0..1025 {
        tier.begin_check(version(object));
        let _ = write(&tier, &[(object, 0)]);
    }
    assert_eq!(tier.state().state, TierState::On);
    assert!(!tier.contains(version(1024), 0));
    tier.end_check(version(7));
    tier.release_marks();
    write(&tier, &[(1024, 0)]).unwrap();
    assert!(check(&tier, 1024, 0));
}
