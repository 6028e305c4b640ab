//! Renames: an object gets another key by one rename of its file. Blocks on files.
//!
//! The object of the other key is a new version, so the file first gets an mtime of its own in place, and with it side files for both
//! keys. A crash before the rename leaves the object under its key, with its bytes and attributes, as a version of another time. After
//! the rename it is whole under the other one. At no moment are there two objects, or none.

use std::fs::File;
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{Attributes, PutResult, Result};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::error::{FolderError, io_error};
use super::etag;
use super::held::Located;
use super::identity::{Identity, unique_time};
use super::names;
use super::restamped;
use super::root::Root;
use super::stage::Staged;
use crate::client_etag::{CLIENT_ETAG, join, kept_client_etag};
use crate::interface::{ObjectRename, lacks};
use crate::staged_file::sync_folder;

/// A file that cannot get another mtime and name in place, for the errors of stores without renames.
const NOT_RENAMED: &str =
    "renames of links, of files with several names, of other owners or of other mounts";

impl Root {
    /// Gives the object `from` the key `to`, if it is the version of `rename`.
    pub(super) fn rename(
        &self,
        from: &Path,
        to: &Path,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        names::places(to)?;
        let _guards = self.lock_both(from.as_ref(), to.as_ref());
        let Some(source) = self.locate(from)? else {
            return Err(FolderError::NoSuchObject.not_found(from));
        };
        let Some(wanted) = &rename.version.e_tag else {
            return Err(FolderError::NoETag.generic());
        };
        let e_tag = self.check_e_tag(from, &source, wanted)?;
        self.check_renamable(&source)?;
        self.check(to, self.locate(to)?.as_ref(), &rename.mode)?;
        self.remove_covered(from, &source)?;
        let client = kept_client_etag(&e_tag);
        let stamped = self.restamp(from, &source, client, (to, &rename.attributes))?;
        self.place_renamed(from, to, (source, stamped), client, rename)
    }

    /// Checks that the file has only this name, and is in the folder's own file system.
    fn check_renamable(&self, source: &Located) -> Result<()> {
        let is_plain = self.identity_nofollow(&source.path) == Some(source.identity)
            && source.identity.has_one_name()
            && source.identity.node().0 == self.node().0;
        if is_plain {
            Ok(())
        } else {
            Err(lacks("folder", NOT_RENAMED))
        }
    }

    /// Removes the file of the key in its other place, which the object hides: it would come to light.
    fn remove_covered(&self, key: &Path, source: &Located) -> Result<()> {
        let failed = |errno: Errno| io_error("rename", key.as_ref(), errno);
        for (_, path) in names::places(key)? {
            if path == source.path || self.open_file(&path).map_err(failed)?.is_none() {
                continue;
            }
            let (folder, name) = self.parent(&path).map_err(failed)?;
            rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(failed)?;
            sync_folder(&folder).map_err(failed)?;
        }
        Ok(())
    }

    /// Gives the file an mtime that no version had, and returns its identity. The object keeps its attributes and its client's
    /// ETag; `other` are the key that it gets next and its attributes there, which are in a side file too.
    fn restamp(
        &self,
        key: &Path,
        located: &Located,
        client: Option<&str>,
        other: (&Path, &Attributes),
    ) -> Result<Identity> {
        let failed = |source: std::io::Error| io_error("rename", key.as_ref(), source);
        let time = self.next_time().map_err(failed)?;
        let before = &located.identity;
        let next = before.modified_at(time);
        restamped::note(before, &next);
        let beside = match client {
            Some(client) => !etag::write_both(&located.file, before, &next, client)
                .map_err(|errno| failed(errno.into()))?,
            None => false,
        };
        let own = self.read_attributes(key, before)?.unwrap_or_default();
        for (key, attributes) in [(key, &own), other] {
            let mut attributes = attributes.clone();
            attributes.remove(&CLIENT_ETAG);
            if let Some(client) = client.filter(|_| beside) {
                attributes.insert(CLIENT_ETAG, client.to_owned().into());
            }
            if !attributes.is_empty() {
                self.write_attributes(key, &next, &attributes)?;
            }
        }
        let stamped = located.file.set_modified(time);
        match stamped.and_then(|()| located.file.sync_all()) {
            Ok(()) => {
                self.remove_attributes(key, before);
                Ok(next)
            }
            Err(error) => {
                self.remove_attributes(key, &next);
                self.remove_attributes(other.0, &next);
                match Errno::from_io_error(&error) {
                    Some(Errno::PERM | Errno::ACCESS) => Err(lacks("folder", NOT_RENAMED)),
                    _ => Err(failed(error)),
                }
            }
        }
    }

