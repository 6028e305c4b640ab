//! The client's ETag of a file ([`client_etag`](crate::client_etag)), in an extended attribute of the file.
//!
//! `user.bywash.etag` is `<mtime>-<size> <etag>`, set on the staged file before it is synced, so it costs no sync of its own; of a renamed
//! file mtime, size and ETag of the version before follow. A file that another program changed has another mtime or size, and so no
//! client's ETag: no side file has these. A program that sets both back still changes the ctime, which then differs from the mtime.
//! On a file system without extended attributes the ETag is in the side file of the attributes, and also during a change of attributes
//! alone.

use std::fs::File;

use object_store::path::Path;
use object_store::{Attributes, ObjectMeta, Result};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::held::Located;
use super::identity::Identity;
use super::known_etags;
use super::root::Root;
use crate::client_etag::{CLIENT_ETAG, given, join};

const NAME: &str = "user.bywash.etag";
/// More than two stamps and ETags.
const VALUE_BYTES: usize = 256;

/// Where the ETag of a file may be.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Here(Option<String>),
    /// The file system has no extended attributes, or the one of the file is of its mtime before a change of attributes.
    InSideFile,
    /// The attribute could not be read this time.
    Failed,
}

fn is_unsupported(errno: Errno) -> bool {
    errno == Errno::NOTSUP || errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}

/// Sets the ETag of a file that has its final mtime and size. Returns false if the file system has no extended attributes, or refuses
/// this one.
pub(super) fn write(file: &File, identity: &Identity, e_tag: &str) -> Result<bool, Errno> {
    write_value(file, &format!("{} {e_tag}", identity.stamp()))
}

/// Sets the ETag of a file that is about to get the mtime of `next`, and until then has the one of `before`. Returns as [`write`].
pub(super) fn write_both(
    file: &File,
    before: &Identity,
    next: &Identity,
    e_tag: &str,
) -> Result<bool, Errno> {
    let (next, before) = (next.stamp(), before.stamp());
    write_value(file, &format!("{next} {e_tag} {before} {e_tag}"))
}

fn write_value(file: &File, value: &str) -> Result<bool, Errno> {
    match rustix::fs::fsetxattr(file, NAME, value.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(errno),
        Err(_) => Ok(false),
    }
}

/// Returns the ETag of this version of an open file.
fn look_up(file: &File, identity: &Identity) -> Found {
    if let Some(known) = known(identity) {
        return Found::Here(known);
    }
    // Before the read: the file may change during it.
    let is_settled = identity.is_settled();
    let found = read(file, identity);
    // A side file may be removed without a trace in the file.
    if is_settled && let Found::Here(e_tag) = &found {
        known_etags::remember(identity, e_tag.as_deref());
    }
    found
}

/// Returns the ETag of a version if it is known without the file.
fn known(identity: &Identity) -> Option<Option<String>> {
    if identity.is_as_placed() {
        known_etags::find(identity)
    } else {
        Some(None)
    }
}

/// Reads the ETag of this version of a file.
fn read(file: &File, identity: &Identity) -> Found {
    if !identity.is_as_placed() {
        return Found::Here(None);
    }
    let mut value = [0; VALUE_BYTES];
    let length = match rustix::fs::fgetxattr(file, NAME, &mut value) {
        Ok(length) => length,
        Err(errno) if is_unsupported(errno) => return Found::InSideFile,
        // No such attribute, or one that this store did not write.
        Err(Errno::NODATA | Errno::RANGE) => return Found::Here(None),
        Err(_) => return Found::Failed,
    };
    let text = value
        .get(..length)
        .and_then(|value| std::str::from_utf8(value).ok());
    let Some(text) = text else {
        return Found::Here(None);
    };
    let stamp = identity.stamp();
    let mut words = text.split(' ');
    while let (Some(of), Some(e_tag)) = (words.next(), words.next()) {
        if of == stamp {
            return Found::Here(Some(e_tag.to_owned()));
        }
    }
    Found::InSideFile
}

impl Root {
    /// Returns the ETag of an open file. `attributes`: from its side file; the ETag is removed there.
    pub(super) fn e_tag(&self, located: &Located, attributes: &mut Attributes) -> String {
        let beside = attributes.remove(&CLIENT_ETAG);
        let client = match look_up(&located.file, &located.identity) {
            Found::Here(e_tag) => e_tag,
            Found::Failed => None,
            Found::InSideFile => beside.map(|value| value.to_string()),
        };
        join(located.identity.e_tag(), client.as_deref())
    }

