//! The client's ETag of a file ([`client_etag`](crate::origin::client_etag)), in an extended attribute of the file.
//!
//! `user.bywash.etag` is `<mtime>-<size> <etag>`, set on the staged file before it is synced, so it costs no sync of its own. A file
//! that another program changed has another mtime or size, and so no client's ETag. A program that sets both back still changes the
//! ctime, which then lies apart from the mtime. On a file system without extended attributes the ETag is in the side file of the
//! attributes.

use std::fs::File;

use object_store::path::Path;
use object_store::{Attributes, ObjectMeta, Result};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::error::io_error;
use super::held::Located;
use super::identity::Identity;
use super::root::Root;
use crate::origin::client_etag::{CLIENT_ETAG, given, join};

const NAME: &str = "user.bywash.etag";
/// More than a stamp and an ETag.
const VALUE_BYTES: usize = 160;

/// Where the ETag of a file may be.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Here(Option<String>),
    /// The file system has no extended attributes.
    InSideFile,
}

fn is_unsupported(errno: Errno) -> bool {
    errno == Errno::NOTSUP || errno == Errno::OPNOTSUPP || errno == Errno::NOSYS
}

/// Sets the ETag of a file that has its final mtime and size. Returns false if the file system has no extended attributes, or refuses
/// this one.
pub(super) fn write(file: &File, identity: &Identity, e_tag: &str) -> Result<bool, Errno> {
    let value = format!("{} {e_tag}", identity.stamp());
    match rustix::fs::fsetxattr(file, NAME, value.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(errno),
        Err(_) => Ok(false),
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
        Err(_) => return Found::Here(None),
    };
    let text = value
        .get(..length)
        .and_then(|value| std::str::from_utf8(value).ok());
    let found = text.and_then(|text| text.split_once(' '));
    let found = found.filter(|(stamp, _)| *stamp == identity.stamp());
    Found::Here(found.map(|(_, e_tag)| e_tag.to_owned()))
}

impl Root {
    /// Returns the ETag of an open file. `attributes`: those of its side file, from which the ETag is removed.
    pub(super) fn e_tag(&self, located: &Located, attributes: &mut Attributes) -> String {
        let beside = attributes.remove(&CLIENT_ETAG);
        let client = match read(&located.file, &located.identity) {
            Found::Here(e_tag) => e_tag,
            Found::InSideFile => beside.map(|value| value.to_string()),
        };
        join(located.identity.e_tag(), client.as_deref())
    }

    /// As [`Self::e_tag`], of a file whose side file was not read.
    pub(super) fn current_e_tag(&self, key: &Path, located: &Located) -> Result<String> {
        self.e_tag_of(key, &located.file, &located.identity)
    }

    fn e_tag_of(&self, key: &Path, file: &File, identity: &Identity) -> Result<String> {
        let client = match read(file, identity) {
            Found::Here(e_tag) => e_tag,
            Found::InSideFile => {
                let attributes = self.read_attributes(key, identity)?;
                let given = attributes.as_ref().and_then(given);
                given.map(str::to_owned)
            }
        };
        Ok(join(identity.e_tag(), client.as_deref()))
    }

    /// Returns the listed object `key` in the file at `path`; `None` if it is gone.
    pub(super) fn listed(&self, key: &Path, path: &str) -> Result<Option<ObjectMeta>> {
        let failed = |errno: Errno| io_error("list", key.as_ref(), errno);
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
                let identity = self.identity(path).map_err(failed)?;
                Ok(identity.map(|identity| identity.meta(key.clone())))
            }
            Err(errno) => Err(failed(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;
    use std::time::{Duration, SystemTime};

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
            Found::Here(None),
            "another size"
        );
        file.set_len(3).unwrap();
        file.set_modified(written + Duration::from_nanos(1))
            .unwrap();
        assert_eq!(
            read(&file, &identity(&file)),
            Found::Here(None),
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
}
