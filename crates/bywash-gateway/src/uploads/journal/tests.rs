use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::*;
use crate::uploads::tests::{name, part, same, upload};

fn engine() -> Engine {
    Engine::builder().memory(16 << 20).build().unwrap()
}

fn part_stored(number: u16) -> UploadChange {
    UploadChange::Part(number, part(u64::from(number)))
}

/// A folder with one upload of two parts, and the upload.
fn one_upload(folder: &Path) -> (Journal, UploadName, Upload, Tail) {
    let (journal, found) = Journal::open(folder, &engine()).unwrap();
    assert!(found.is_empty());
    let (name, mut upload) = (name("key", "id"), upload(None));
    let mut tail = Tail::default();
    journal.write(&name, &upload, &mut tail).unwrap();
    for number in 1..=2 {
        assert!(Journal::appendable(&tail));
        let change = part_stored(number);
        journal.append(&name, &change, &mut tail).unwrap();
        upload.apply(change);
    }
    (journal, name, upload, tail)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn upload_is_reloaded_and_its_file_is_private() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("multipart");
    let (journal, name, upload, _) = one_upload(&folder);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&journal.path(&name)), 0o600);
    let (journal, found) = Journal::open(&folder, &engine()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, name);
    same(&found[0].1, &upload);
    journal.remove(&name).unwrap();
    journal.remove(&name).unwrap();
    assert!(files(&folder).is_empty());
}

#[test]
fn torn_end_is_cut_before_the_next_record() {
    let home = tempfile::tempdir().unwrap();
    let (journal, name, mut upload, _) = one_upload(home.path());
    let path = journal.path(&name);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (journal, found) = Journal::open(home.path(), &engine()).unwrap();
    Arc::make_mut(&mut upload.parts).remove(&2);
    same(&found[0].1, &upload);
    assert!(fs::read(&path).unwrap().len() < whole.len() - 1, "cut");
    let change = part_stored(7);
    let tail = Arc::clone(&found[0].1.tail);
    journal.append(&name, &change, &mut tail.lock()).unwrap();
    upload.apply(change);
    same(
        &Journal::open(home.path(), &engine()).unwrap().1[0].1,
        &upload,
    );
}

#[test]
fn damaged_file_is_kept_and_others_are_read() {
    let home = tempfile::tempdir().unwrap();
    let (journal, first, ..) = one_upload(home.path());
    let damaged = journal.path(&first);
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[30] ^= 1;
    fs::write(&damaged, &bytes).unwrap();
    let other = name("key", "other id");
    journal
        .write(&other, &upload(None), &mut Tail::default())
        .unwrap();
    // One in the wrong folder, one incomplete, and one foreign file.
    let stray = home.path().join("stray.upload");
    fs::copy(journal.path(&other), &stray).unwrap();
    let staged = home.path().join("0.new");
    fs::write(&staged, b"half").unwrap();
    fs::write(home.path().join("notes.txt"), b"mine").unwrap();
    let engine = engine();
    let (_, found) = Journal::open(home.path(), &engine).unwrap();
    let noted: Vec<_> = engine.damaged_files();
    let noted: Vec<_> = noted.iter().map(|noted| noted.file.as_str()).collect();
    let mut expected = [&damaged, &stray].map(|path| path.to_str().unwrap());
    expected.sort_unstable();
    assert_eq!(noted, expected);
    let names: Vec<_> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names, [&other]);
    assert_eq!(fs::read(&damaged).unwrap(), bytes, "left as it was");
    assert!(stray.exists() && !staged.exists());
    assert_eq!(files(home.path()).len(), 4);
}

#[test]
fn file_is_rewritten_after_a_failed_write_and_after_many_records() {
    let home = tempfile::tempdir().unwrap();
    let (journal, name, upload, mut tail) = one_upload(home.path());
    fs::rename(journal.path(&name), home.path().join("away")).unwrap();
    let refused = journal.append(&name, &part_stored(3), &mut tail);
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(!Journal::appendable(&tail));
    journal.write(&name, &upload, &mut tail).unwrap();
    assert!(Journal::appendable(&tail));
    same(
        &Journal::open(home.path(), &engine()).unwrap().1[0].1,
        &upload,
    );
    tail.appended = MAX_UPLOAD_FILE_APPENDED_BYTES;
    assert!(!Journal::appendable(&tail));
}

#[test]
fn open_uploads_are_listed_beside_the_server_and_damage_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("multipart");
    assert_eq!(open_uploads(&folder).unwrap(), []);
    let (journal, name, _, _) = one_upload(&folder);
    let staged = folder.join("other").with_extension(STAGED_SUFFIX);
    fs::write(&staged, "half").unwrap();
    let path = journal.path(&name);
    let whole = fs::read(&path).unwrap();
    // The server is about to write the rest of a record.
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let listed = open_uploads(&folder).unwrap();
    assert_eq!((listed.len(), listed[0].id.as_str()), (1, "id"));
    assert_eq!(fs::read(&path).unwrap().len(), whole.len() - 1);
    assert!(staged.exists(), "nothing is changed");
    fs::write(&path, "nothing of ours").unwrap();
    assert!(open_uploads(&folder).is_err());
}