    /// As [`Self::e_tag`], of a file whose side file was not read.
    pub(super) fn current_e_tag(&self, key: &Path, located: &Located) -> Result<String> {
        self.e_tag_of(key, &located.file, &located.identity)
    }

    fn e_tag_of(&self, key: &Path, file: &File, identity: &Identity) -> Result<String> {
        let client = match look_up(file, identity) {
            Found::Here(e_tag) => e_tag,
            Found::Failed => None,
            Found::InSideFile => {
                let attributes = self.read_attributes(key, identity)?;
                let given = attributes.as_ref().and_then(given);
                given.map(str::to_owned)
            }
        };
        Ok(join(identity.e_tag(), client.as_deref()))
    }

    /// As [`Self::listed`] without opening the file; `None` if it must be opened: its ETag is not known, or it is a link.
    fn listed_unopened(&self, key: &Path, path: &str) -> Option<ObjectMeta> {
        let identity = self.identity_nofollow(path)?;
        let client = known(&identity)?;
        let mut meta = identity.meta(key.clone());
        meta.e_tag = Some(join(identity.e_tag(), client.as_deref()));
        Some(meta)
    }

    /// Returns the listed object `key` in the file at `path`; `None` if it is gone.
    pub(super) fn listed(&self, key: &Path, path: &str) -> Result<Option<ObjectMeta>, Errno> {
        if let Some(meta) = self.listed_unopened(key, path) {
            return Ok(Some(meta));
        }
        match self.open_file(path) {
            Ok(Some((file, identity))) => {
                let mut meta = identity.meta(key.clone());
                // A damaged side file is reported by reads of its object, and hides no others.
                if let Ok(e_tag) = self.e_tag_of(key, &file, &identity) {
                    meta.e_tag = Some(e_tag);
                }
                Ok(Some(meta))
            }
            Ok(None) => Ok(None),
            // A file that may not be read is listed by its identity.
            Err(Errno::ACCESS | Errno::PERM) => {
                let identity = self.identity(path)?;
                Ok(identity.map(|identity| identity.meta(key.clone())))
            }
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;
    use std::time::{Duration, SystemTime};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    const ETAG: &str = "9e107d9d372bb6826bd81d3542a419d6";

    fn identity(file: &File) -> Identity {
        Identity::of(&rustix::fs::fstat(file).unwrap())
    }

    #[test]
    fn etag_is_that_of_the_version_it_was_written_for() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one").unwrap();
        file.set_modified(SystemTime::now()).unwrap();
        if !write(&file, &identity(&file), ETAG).unwrap() {
            // Only in the side file here: `tests/it/folder_etags.rs` covers both.
            assert_eq!(read(&file, &identity(&file)), Found::InSideFile);
            return;
        }
        assert_eq!(
            read(&file, &identity(&file)),
            Found::Here(Some(ETAG.to_owned()))
        );
        let written = file.metadata().unwrap().modified().unwrap();
        file.write_all(b"+").unwrap();
        file.set_modified(written).unwrap();
        assert_eq!(
            read(&file, &identity(&file)),
            Found::InSideFile,
            "another size"
        );
        file.set_len(3).unwrap();
        file.set_modified(written + Duration::from_nanos(1))
            .unwrap();
        assert_eq!(
            read(&file, &identity(&file)),
            Found::InSideFile,
            "another mtime"
        );
    }

    #[test]
    fn file_whose_ctime_is_far_from_its_mtime_has_no_client_etag() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one").unwrap();
        // As if it had been placed two minutes ago, and changed and set back just now.
        let placed = SystemTime::now() - Duration::from_secs(120);
        file.set_modified(placed).unwrap();
        let _ = write(&file, &identity(&file), ETAG).unwrap();
        assert_eq!(read(&file, &identity(&file)), Found::Here(None));
    }

    /// A folder with the file `key`, whose clock of changes has moved on since.
    struct PlacedFile {
        root: Root,
        key: Path,
        dir: tempfile::TempDir,
    }

    impl PlacedFile {
        /// `None` on a file system without extended attributes.
        fn new() -> Option<Self> {
            let dir = tempfile::tempdir().unwrap();
            let root = Root::open(dir.path().to_owned()).unwrap();
            let placed = Self {
                root,
                key: Path::from("key"),
                dir,
            };
            placed.place(ETAG).then_some(placed)
        }

