//! What is set for buckets: whether unsigned requests may read them, and which pages of other sites.
//!
//! In memory, and in a [folder](crate::S3Config::bucket_rules) with one JSON file a bucket, so that it survives a restart. A change is on
//! disk before it has an effect.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bywash::{Bucket, Engine};
use bywash::staged_file::{StagedFile, open_folder};
use parking_lot::{Mutex, RwLock};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::config::{EncryptedDisks, PublicAccess};
use crate::cors::CorsRule;
use crate::errors::fault;
use crate::public_access::UnsignedAccess;

/// Extension of a bucket's file.
const SUFFIX: &str = "json";

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
    rules: RwLock<HashMap<String, Arc<BucketRules>>>,
    /// From the settings of the server.
    public: BTreeMap<String, PublicAccess>,
    disks: EncryptedDisks,
    folder: Option<PathBuf>,
    /// Held by a change.
    changes: Mutex<()>,
}

impl AllRules {
    /// Reads the rules in `folder`, creating it if missing. Blocks.
    pub(crate) fn open(
        folder: Option<PathBuf>,
        public: BTreeMap<String, PublicAccess>,
    ) -> io::Result<Self> {
        let mut rules = HashMap::new();
        if let Some(folder) = &folder {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.extension().is_some_and(|suffix| suffix == SUFFIX)
                    && let Some(bucket) = path.file_stem().and_then(|name| name.to_str())
                {
                    rules.insert(bucket.to_owned(), Arc::new(read(&path)?));
                }
            }
        }
        Ok(Self {
            rules: RwLock::new(rules),
            public,
            disks: EncryptedDisks::default(),
            folder,
            changes: Mutex::new(()),
        })
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
        !is_none && engine.bucket(bucket).is_some_and(|bucket| self.is_encrypted(&bucket))
    }

    pub(crate) fn of(&self, bucket: &str) -> Arc<BucketRules> {
        self.rules.read().get(bucket).cloned().unwrap_or_default()
    }

    /// Returns what an unsigned request for an operation, by its name in S3, may do. Such a request causes no request to other
    /// origins than folders and memory: their objects are public by their bucket only.
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
        changed.map_err(|error| {
            let message =
                format!("The settings of the bucket cannot be kept ({error}); try again.");
            fault(S3ErrorCode::InternalError, message)
        })
    }

    fn change_now(&self, bucket: &str, change: impl FnOnce(&mut BucketRules)) -> io::Result<()> {
        let _turn = self.changes.lock();
        let mut rules = BucketRules::clone(&self.of(bucket));
        change(&mut rules);
        let is_default = rules == BucketRules::default();
        if let Some(folder) = &self.folder {
            let name = format!("{bucket}.{SUFFIX}");
            match is_default {
                true => remove(&folder.join(name))?,
                false => write(folder, &name, &rules)?,
            }
        }
        let mut all = self.rules.write();
        match is_default {
            true => all.remove(bucket),
            false => all.insert(bucket.to_owned(), Arc::new(rules)),
        };
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<BucketRules> {
    serde_json::from_slice(&fs::read(path)?).map_err(|error| {
        let text = format!("{}: {error}; mend or delete it", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Replaces a file durably.
fn write(folder: &Path, name: &str, rules: &BucketRules) -> io::Result<()> {
    let staged = StagedFile::create(open_folder(folder)?, &Permissions::from_mode(0o600))?;
    let mut file = staged.file();
    file.write_all(&serde_json::to_vec(rules)?)?;
    staged.place(name.as_ref(), true)
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

    #[test]
    fn rules_survive_a_restart_and_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let open = || AllRules::open(Some(folder.path().join("rules")), BTreeMap::new());
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
        fs::write(folder.path().join("rules/data.json"), "{").unwrap();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::InvalidData);
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
        let all = AllRules::open(None, public).unwrap();
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
