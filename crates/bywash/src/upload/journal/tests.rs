#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::Barrier;

use bywash_store::{SessionOptions, SessionToken};
use object_store::{Attribute, Attributes, PutMode, UpdateVersion};
use proptest::prelude::*;

use super::*;

const SECRET: &str = "https://store/upload?upload_id=AbC-secret";

fn header(source: Option<SourceIdentity>) -> Header {
    let attributes = [
        (Attribute::ContentType, "text/plain"),
        (Attribute::Metadata("owner".into()), "me"),
    ];
    Header {
        url: "gs://bucket/a/ä key".to_owned(),
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        bucket: "bucket".to_owned(),
        object: "a/ä key".into(),
        options: SessionOptions {
            mode: PutMode::Update(UpdateVersion {
                e_tag: Some("\"e\"".to_owned()),
                version: None,
            }),
            attributes: Attributes::from_iter(attributes),
            length: Some(7),
            ..SessionOptions::default()
        },
        chunk: 16 << 20,
        session: SessionToken(SECRET.to_owned()),
        source,
        started: chrono::DateTime::from_timestamp_nanos(1_234_567_890_123_456_789),
    }
}

fn source() -> SourceIdentity {
    use std::os::unix::ffi::OsStrExt;
    SourceIdentity {
        path: std::ffi::OsStr::from_bytes(b"/data/not utf-8 \xff").into(),
        device: u64::MAX,
        inode: 12,
        size: 7,
        modified_ns: -1,
    }
}

fn journal() -> (tempfile::TempDir, Journal) {
    let home = tempfile::tempdir().unwrap();
    let journal = Journal::at(home.path().join("data/uploads"));
    (home, journal)
}

fn progress(offset: u64) -> Progress {
    Progress {
        offset,
        crc32c: offset as u32 ^ 0xDEAD_BEEF,
    }
}

fn only(journal: &Journal) -> ListedUpload {
    let mut listed = journal.list().unwrap();
    assert_eq!(listed.len(), 1);
    listed.pop().unwrap()
}

#[test]
fn taken_over_upload_has_the_recorded_state() {
    let (_home, journal) = journal();
    for source in [None, Some(source())] {
        let mut entry = journal.create(&header(source.clone())).unwrap();
        entry.acknowledged(progress(100)).unwrap();
        entry.acknowledged(progress(200)).unwrap();
        let whole = ObjectDigest {
            length: 220,
            crc32c: 9,
        };
        entry.finishing(whole).unwrap();
        let id = entry.id().to_owned();
        drop(entry);

        let again = Journal::at(journal.folder());
        let entry = again.take(&id).unwrap();
        assert_eq!(entry.header(), &header(source));
        assert_eq!(entry.progress(), progress(200));
        assert_eq!(entry.digest(), Some(whole));
        entry.remove().unwrap();
        assert!(again.list().unwrap().is_empty());
        assert!(matches!(again.take(&id), Err(JournalError::Unknown { .. })));
    }
    assert_eq!(fs::read_dir(journal.folder()).unwrap().count(), 0);
}

#[test]
fn locked_upload_cannot_be_taken_over() {
    let (_home, journal) = journal();
    assert!(journal.list().unwrap().is_empty());
    assert!(!journal.folder().exists(), "looking makes nothing");
    let mut entry = journal.create(&header(None)).unwrap();
    let id = entry.id().to_owned();
    let refused = journal.take(&id).unwrap_err();
    assert!(
        matches!(&refused, JournalError::Busy { process: Some(process), .. } if *process == std::process::id()),
        "{refused}"
    );
    assert!(matches!(
        journal.forget(&id),
        Err(JournalError::Busy { .. })
    ));
    assert!(only(&journal).alive);
    // Looking, and being refused, did not disturb it.
    entry.acknowledged(progress(1)).unwrap();
    drop(entry);
    let seen = only(&journal);
    assert!(!seen.alive);
    assert_eq!(seen.content.unwrap().progress, progress(1));
    journal.take(&id).unwrap();
}