        /// Puts a file in the place of the key, as a commit does.
        fn place(&self, e_tag: &str) -> bool {
            let (path, staged) = (self.dir.path().join("key"), self.dir.path().join("staged"));
            let mut file = File::create(&staged).unwrap();
            file.write_all(b"one").unwrap();
            file.set_modified(SystemTime::now()).unwrap();
            let has = write(&file, &identity(&file), e_tag).unwrap();
            std::fs::rename(staged, &path).unwrap();
            has
        }

        fn file(&self) -> File {
            File::open(self.dir.path().join("key")).unwrap()
        }

        /// Waits until an ETag may be remembered.
        fn wait_for_the_tick(&self) {
            let changed = identity(&self.file());
            while !changed.is_settled() {
                std::thread::yield_now();
            }
        }

        fn listed(&self) -> String {
            let listed = self.root.listed(&self.key, "key").unwrap();
            listed.unwrap().e_tag.unwrap()
        }

        fn unopened(&self) -> Option<String> {
            self.root.listed_unopened(&self.key, "key")?.e_tag
        }
    }

    #[test]
    fn second_listing_opens_no_file() {
        let Some(placed) = PlacedFile::new() else {
            return;
        };
        assert_eq!(placed.unopened(), None, "not read yet");
        placed.wait_for_the_tick();
        let listed = placed.listed();
        assert!(listed.contains(ETAG), "{listed}");
        assert_eq!(placed.unopened(), Some(listed));
        // A file of another program is known by its times alone, and by then also without an ETag.
        std::fs::remove_file(placed.dir.path().join("key")).unwrap();
        let file = File::create(placed.dir.path().join("key")).unwrap();
        placed.wait_for_the_tick();
        let listed = placed.listed();
        assert_eq!(placed.unopened(), Some(listed));
        file.set_modified(SystemTime::now() - Duration::from_secs(120))
            .unwrap();
        assert_eq!(placed.unopened(), Some(identity(&file).e_tag()));
        std::fs::rename(
            placed.dir.path().join("key"),
            placed.dir.path().join("other"),
        )
        .unwrap();
        assert_eq!(placed.unopened(), None, "no file");
        std::os::unix::fs::symlink("other", placed.dir.path().join("key")).unwrap();
        assert_eq!(placed.unopened(), None, "a link");
    }

    #[test]
    fn failed_read_of_the_attribute_is_not_remembered() {
        let Some(placed) = PlacedFile::new() else {
            return;
        };
        placed.wait_for_the_tick();
        // A file that is open only as a place in the tree: its attributes cannot be read, with EBADF.
        let path = placed.dir.path().join("key");
        let unreadable = rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
        let unreadable = File::from(unreadable);
        let version = identity(&unreadable);
        assert_eq!(look_up(&unreadable, &version), Found::Failed);
        let found = look_up(&placed.file(), &version);
        assert_eq!(found, Found::Here(Some(ETAG.to_owned())));
    }

    #[test]
    fn rewritten_attribute_and_replaced_file_are_seen_after_a_listing() {
        let Some(placed) = PlacedFile::new() else {
            return;
        };
        let (other, third) = (ETAG.replace('9', "8"), ETAG.replace('9', "7"));
        placed.wait_for_the_tick();
        assert!(placed.listed().contains(ETAG));
        let file = placed.file();
        assert!(write(&file, &identity(&file), &other).unwrap());
        assert_eq!(placed.unopened(), None);
        assert!(placed.listed().contains(&other));
        placed.wait_for_the_tick();
        assert!(placed.listed().contains(&other));
        assert!(placed.place(&third));
        assert!(placed.listed().contains(&third));
    }

    #[test]
    fn etag_is_not_remembered_in_the_tick_of_the_last_change() {
        let Some(placed) = PlacedFile::new() else {
            return;
        };
        for number in 0..200 {
            // Two changes, mostly in one tick of the clock of changes, with a listing between them.
            let e_tag = format!("{number:032x}");
            assert!(placed.place(&e_tag));
            assert!(placed.listed().contains(&e_tag));
            let other = format!("{number:031x}f");
            let file = placed.file();
            assert!(write(&file, &identity(&file), &other).unwrap());
            assert!(placed.listed().contains(&other), "{number}");
        }
    }
}
