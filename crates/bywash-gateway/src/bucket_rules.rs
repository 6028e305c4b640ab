//! Rules of buckets: whether unsigned requests may read them, and which pages of other sites.
//!
//! In memory, and in a [folder](crate::S3Config::bucket_rules) with one JSON file a bucket, so that it survives a restart. A change is on
//! disk before it has an effect.
//!
//! A bucket whose file is damaged is served without its rules: nothing of it is public, and no page of another site may read it. Requests
//! for the rules themselves are refused by name until the file is mended or removed; they read it again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bywash::Bucket;
use bywash::staged_file::{StagedFile, open_folder};
use bywash::{DamagedFile, Engine};
use parking_lot::{Mutex, RwLock};
use s3s::{S3Error, S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::config::{EncryptedDisks, PublicAccess};
use crate::cors::CorsRule;
use crate::errors::fault;
use crate::public_access::UnsignedAccess;

/// Extension of a bucket's file.
const SUFFIX: &str = "json";
/// Extension of the file of a bucket that is being deleted.
const ASIDE: &str = "aside";

/// The rules of one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BucketRules {
    /// Canned ACL public-read: unsigned requests may list it.
    pub(crate) public_read: bool,
    pub(crate) cors: Vec<CorsRule>,
}

/// The rules of all buckets.
#[derive(Debug)]
pub(crate) struct AllRules {
    /// Damaged files are noted there.
    engine: Engine,
    rules: RwLock<HashMap<String, Arc<BucketRules>>>,
    /// Buckets whose file is damaged.
    damaged: RwLock<HashSet<String>>,
    /// From the settings of the server.
    public: BTreeMap<String, PublicAccess>,
    disks: EncryptedDisks,
    folder: Option<PathBuf>,
    /// Of buckets that are being deleted.
    aside: Mutex<HashMap<String, Arc<BucketRules>>>,
    /// Held by a change.
    changes: Mutex<()>,
}

