//! Other attributes for an object, whose file stays as it is and gets another mtime: a new version of the same bytes.
//!
//! The side file of the new mtime is on disk before the file gets it, so attributes and version change in one step: the change of the mtime.
//! The side file also has the client's ETag, for the file's own record of it names the mtime before until it is written again. After a
//! crash at any step the object has its old attributes or the new ones.
//!
//! Readers with the file open continue through a change of attributes ([`restamped`]). Another process on the folder does not know that
//! the bytes are the same, and reads the object again.

use std::fs::File;
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{Attributes, PutMode, PutResult, Result};
use rustix::io::Errno;

use super::error::{FolderError, io_error};
use super::etag;
use super::identity::Identity;
use super::restamped;
use super::root::Root;
use crate::client_etag::{given, join};
use crate::interface::AttributeRewrite;

impl Root {
    /// Replaces the attributes of an object, if it is still this version; its bytes are not copied. `None`, and nothing is changed, if
    /// another object may have its file too, or its times may not be set.
    pub(super) fn rewrite_in_place(
        &self,
        key: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let _guard = self.lock(key.as_ref());
        let located = self.locate(key)?;
        let mode = PutMode::Update(rewrite.version.clone());
        self.check(key, located.as_ref(), &mode)?;
        let Some(located) = located else {
            return Err(FolderError::NoSuchObject.precondition(key));
        };
        let before = located.identity;
        // Not a link, and no other name of the file.
        if self.identity_nofollow(&located.path) != Some(before) || !before.has_one_name() {
            return Ok(None);
        }
        let failed = |source| io_error("change the attributes of", key.as_ref(), source);
        let time = self.next_time().map_err(failed)?;
        let planned = before.modified_at(time);
        if !rewrite.attributes.is_empty() {
            self.write_attributes(key, &planned, &rewrite.attributes)?;
        }
        restamped::note(&before, &planned);
        if let Err(errno) = set_time(&located.file, time) {
            self.remove_attributes(key, &planned);
            return match errno {
                Errno::PERM | Errno::ACCESS => Ok(None),
                errno => Err(io_error("change the attributes of", key.as_ref(), errno)),
            };
        }
        let now = self.finish_rewrite(key, &located.file, &planned, &rewrite.attributes)?;
        self.remove_attributes(key, &before);
        // Another process may have put a file in its place.
        let failed = |errno: Errno| io_error("check", key.as_ref(), errno);
        if self.identity(&located.path).map_err(failed)? != Some(now) {
            return Err(FolderError::Changed.precondition(key));
        }
        let client = given(&rewrite.attributes).filter(|_| now.is_as_placed());
        Ok(Some(PutResult {
            e_tag: Some(join(now.e_tag(), client)),
            version: None,
            extensions: object_store::Extensions::default(),
        }))
    }

    /// Writes the client's ETag to a file with its new mtime, and makes both durable. Returns the file's identity.
    fn finish_rewrite(
        &self,
        key: &Path,
        file: &File,
        planned: &Identity,
        attributes: &Attributes,
    ) -> Result<Identity> {
        let failed = |source| io_error("change the attributes of", key.as_ref(), source);
        if let Some(client) = given(attributes) {
            // Without it the side file has the ETag.
            let written = etag::write(file, planned, client);
            written.map_err(|errno| failed(errno.into()))?;
        }
        file.sync_all().map_err(failed)?;
        let stat = rustix::fs::fstat(file).map_err(|errno| failed(errno.into()))?;
        Ok(Identity::of(&stat))
    }
}

fn set_time(file: &File, time: SystemTime) -> Result<(), Errno> {
    let set = file.set_modified(time);
    set.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use object_store::{Attribute, GetOptions};

    use super::*;
    use crate::client_etag::{CLIENT_ETAG, client_etag};

    /// The ETag that the client computes of "one".
    const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";

    fn attributes(language: &str) -> Attributes {
        let language = language.to_owned();
        Attributes::from_iter([
            (CLIENT_ETAG, ONE.to_owned()),
            (Attribute::ContentLanguage, language),
        ])
    }

    /// A step of a change, after which the process dies.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        SideFile,
        Time,
        All,
    }

    #[test]
    fn object_has_old_or_new_attributes_and_its_etag_after_a_crash_at_any_step() {
        for last in [Step::SideFile, Step::Time, Step::All] {
            let dir = tempfile::tempdir().unwrap();
            let root = Arc::new(Root::open(dir.path().to_owned()).unwrap());
            let key = Path::from("key");
            let mut staged = root.stage(&key).unwrap();
            staged.write(["one".into()]).unwrap();
            let mode = PutMode::Create;
            root.commit(&key, &mut staged, &attributes("de"), &mode)
                .unwrap();
            let located = root.locate(&key).unwrap().unwrap();
            let (time, before) = (root.next_time().unwrap(), located.identity);
            let (planned, changed) = (before.modified_at(time), attributes("fr"));
            root.write_attributes(&key, &planned, &changed).unwrap();
            if last != Step::SideFile {
                set_time(&located.file, time).unwrap();
            }
            if last == Step::All {
                let finished = root.finish_rewrite(&key, &located.file, &planned, &changed);
                finished.unwrap();
            }
            // Another process, later.
            let root = Arc::new(Root::open(dir.path().to_owned()).unwrap());
            let found = root.get(&key, &GetOptions::default()).unwrap();
            let language = found
                .attributes
                .get(&Attribute::ContentLanguage)
                .unwrap()
                .to_string();
            let expected = if last == Step::SideFile { "de" } else { "fr" };
            assert_eq!(language, expected, "{last:?}");
            let e_tag = found.meta.e_tag.unwrap();
            assert_eq!(client_etag(&e_tag), ONE, "{last:?}");
            let listed = root.listed(&key, "key").unwrap().unwrap();
            assert_eq!(listed.e_tag, Some(e_tag), "{last:?}");
        }
    }
}
