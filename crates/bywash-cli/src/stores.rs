//! The stores that a verb uses, each opened once.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use bywash::{Bucket, Engine, OriginUrl};
use object_store::{ObjectStore, PutMode};
use parking_lot::Mutex;

use crate::address::{Address, Scheme};
use crate::failure::{Failure, Kind};
use crate::location::Remote;
use crate::source::PART_MIN_BYTES;
use crate::target::{self, ObjectUrl, Target};

/// Open stores, and how to reach others.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) remote: Remote,
    data_dir: PathBuf,
    opened: Mutex<Opened>,
}

#[derive(Debug, Default)]
struct Opened {
    /// By bucket.
    clients: BTreeMap<String, Arc<dyn ObjectStore>>,
    /// By chunk size, which is a setting of the engine.
    engines: BTreeMap<u64, Engine>,
    /// By chunk size and origin. Not by the displayed address, which omits secrets.
    buckets: HashMap<(u64, OriginUrl), Bucket>,
}

impl Stores {
    /// `data_dir`: location of the upload journal.
    pub(crate) fn new(remote: &Remote, data_dir: &FsPath) -> Self {
        Self {
            remote: remote.clone(),
            data_dir: data_dir.to_owned(),
            opened: Mutex::default(),
        }
    }

    /// Returns the store for an address, to read, list and delete. Sends no request.
    ///
    /// S3 uses its own client, which retries; other stores use the engine.
    pub(crate) fn of(&self, address: &Address) -> Result<Arc<dyn ObjectStore>, Failure> {
        if address.scheme != Scheme::S3 {
            let bucket = self.bucket(&address.origin()?, PART_MIN_BYTES)?;
            return Ok(Arc::new(bucket));
        }
        let bucket = &address.bucket;
        if let Some(client) = self.opened.lock().clients.get(bucket) {
            return Ok(Arc::clone(client));
        }
        let client: Arc<dyn ObjectStore> = self.remote.bucket(bucket)?;
        let mut opened = self.opened.lock();
        let client = opened.clients.entry(bucket.clone()).or_insert(client);
        Ok(Arc::clone(client))
    }

    /// The data folder, with the state of unfinished copies.
    pub(crate) fn data_dir(&self) -> &FsPath {
        &self.data_dir
    }

    /// Returns the stored CRC32C of an object, if its store has one and the object still is the version of this ETag.
    pub(crate) async fn crc32c(
        &self,
        address: &Address,
        e_tag: Option<&str>,
    ) -> Result<Option<u32>, Failure> {
        let origin = target::open(&address.origin()?, &self.remote)?;
        let what = || format!("cannot read the checksum of {address}");
        let stored = origin.stat(&address.object()?).await;
        let stored = match stored.map_err(|error| Failure::store(what(), &error)) {
            // A user who may read an object need not be allowed to read its checksum.
            Err(failure) if failure.kind == Kind::Denied => {
                tracing::warn!("{}", failure.message);
                return Ok(None);
            }
            stored => stored?,
        };
        let same = stored.filter(|stored| stored.e_tag.as_deref() == e_tag);
        Ok(same.and_then(|stored| stored.crc32c))
    }

    /// Returns an object to upload in chunks of about `chunk` bytes.
    pub(crate) fn target(
        &self,
        url: &ObjectUrl,
        chunk: u64,
        mode: PutMode,
    ) -> Result<Target, Failure> {
        let (origin, path) = url.split()?;
        let endpoint = match &origin {
            OriginUrl::File(_) => Some(origin.to_string()),
            OriginUrl::S3 { .. } => self.remote.endpoint().map(|url| url.to_string()),
            _ => None,
        };
        Ok(Target {
            bucket: self.bucket(&origin, chunk)?,
            path,
            url: url.to_string(),
            endpoint,
            mode,
        })
    }

    /// Mounts an origin in an engine that uploads in such chunks.
    pub(crate) fn bucket(&self, origin: &OriginUrl, chunk: u64) -> Result<Bucket, Failure> {
        let key = (chunk, origin.clone());
        if let Some(bucket) = self.opened.lock().buckets.get(&key) {
            return Ok(bucket.clone());
        }
        let engine = self.engine(chunk)?;
        let bucket = target::mount(&engine, origin, &self.remote)?;
        Ok(self
            .opened
            .lock()
            .buckets
            .entry(key)
            .or_insert(bucket)
            .clone())
    }

    fn engine(&self, chunk: u64) -> Result<Engine, Failure> {
        if let Some(engine) = self.opened.lock().engines.get(&chunk) {
            return Ok(engine.clone());
        }
        let engine = target::engine(&self.data_dir, chunk)?;
        let mut opened = self.opened.lock();
        Ok(opened.engines.entry(chunk).or_insert(engine).clone())
    }
}