#[test]
fn one_of_many_concurrent_takeovers_wins_despite_inspections() {
    let (_home, journal) = journal();
    let id = journal.create(&header(None)).unwrap().id().to_owned();
    let start = Arc::new(Barrier::new(6));
    let threads: Vec<_> = (0..6)
        .map(|index| {
            let (journal, id, start) = (journal.clone(), id.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                if index % 2 == 0 {
                    for _ in 0..50 {
                        only(&journal);
                    }
                    None
                } else {
                    Some(journal.take(&id))
                }
            })
        })
        .collect();
    let taken: Vec<_> = threads
        .into_iter()
        .filter_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(taken.iter().filter(|entry| entry.is_ok()).count(), 1);
}

#[test]
fn files_are_private_and_no_output_contains_a_token() {
    let (_home, journal) = journal();
    let mut entry = journal.create(&header(None)).unwrap();
    entry.acknowledged(progress(1)).unwrap();
    let mode = |path: &FsPath| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(journal.folder()), 0o700);
    assert_eq!(mode(&entry.path), 0o600);
    let shown = format!("{entry:?} {:?}", only(&journal));
    assert!(
        !shown.contains("secret\"") && !shown.contains("upload_id"),
        "{shown}"
    );
    // A folder that was open to all is closed, because of its later files.
    fs::set_permissions(journal.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    journal.make().unwrap();
    assert_eq!(mode(journal.folder()), 0o700);
}

#[test]
fn only_incomplete_files_of_a_crash_are_removed() {
    let (_home, journal) = journal();
    let entry = journal.create(&header(None)).unwrap();
    let half = journal.folder().join("0-0.new");
    let foreign = journal.folder().join("notes.txt");
    fs::write(&half, "BYW").unwrap();
    fs::write(&foreign, "mine").unwrap();
    journal.make().unwrap();
    assert!(!half.exists());
    assert!(foreign.exists());
    // One that is being written is locked.
    fs::write(&half, "BYW").unwrap();
    let writer = File::open(&half).unwrap();
    writer.lock().unwrap();
    journal.make().unwrap();
    assert!(half.exists());
    assert_eq!(only(&journal).id, entry.id());
}

#[test]
fn ids_from_outside_do_not_leave_the_folder() {
    let (_home, journal) = journal();
    for id in ["", "..", "../x", "a/b", "a.upload", "a\0"] {
        assert!(
            matches!(journal.take(id), Err(JournalError::Unknown { .. })),
            "{id:?}"
        );
    }
}

#[test]
fn newer_format_and_foreign_bytes_are_distinguished() {
    let (_home, journal) = journal();
    let entry = journal.create(&header(None)).unwrap();
    let (id, path) = (entry.id().to_owned(), entry.path.clone());
    drop(entry);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        journal.take(&id),
        Err(JournalError::OtherVersion { version: 9, .. })
    ));
    fs::write(&path, b"").unwrap();
    assert!(matches!(
        journal.take(&id),
        Err(JournalError::Damaged { offset: 0, .. })
    ));
    assert!(matches!(
        only(&journal).content,
        Err(JournalError::Damaged { .. })
    ));
    // Reported, not removed; the user may remove it.
    assert!(path.exists());
    journal.forget(&id).unwrap();
    assert!(journal.list().unwrap().is_empty());
}