    /// A time that no version had, as the file system stores it.
    pub(super) fn next_time(&self) -> std::io::Result<SystemTime> {
        let probe = Staged::create(self)?;
        probe.set_modified(unique_time())?;
        probe.modified()
    }

    /// Renames the file, which has the identity `stamped`, to the place of `to`.
    fn place_renamed(
        &self,
        from: &Path,
        to: &Path,
        (source, stamped): (Located, Identity),
        client: Option<&str>,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        let failed = |source: std::io::Error| io_error("rename", from.as_ref(), source);
        let parent = || {
            let found = self.parent(&source.path);
            found.map_err(|errno| failed(errno.into()))
        };
        let (folder, name) = parent()?;
        let file: File = source.file.try_clone().map_err(failed)?;
        let mut renamed = Staged::of_object(folder, name, file);
        let replaced = match self.place(to, &mut renamed, &rename.mode) {
            Ok(replaced) => replaced,
            Err(error) => {
                self.remove_attributes(to, &stamped);
                return Err(error);
            }
        };
        // The next steps cannot be undone: the object has its new key.
        sync_folder(&parent()?.0).map_err(|errno| failed(errno.into()))?;
        self.remove_attributes(from, &stamped);
        if let Some(replaced) = replaced {
            self.remove_attributes(to, &replaced);
        }
        self.prune(&source.path, source.area.base());
        let placed = renamed.identity().map_err(failed)?;
        let client = client.filter(|_| placed.is_as_placed());
        Ok(PutResult {
            e_tag: Some(join(placed.e_tag(), client)),
            version: None,
            extensions: object_store::Extensions::default(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use object_store::{Attribute, GetOptions, PutMode, PutPayload};

    use super::*;

    /// The MD5 of "one".
    const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";

    fn attributes(kind: &str) -> Attributes {
        Attributes::from_iter([(Attribute::ContentType, kind.to_owned())])
    }

    /// All that a crash may leave before the rename of the file.
    #[test]
    fn crash_before_the_rename_leaves_the_object_with_its_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(dir.path().to_owned()).unwrap());
        let (from, to) = (Path::from("from"), Path::from("to"));
        let mut staged = root.stage(&from).unwrap();
        staged.write(PutPayload::from("one")).unwrap();
        let mut own = attributes("text/x");
        own.insert(CLIENT_ETAG, ONE.into());
        root.commit(&from, &mut staged, &own, &PutMode::Overwrite)
            .unwrap();
        let found = || root.get(&from, &GetOptions::default()).unwrap();
        let before = found();
        let located = root.locate(&from).unwrap().unwrap();
        // Before the mtime is set: the extended attribute has both versions, and the side files are there.
        let next = located.identity.modified_at(root.next_time().unwrap());
        assert!(etag::write_both(&located.file, &located.identity, &next, ONE).unwrap());
        root.write_attributes(&to, &next, &attributes("text/y"))
            .unwrap();
        let client = |e_tag: Option<String>| kept_client_etag(&e_tag.unwrap()).map(str::to_owned);
        let during = found();
        assert_eq!(during.attributes, attributes("text/x"));
        assert_eq!(client(during.meta.e_tag), Some(ONE.to_owned()));
        // After it, by the real code.
        let located = root.locate(&from).unwrap().unwrap();
        let next = root.restamp(&from, &located, Some(ONE), (&to, &attributes("text/y")));
        assert!(next.unwrap().modified() > located.identity.modified());
        let after = found();
        assert_eq!(after.attributes, attributes("text/x"));
        assert!(after.meta.last_modified > before.meta.last_modified);
        assert_eq!(client(after.meta.e_tag), Some(ONE.to_owned()));
        assert!(root.locate(&to).unwrap().is_none());
    }
}
