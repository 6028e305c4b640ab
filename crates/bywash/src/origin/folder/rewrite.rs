//! Other attributes for an object, whose file stays as it is and gets another mtime: a new version of the same bytes.
//!
//! The side file of the new mtime is on disk before the file gets it, so attributes and version change in one step: that of the mtime.
//! The side file also has the client's ETag, for the file's own record of it names the mtime before until it is written anew. After a
//! crash at any step the object has its old attributes or the new ones.
//!
//! Readers with the file open know a version by its times. [`Renewals`] knows which versions have the same bytes, so a read goes on
//! through a change of attributes. Another process on the folder does not know, and reads the object again.

use std::collections::VecDeque;
use std::fs::File;
use std::time::SystemTime;

use object_store::path::Path;
use object_store::{Attributes, PutMode, PutResult, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::error::{FolderError, io_error};
use super::etag;
use super::identity::{Identity, unique_time};
use super::root::Root;
use crate::limits::MAX_RENEWED_FILES;
use crate::origin::client_etag::{given, join};
use crate::origin::interface::AttributeRewrite;

/// Versions that a change of attributes has replaced, each with the one that has its bytes now, of all stores of the process. The lock
/// is held for no I/O.
static RENEWALS: Mutex<Renewals> = Mutex::new(Renewals(VecDeque::new()));

#[derive(Debug)]
struct Renewals(VecDeque<(Identity, Identity)>);

impl Renewals {
    /// Adds a renewal, and forgets the oldest one above the limit: its readers read the object again.
    fn add(&mut self, before: Identity, now: Identity) {
        if self.0.len() >= MAX_RENEWED_FILES {
            self.0.pop_front();
        }
        self.0.push_back((before, now));
    }

    /// Returns whether the version `now` has the bytes of `before` by changes of attributes alone.
    fn lead(&self, before: Identity, now: &Identity) -> bool {
        let follow = |current: Identity, (from, to): &(Identity, Identity)| {
            if from.has_bytes_of(&current) {
                *to
            } else {
                current
            }
        };
        let last = self.0.iter().fold(before, follow);
        now.has_bytes_of(&last)
    }
}

/// Returns whether an open file with the identity `now` has the bytes of the version `before` by changes of attributes alone.
pub(super) fn is_renewed(before: &Identity, now: &Identity) -> bool {
    RENEWALS.lock().lead(*before, now)
}

impl Root {
    /// Replaces the attributes of an object, if it is still this version; its bytes are not copied. `None`, and nothing is changed, if
    /// its file may be that of another object too, or its times may not be set.
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
        let time = unique_time();
        let planned = before.at(time);
        if !rewrite.attributes.is_empty() {
            self.write_attributes(key, &planned, &rewrite.attributes)?;
        }
        if let Err(errno) = set_time(&located.file, time) {
            self.remove_attributes(key, &planned);
            return match errno {
                Errno::PERM | Errno::ACCESS => Ok(None),
                errno => Err(io_error("change the attributes of", key.as_ref(), errno)),
            };
        }
        let now = self.finish_rewrite(key, &located.file, &planned, &rewrite.attributes)?;
        RENEWALS.lock().add(before, now);
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
    use crate::origin::client_etag::{CLIENT_ETAG, client_etag};

    #[test]
    fn renewals_lead_from_any_version_to_the_last_and_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let version = |number: usize| {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, number.to_string()).unwrap();
            Identity::of(&rustix::fs::stat(path).unwrap())
        };
        let versions: Vec<_> = (0..4).map(version).collect();
        let mut renewals = Renewals(VecDeque::new());
        renewals.add(versions[0], versions[1]);
        renewals.add(versions[1], versions[2]);
        assert!(renewals.lead(versions[0], &versions[2]));
        assert!(renewals.lead(versions[1], &versions[2]));
        assert!(!renewals.lead(versions[0], &versions[1]), "replaced since");
        assert!(!renewals.lead(versions[2], &versions[0]));
        assert!(!renewals.lead(versions[3], &versions[2]));
        for _ in 0..MAX_RENEWED_FILES {
            renewals.add(versions[3], versions[3]);
        }
        assert_eq!(renewals.0.len(), MAX_RENEWED_FILES);
        assert!(!renewals.lead(versions[0], &versions[2]), "forgotten");
    }

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
            let (time, before) = (unique_time(), located.identity);
            let (planned, changed) = (before.at(time), attributes("fr"));
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
