//! The bucket of `--series-bucket`: files of the series databases in a bucket of this server, each below a folder of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::folder::FolderStore;
use bywash::{Bucket, Engine, OriginUrl};
use object_store::ObjectStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;

use super::settings::BucketSettings;
use crate::failure::Failure;

/// Max time for which the bucket may trust a known version: a server that another one has followed reads the manifest once a
/// minute to learn of it.
const TRUSTED_FOR: Duration = Duration::from_secs(60);

/// A bucket, and the folder of the databases in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeriesBucket {
    bucket: String,
    prefix: Path,
}

impl fmt::Display for SeriesBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix.is_root() {
            f.write_str(&self.bucket)
        } else {
            write!(f, "{}/{}", self.bucket, self.prefix)
        }
    }
}

impl SeriesBucket {
    /// Parses `NAME[/prefix]`, a bucket among `buckets`; any name if there are none, as buckets are folders then.
    pub(super) fn parse(text: &str, buckets: &[BucketSettings]) -> Result<Self, Failure> {
        let bad = |reason: &str| Failure::usage(format!("--series-bucket {text}: {reason}"));
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        if bucket.is_empty() {
            return Err(bad("the bucket is missing; write NAME or NAME/prefix"));
        }
        let prefix = prefix.trim_end_matches('/');
        // The names of folders of any kind of bucket.
        let plain = |part: &str| {
            let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty()
                && part.chars().all(letter)
                && !part.starts_with('.')
                && !FolderStore::is_own_name(part)
        };
        let parsed = Path::parse(prefix).ok();
        let parsed = parsed.filter(|_| prefix.is_empty() || prefix.split('/').all(plain));
        let prefix = parsed.ok_or_else(|| {
            bad("the prefix may have letters, digits, dots, hyphens and underscores, between single slashes")
        })?;
        let series = Self {
            bucket: bucket.to_owned(),
            prefix,
        };
        if buckets.is_empty() {
            return Ok(series);
        }
        let served = buckets.iter().find(|served| served.name == bucket);
        let served = served.ok_or_else(|| {
            bad("the bucket is not served; add NAME=URL to the server's buckets, or correct the name")
        })?;
        if served.read_only || matches!(served.url, OriginUrl::Http(_)) {
            return Err(bad("the bucket is read-only; name another"));
        }
        if matches!(served.url, OriginUrl::Memory) {
            return Err(bad(
                "what is in memory is lost at the end of the server; name a bucket that stays",
            ));
        }
        match served.reads.consistency.max_age() {
            Some(age) if age <= TRUSTED_FOR => Ok(series),
            _ => Err(bad(
                "the bucket trusts what it knows for longer than a minute, and the manifest of series changes; set its consistency to revalidate=1s",
            )),
        }
    }

    /// Returns the bucket. Makes it if buckets are folders of the data folder, and it does not exist.
    pub(super) fn open(&self, engine: &Engine) -> Result<Bucket, Failure> {
        if let Some(bucket) = engine.bucket(&self.bucket) {
            return Ok(bucket);
        }
        let made = engine.create_bucket(&self.bucket);
        made.map_err(|error| Failure::failed(format!("--series-bucket {self}: {error}")))
    }

    /// The store of the database `name`.
    pub(super) fn store(&self, bucket: Bucket, name: &str) -> Arc<dyn ObjectStore> {
        Arc::new(PrefixStore::new(bucket, self.folder(name)))
    }

    /// The folder of the database `name` in the bucket.
    pub(super) fn folder(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// The settings of the bucket as if the database `name` were all of it; `root` is the folder of
    /// buckets.
    pub(super) fn settings_of(
        &self,
        name: &str,
        buckets: &[BucketSettings],
        root: &std::path::Path,
    ) -> BucketSettings {
        let served = buckets.iter().find(|served| served.name == self.bucket);
        let in_root =
            || BucketSettings::new(&self.bucket, OriginUrl::File(root.join(&self.bucket)));
        let mut settings = served.cloned().unwrap_or_else(in_root);
        settings.url = settings.url.below(&self.folder(name));
        settings
    }
}