#[test]
fn differences_of_a_source_are_named() {
    let before = source();
    assert_eq!(before.difference(&before.clone()), None);
    type Change = (&'static str, fn(&mut SourceIdentity));
    let changes: [Change; 4] = [
        ("size", |now| now.size += 1),
        ("written", |now| now.modified_ns += 1),
        ("inode", |now| now.inode += 1),
        ("device", |now| now.device -= 1),
    ];
    for (word, change) in changes {
        let mut now = before.clone();
        change(&mut now);
        let difference = before.difference(&now).unwrap();
        assert!(difference.contains(word), "{difference}");
    }
}

/// A record that may be appended.
#[derive(Debug, Clone)]
enum Op {
    Acknowledged(Progress),
    Finishing(ObjectDigest),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let acknowledged = (any::<u64>(), any::<u32>())
        .prop_map(|(offset, crc32c)| Op::Acknowledged(Progress { offset, crc32c }));
    let finishing = (any::<u64>(), any::<u32>())
        .prop_map(|(length, crc32c)| Op::Finishing(ObjectDigest { length, crc32c }));
    prop::collection::vec(prop_oneof![4 => acknowledged, 1 => finishing], 0..6)
}

/// A journal and its length after each of its first records.
struct Stage {
    length: usize,
    progress: Progress,
    whole: Option<ObjectDigest>,
}

fn write(ops: &[Op]) -> (Vec<u8>, Vec<Stage>) {
    let (_home, journal) = journal();
    let mut entry = journal.create(&header(Some(source()))).unwrap();
    let mut stages = Vec::new();
    let stage = |entry: &Entry| Stage {
        length: entry.length as usize,
        progress: entry.progress(),
        whole: entry.digest(),
    };
    stages.push(stage(&entry));
    for op in ops {
        match op {
            Op::Acknowledged(progress) => entry.acknowledged(*progress).unwrap(),
            Op::Finishing(whole) => entry.finishing(*whole).unwrap(),
        }
        stages.push(stage(&entry));
    }
    (fs::read(&entry.path).unwrap(), stages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn truncation_at_any_byte_keeps_earlier_records(ops in ops(), zeros in 0..2000_usize) {
        let (bytes, stages) = write(&ops);
        prop_assert_eq!(bytes.len(), stages.last().unwrap().length);
        for cut in 0..=bytes.len() {
            let kept = stages.iter().rev().find(|stage| stage.length <= cut);
            // The length may get to the disk before the bytes.
            let mut file = bytes[..cut].to_vec();
            if kept.is_some_and(|stage| stage.length == cut) {
                file.resize(cut + zeros, 0);
            }
            match (state::parse(&file), kept) {
                (Ok(state), Some(stage)) => {
                    prop_assert_eq!(state.length, stage.length);
                    prop_assert_eq!(&state.progress, &stage.progress);
                    prop_assert_eq!(state.whole, stage.whole);
                }
                (Err(ParseError::Damaged { .. }), None) => {}
                (read, _) => prop_assert!(false, "cut at {cut}: {read:?}"),
            }
        }
    }

    #[test]
    fn flipped_bit_is_an_error(ops in ops(), bit in 0..8_u32) {
        let (bytes, _) = write(&ops);
        for index in 0..bytes.len() {
            let mut file = bytes.clone();
            file[index] ^= 1 << bit;
            prop_assert!(state::parse(&file).is_err(), "byte {index} of {}", bytes.len());
        }
    }

    #[test]
    fn records_that_moved_or_came_twice_are_errors(ops in ops()) {
        let (bytes, stages) = write(&ops);
        for pair in stages.windows(2) {
            let record = &bytes[pair[0].length..pair[1].length];
            let twice = [&bytes[..pair[1].length], record].concat();
            prop_assert!(state::parse(&twice).is_err());
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let foreign = state::parse(&bytes).is_err();
        prop_assert!(foreign);
        let mut file = write(&[]).0;
        let length = file.len();
        file.extend_from_slice(&bytes);
        if let Ok(state) = state::parse(&file) {
            prop_assert_eq!(state.length, length);
        }
    }
}

#[test]
fn torn_record_is_truncated_and_overwritten() {
    let (_home, journal) = journal();
    let mut entry = journal.create(&header(None)).unwrap();
    entry.acknowledged(progress(1)).unwrap();
    let (id, path, length) = (entry.id().to_owned(), entry.path.clone(), entry.length);
    entry.acknowledged(progress(2)).unwrap();
    drop(entry);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length + 5).unwrap();

    assert_eq!(only(&journal).content.unwrap().progress, progress(1));
    assert_eq!(
        fs::metadata(&path).unwrap().len(),
        length + 5,
        "looking changes nothing"
    );
    let mut entry = journal.take(&id).unwrap();
    assert_eq!(entry.progress(), progress(1));
    entry.acknowledged(progress(3)).unwrap();
    drop(entry);
    assert_eq!(journal.take(&id).unwrap().progress(), progress(3));
}

#[test]
fn damaged_file_is_reported_and_left_unchanged() {
    let (_home, journal) = journal();
    let mut entry = journal.create(&header(None)).unwrap();
    let middle = entry.length as usize + 14;
    entry.acknowledged(progress(1)).unwrap();
    entry.acknowledged(progress(2)).unwrap();
    let (id, path) = (entry.id().to_owned(), entry.path.clone());
    drop(entry);
    let mut bytes = fs::read(&path).unwrap();
    bytes[middle] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let error = journal.take(&id).unwrap_err();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("nothing was removed"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}