impl AllRules {
    /// Reads the rules in `folder`, creating it if missing. A damaged file is noted, and left. Blocks.
    pub(crate) fn open(
        engine: Engine,
        folder: Option<PathBuf>,
        public: BTreeMap<String, PublicAccess>,
    ) -> io::Result<Self> {
        let all = Self {
            engine,
            rules: RwLock::default(),
            damaged: RwLock::default(),
            public,
            disks: EncryptedDisks::default(),
            folder,
            aside: Mutex::default(),
            changes: Mutex::new(()),
        };
        let Some(folder) = &all.folder else {
            return Ok(all);
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        all.settle_deletions(folder)?;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|suffix| suffix == SUFFIX)
                && let Some(bucket) = path.file_stem().and_then(|name| name.to_str())
            {
                // Its rules are in memory, or it is among the damaged.
                let _ = all.read(folder, bucket);
            }
        }
        Ok(all)
    }

    /// Ends deletions of buckets during which a server died: the rules of a bucket that is there still are valid again.
    fn settle_deletions(&self, folder: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let bucket = path.file_stem().and_then(|name| name.to_str());
            let is_aside = path.extension().is_some_and(|suffix| suffix == ASIDE);
            let Some(bucket) = bucket.filter(|_| is_aside) else {
                continue;
            };
            let place = folder.join(format!("{bucket}.{SUFFIX}"));
            if self.engine.bucket(bucket).is_some() && !place.exists() {
                fs::rename(&path, &place)?;
            } else {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Reads the file of a bucket into memory. The error describes the fault in the file.
    fn read(&self, folder: &Path, bucket: &str) -> Result<Arc<BucketRules>, String> {
        let path = folder.join(format!("{bucket}.{SUFFIX}"));
        let file = path.display().to_string();
        match read(&path) {
            Ok(rules) => {
                let rules = Arc::new(rules);
                self.rules
                    .write()
                    .insert(bucket.to_owned(), Arc::clone(&rules));
                if self.damaged.write().remove(bucket) {
                    self.engine.note_mended(&file);
                }
                Ok(rules)
            }
            Err(error) => {
                let reason = error.to_string();
                self.damaged.write().insert(bucket.to_owned());
                self.engine.note_damage(DamagedFile {
                    file: file.clone(),
                    reason: reason.clone(),
                    effect: format!(
                        "nothing of the bucket {bucket} is public, and requests for its ACL and its CORS rules fail; mend the file, \
                         or remove it"
                    ),
                });
                Err(format!(
                    "{file} is damaged: {reason}; mend it, or remove it"
                ))
            }
        }
    }

    /// Returns the rules of a bucket for requests about them. A damaged file is read again.
    ///
    /// # Errors
    /// If the file is damaged still.
    pub(crate) async fn read_of(self: &Arc<Self>, bucket: &str) -> S3Result<Arc<BucketRules>> {
        let (all, bucket) = (Arc::clone(self), bucket.to_owned());
        if !all.damaged.read().contains(&bucket) {
            return Ok(all.of(&bucket));
        }
        let work = tokio::task::spawn_blocking(move || {
            let _turn = all.changes.lock();
            all.known(&bucket)
        });
        let read = work.await.unwrap_or_else(|error| Err(error.to_string()));
        read.map_err(|reason| {
            let message = format!("The settings of the bucket cannot be read: {reason}.");
            fault(S3ErrorCode::InternalError, message)
        })
    }

    /// Returns the rules of a bucket; a damaged file is read again. Blocks.
    fn known(&self, bucket: &str) -> Result<Arc<BucketRules>, String> {
        let is_damaged = self.damaged.read().contains(bucket);
        match &self.folder {
            Some(folder) if is_damaged => self.read(folder, bucket),
            _ => Ok(self.of(bucket)),
        }
    }

    pub(crate) fn with_disks(self, disks: EncryptedDisks) -> Self {
        Self { disks, ..self }
    }

    /// Whether the disk of a bucket is encrypted, as the operator states. An S3 origin states by itself how it encrypts.
    pub(crate) fn is_encrypted(&self, bucket: &Bucket) -> bool {
        let by_name = self.disks.buckets.contains(bucket.name());
        let by_kind = self.disks.all && bucket.takes_late_attributes();
        (by_name || by_kind) && bucket.origin_kind() != "s3"
    }

    /// The same of a bucket by its name.
    pub(crate) fn has_encrypted(&self, engine: &Engine, bucket: &str) -> bool {
        let is_none = !self.disks.all && self.disks.buckets.is_empty();
        !is_none
            && engine
                .bucket(bucket)
                .is_some_and(|bucket| self.is_encrypted(&bucket))
    }

    pub(crate) fn of(&self, bucket: &str) -> Arc<BucketRules> {
        self.rules.read().get(bucket).cloned().unwrap_or_default()
    }

    /// Access of an unsigned request for an operation, by its name in S3. Such a request causes no
    /// request to other origins than folders and memory: their objects are public by their bucket
    /// only.
    pub(crate) fn unsigned_access(
        &self,
        engine: &Engine,
        operation: &str,
        bucket: &str,
    ) -> UnsignedAccess {
        let is_kept = || {
            let found = engine.bucket(bucket);
            found.is_some_and(|bucket| bucket.takes_late_attributes())
        };
        match self.unsigned(operation, bucket) {
            UnsignedAccess::ByObject if !is_kept() => UnsignedAccess::Denied,
            access => access,
        }
    }

    fn unsigned(&self, operation: &str, bucket: &str) -> UnsignedAccess {
        let public = self.public.get(bucket);
        match operation {
            "GetObject" | "HeadObject" if public.is_some() => UnsignedAccess::Allowed,
            "GetObject" | "HeadObject" => UnsignedAccess::ByObject,
            "ListObjects" | "ListObjectsV2" | "HeadBucket"
                if public == Some(&PublicAccess::ReadList) || self.of(bucket).public_read =>
            {
                UnsignedAccess::Allowed
            }
            _ => UnsignedAccess::Denied,
        }
    }

    /// Changes the rules of a bucket, on disk first. The change is completed even if the caller leaves.
    pub(crate) async fn change(
        self: &Arc<Self>,
        bucket: &str,
        change: impl FnOnce(&mut BucketRules) + Send + 'static,
    ) -> S3Result<()> {
        let (all, bucket) = (Arc::clone(self), bucket.to_owned());
        let work = tokio::task::spawn_blocking(move || all.change_now(&bucket, change));
        let changed = work.await.unwrap_or_else(|error| Err(error.into()));
        changed.map_err(|error| not_kept(&error))
    }

    /// Takes the rules of a bucket out of force before it is deleted, also damaged ones. They come back by [`Self::put_back`], and after
    /// a crash if the bucket is there.
    pub(crate) async fn set_aside(self: &Arc<Self>, bucket: &str) -> S3Result<()> {
        self.changed(bucket, |all, bucket| {
            if let Some(folder) = &all.folder {
                rename(folder, (bucket, SUFFIX), (bucket, ASIDE))?;
                all.mended(folder, bucket);
            }
            let rules = all.rules.write().remove(bucket);
            if let Some(rules) = rules {
                all.aside.lock().insert(bucket.to_owned(), rules);
            }
            Ok(())
        })
        .await
    }

    /// Puts the rules of a bucket that was not deleted into force again.
    pub(crate) async fn put_back(self: &Arc<Self>, bucket: &str) -> S3Result<()> {
        self.changed(bucket, |all, bucket| {
            let rules = all.aside.lock().remove(bucket);
            match &all.folder {
                Some(folder) => {
                    rename(folder, (bucket, ASIDE), (bucket, SUFFIX))?;
                    // A damaged file is noted again.
                    let _ = all.read(folder, bucket);
                }
                None => {
                    let rules = rules.map(|rules| (bucket.to_owned(), rules));
                    all.rules.write().extend(rules);
                }
            }
            Ok(())
        })
        .await
    }

    /// Removes the rules of a bucket that was deleted.
    pub(crate) async fn forget(self: &Arc<Self>, bucket: &str) -> S3Result<()> {
        self.changed(bucket, |all, bucket| {
            all.aside.lock().remove(bucket);
            match &all.folder {
                Some(folder) => remove(&folder.join(format!("{bucket}.{ASIDE}"))),
                None => Ok(()),
            }
        })
        .await
    }

    /// Makes a change of the files of a bucket, one after the other.
    async fn changed(
        self: &Arc<Self>,
        bucket: &str,
        change: impl FnOnce(&Self, &str) -> io::Result<()> + Send + 'static,
    ) -> S3Result<()> {
        let (all, name) = (Arc::clone(self), bucket.to_owned());
        let work = tokio::task::spawn_blocking(move || {
            let _turn = all.changes.lock();
            change(&all, &name)
        });
        let changed = work.await.unwrap_or_else(|error| Err(error.into()));
        changed.map_err(|error| not_kept(&error))
    }

    /// Notes that the file of a bucket is damaged no more.
    fn mended(&self, folder: &Path, bucket: &str) {
        if self.damaged.write().remove(bucket) {
            let file = folder.join(format!("{bucket}.{SUFFIX}"));
            self.engine.note_mended(&file.display().to_string());
        }
    }

    fn change_now(&self, bucket: &str, change: impl FnOnce(&mut BucketRules)) -> io::Result<()> {
        let _turn = self.changes.lock();
        let known = self.known(bucket).map_err(io::Error::other)?;
        let mut rules = BucketRules::clone(&known);
        change(&mut rules);
        self.store(bucket, rules)
    }

    /// Stores the rules of a bucket in place of others; the caller holds the lock of changes.
    fn store(&self, bucket: &str, rules: BucketRules) -> io::Result<()> {
        let is_default = rules == BucketRules::default();
        if let Some(folder) = &self.folder {
            let name = format!("{bucket}.{SUFFIX}");
            if is_default {
                remove(&folder.join(&name))?
            } else {
                write(folder, &name, &rules)?
            }
            self.mended(folder, bucket);
        }
        let mut all = self.rules.write();
        if is_default {
            all.remove(bucket)
        } else {
            all.insert(bucket.to_owned(), Arc::new(rules))
        };
        Ok(())
    }
}

fn not_kept(error: &io::Error) -> S3Error {
    let message = format!("The settings of the bucket cannot be kept ({error}); try again.");
    fault(S3ErrorCode::InternalError, message)
}

fn read(path: &Path) -> io::Result<BucketRules> {
    match fs::read(path) {
        // It was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BucketRules::default()),
        file => Ok(serde_json::from_slice(&file?)?),
    }
}

/// Replaces a file durably.
fn write(folder: &Path, name: &str, rules: &BucketRules) -> io::Result<()> {
    let staged = StagedFile::create(open_folder(folder)?, &Permissions::from_mode(0o600))?;
    let mut file = staged.file();
    file.write_all(&serde_json::to_vec(rules)?)?;
    staged.place(name.as_ref(), true)
}

/// Renames the file of a bucket durably, if there is one.
fn rename(folder: &Path, from: (&str, &str), to: (&str, &str)) -> io::Result<()> {
    let path = |(bucket, suffix)| folder.join(format!("{bucket}.{suffix}"));
    match fs::rename(path(from), path(to)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| fs::File::open(folder)?.sync_all()),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn engine() -> Engine {
        Engine::builder().memory(64 << 20).build().unwrap()
    }

    #[test]
    fn rules_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let rules = Some(folder.path().join("rules"));
            AllRules::open(engine(), rules, BTreeMap::new())
        };
        let all = open().unwrap();
        all.change_now("data", |rules| rules.public_read = true)
            .unwrap();
        let again = open().unwrap();
        assert!(again.of("data").public_read && !again.of("other").public_read);
        again
            .change_now("data", |rules| *rules = BucketRules::default())
            .unwrap();
        assert_eq!(
            fs::read_dir(folder.path().join("rules")).unwrap().count(),
            0
        );
    }

    /// The rules of a bucket are out of force before it is removed. A server that dies then has
    /// them again if the bucket is there.
    #[tokio::test]
    async fn rules_go_before_their_bucket_and_come_back_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let (root, rules) = (folder.path().join("root"), folder.path().join("rules"));
        let open = || {
            let engine = Engine::builder().memory(64 << 20).root(&root).build();
            let engine = engine.unwrap();
            let all = AllRules::open(engine.clone(), Some(rules.clone()), BTreeMap::new());
            (engine, Arc::new(all.unwrap()))
        };
        let (engine, all) = open();
        engine.create_bucket("data").unwrap();
        let make_public = |rules: &mut BucketRules| rules.public_read = true;
        all.change_now("data", make_public).unwrap();
        // The bucket was not deleted after all.
        all.set_aside("data").await.unwrap();
        assert!(!all.of("data").public_read);
        all.put_back("data").await.unwrap();
        assert!(all.of("data").public_read);
        // The server dies before the bucket is deleted, and after it.
        all.set_aside("data").await.unwrap();
        let (engine, all) = open();
        assert!(all.of("data").public_read);
        all.set_aside("data").await.unwrap();
        engine.delete_bucket("data").await.unwrap();
        let (engine, all) = open();
        engine.create_bucket("data").unwrap();
        assert!(!all.of("data").public_read);
        assert_eq!(fs::read_dir(&rules).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn damaged_file_closes_its_bucket_alone_until_it_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine();
        let open = || {
            let rules = Some(folder.path().to_owned());
            Arc::new(AllRules::open(engine.clone(), rules, BTreeMap::new()).unwrap())
        };
        let all = open();
        for bucket in ["data", "other"] {
            all.change_now(bucket, |rules| rules.public_read = true)
                .unwrap();
        }
        let file = folder.path().join("data.json");
        let whole = fs::read(&file).unwrap();
        fs::write(&file, "{").unwrap();
        let all = open();
        assert!(all.of("other").public_read && !all.of("data").public_read);
        let damaged = engine.damaged_files();
        assert_eq!(damaged.len(), 1);
        assert_eq!(damaged[0].file, file.display().to_string());
        let error = all.read_of("data").await.unwrap_err();
        assert!(error.message().unwrap().contains("data.json"));
        // A change would lose the contents of the file.
        let change = all.change("data", |rules| rules.cors = Vec::new()).await;
        assert!(change.unwrap_err().message().unwrap().contains("data.json"));
        assert_eq!(fs::read(&file).unwrap(), b"{");
        fs::write(&file, whole).unwrap();
        assert!(all.read_of("data").await.unwrap().public_read);
        assert!(all.of("data").public_read && engine.damaged_files().is_empty());
        // It is removed with its bucket, even with invalid contents.
        fs::write(&file, "").unwrap();
        let all = open();
        all.set_aside("data").await.unwrap();
        all.forget("data").await.unwrap();
        assert!(!file.exists() && engine.damaged_files().is_empty());
    }

    #[test]
    fn unsigned_requests_read_and_list_what_is_public() {
        use UnsignedAccess::{Allowed, ByObject, Denied};
        let public = [
            ("read", PublicAccess::Read),
            ("list", PublicAccess::ReadList),
        ];
        let public = public
            .map(|(name, access)| (name.to_owned(), access))
            .into();
        let all = AllRules::open(engine(), None, public).unwrap();
        all.change_now("acl", |rules| rules.public_read = true)
            .unwrap();
        for (bucket, get, list) in [
            ("read", Allowed, Denied),
            ("list", Allowed, Allowed),
            ("acl", ByObject, Allowed),
            ("other", ByObject, Denied),
        ] {
            assert_eq!(all.unsigned("GetObject", bucket), get);
            assert_eq!(all.unsigned("ListObjectsV2", bucket), list);
            for write in [
                "PutObject",
                "DeleteObject",
                "GetBucketAcl",
                "PutBucketAcl",
                "ListBuckets",
            ] {
                assert_eq!(all.unsigned(write, bucket), Denied);
            }
        }
    }
}
