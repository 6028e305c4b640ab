//! Stores that a verb reaches: the only place that builds their clients. Requests about objects and all retries are the
//! engine's.

mod bucket_request;
mod local;
mod own;
mod plain_names;
mod remote;
mod signer;

use std::collections::HashMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bywash::origin::Origin;
use bywash::origin::signed::{SignedStore, SignedTarget};
use bywash::upload::journal::{Header, Journal};
use bywash::{Bucket, Consistency, ContentDigest, Engine, OriginUrl};
use object_store::PutMode;
use object_store::path::Path;
use parking_lot::Mutex;

use crate::address::Address;
use crate::failure::{Failure, Kind};
use crate::retry;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::serve::gcs::EMULATOR_HOST;
use crate::transfer::place::Places;
use crate::url::Url;

pub(crate) use own::signed_address;
pub(crate) use remote::{PROFILE_ENDPOINT, Remote, ambient_endpoint};

/// Ceiling of the engine's memory: the parts of all copies in flight, and the share that is kept
/// for uploads. Only data in flight takes memory, for nothing is cached.
const MEMORY_BYTES: u64 = 512 << 20;
/// Chunks or parts that fit the memory. Chunks of the largest objects are longer than usual.
const CHUNKS_IN_MEMORY: u64 = 8;
/// Default chunk of an upload.
const CHUNK_BYTES: usize = 8 << 20;
/// Folder of the journal in the data folder.
const JOURNAL: &str = "uploads";

/// Opens the journal of a data folder.
pub(crate) fn journal(data_dir: &FsPath) -> Journal {
    Journal::at(data_dir.join(JOURNAL))
}

/// Buckets of one engine, each mounted once. No object stays in memory: reads bypass the cache.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) remote: Remote,
    data_dir: PathBuf,
    deadline: Duration,
    engine: OnceLock<Engine>,
    /// Ceiling of the engine's memory.
    memory: Mutex<u64>,
    /// Not by the displayed address, which omits secrets.
    buckets: Mutex<HashMap<(OriginUrl, Option<url::Url>), Bucket>>,
    /// Buckets that are read over the socket of this user's server where possible.
    readers: Mutex<HashMap<OriginUrl, Bucket>>,
    places: OnceLock<Places>,
}

/// An object to upload.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) bucket: Bucket,
    pub(crate) path: Path,
    /// Address as the user wrote it.
    pub(crate) url: String,
    /// The origin's location, if the address does not contain it: the root folder, or the S3 endpoint.
    pub(crate) endpoint: Option<String>,
    /// Bytes of a chunk.
    pub(crate) chunk: u64,
    /// Condition on the existing object.
    pub(crate) mode: PutMode,
}

impl Endpoint {
    /// For verbs that copy. `data_dir`: location of the upload journal.
    pub(crate) fn new(remote: &Remote, data_dir: &FsPath) -> Self {
        Self {
            remote: remote.clone(),
            data_dir: data_dir.to_owned(),
            deadline: retry::COPY_DEADLINE,
            engine: OnceLock::new(),
            memory: Mutex::new(MEMORY_BYTES),
            buckets: Mutex::default(),
            readers: Mutex::default(),
            places: OnceLock::new(),
        }
    }

    /// For verbs that look or delete: they give up sooner, and write no journal.
    pub(crate) fn with_short_deadline(remote: &Remote) -> Self {
        Self {
            deadline: retry::SHORT_DEADLINE,
            ..Self::new(remote, DEFAULT_DATA_DIR.as_ref())
        }
    }

    /// The data folder, with the state of unfinished copies.
    pub(crate) fn data_dir(&self) -> &FsPath {
        &self.data_dir
    }

    /// Returns how places are compared.
    pub(crate) fn places(&self) -> &Places {
        self.places.get_or_init(|| {
            let s3 = self.remote.endpoint().map(|url| url.to_string());
            let gcs = std::env::var(EMULATOR_HOST).ok();
            Places::new(&self.data_dir, s3.as_deref(), gcs.as_deref())
        })
    }

    /// Returns the bucket of an address. Sends no request.
    pub(crate) fn of(&self, address: &Address) -> Result<Bucket, Failure> {
        self.bucket(&address.origin()?)
    }

    /// Returns the bucket of an address for reads and listings alone, which go over the socket of this user's server if that is the
    /// endpoint. Sends no request.
    pub(crate) fn reader(&self, address: &Address) -> Result<Bucket, Failure> {
        let url = address.origin()?;
        let Some(name) = self.remote.local_bucket(&url) else {
            return self.bucket(&url);
        };
        if let Some(bucket) = self.readers.lock().get(&url) {
            return Ok(bucket.clone());
        }
        let origin = local::origin(&self.remote, name, self.remote.open(&url)?);
        let bucket = self.mount_origin(&url, origin)?;
        Ok(self.readers.lock().entry(url).or_insert(bucket).clone())
    }

    /// Returns the bucket over an origin. Sends no request.
    pub(crate) fn bucket(&self, origin: &OriginUrl) -> Result<Bucket, Failure> {
        self.mount(origin, &self.remote)
    }

    /// Returns an object to upload by its signed URLs, in chunks of about `chunk` bytes. `length`:
    /// its bytes, if known. Sends no request.
    pub(crate) fn signed_target(
        &self,
        signed: &SignedTarget,
        chunk: u64,
        length: Option<u64>,
        mode: PutMode,
    ) -> Result<Target, Failure> {
        let store = SignedStore::open(signed)
            .map_err(|error| Failure::store(format!("cannot write {signed}"), &error))?;
        // As long as the signed parts must be.
        let chunk = match (signed, length) {
            (SignedTarget::Parts(urls), Some(length)) => {
                chunk.max(length.div_ceil(urls.parts.len() as u64))
            }
            _ => chunk,
        };
        self.make_room(chunk)?;
        Ok(Target {
            bucket: self.mount_signed(store)?,
            path: signed.object(),
            url: signed.to_string(),
            endpoint: None,
            chunk,
            mode,
        })
    }

    fn mount_signed(&self, store: SignedStore) -> Result<Bucket, Failure> {
        let name = format!("signed-{:016x}", rand::random::<u64>());
        let consistency = Consistency::Revalidate(Duration::ZERO);
        let mounted = self.engine()?.mount(&name, Arc::new(store), consistency);
        mounted.map_err(|error| Failure::failed(format!("cannot open a signed address: {error}")))
    }

    fn mount(&self, url: &OriginUrl, remote: &Remote) -> Result<Bucket, Failure> {
        let key = (url.clone(), remote.endpoint());
        if let Some(bucket) = self.buckets.lock().get(&key) {
            return Ok(bucket.clone());
        }
        let bucket = self.mount_origin(url, remote.open(url)?)?;
        Ok(self.buckets.lock().entry(key).or_insert(bucket).clone())
    }

    fn mount_origin(&self, url: &OriginUrl, origin: Arc<dyn Origin>) -> Result<Bucket, Failure> {
        // Buckets of an engine need unique names, which are never shown.
        let name = format!("origin-{:016x}", rand::random::<u64>());
        // Each read sees the current version: `mv` compares it.
        let consistency = Consistency::Revalidate(Duration::ZERO);
        let mounted = self.engine()?.mount(&name, origin, consistency);
        mounted.map_err(|error| Failure::failed(format!("cannot open {url}: {error}")))
    }

    /// Returns the engine of the buckets.
    pub(crate) fn engine(&self) -> Result<&Engine, Failure> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::builder()
            .memory(MEMORY_BYTES)
            .chunk_size(CHUNK_BYTES)
            .journal(journal(&self.data_dir).folder())
            .retry(retry::policy(self.deadline))
            .verify(self.remote.verify)
            .build()
            .map_err(|error| Failure::failed(format!("cannot start the engine: {error}")))?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// Requests the digest of an object's content. `None` if its store keeps none or states it in the responses to
    /// reads, or if the object no longer is the version of this ETag.
    pub(crate) async fn content_digest(
        &self,
        address: &Address,
        e_tag: Option<&str>,
    ) -> Result<Option<ContentDigest>, Failure> {
        let origin = self.remote.open(&address.origin()?)?;
        let what = || format!("cannot read the checksum of {address}");
        let response = origin.content_digest(&address.object()?).await;
        let digest = match response.map_err(|error| Failure::store(what(), &error)) {
            // A user allowed to read an object need not be allowed to read its checksum.
            Err(failure) if failure.kind == Kind::Denied => {
                tracing::warn!("{}", failure.message);
                return Ok(None);
            }
            digest => digest?,
        };
        let same = digest.filter(|(version, _)| Some(version.as_str()) == e_tag);
        Ok(same.map(|(_, digest)| digest))
    }

    /// Returns an object to upload in chunks of about `chunk` bytes.
    pub(crate) fn target(&self, url: &Url, chunk: u64, mode: PutMode) -> Result<Target, Failure> {
        let (origin, path) = url.split()?;
        let endpoint = match &origin {
            OriginUrl::File(_) => Some(origin.to_string()),
            OriginUrl::S3 { .. } => self.remote.endpoint().map(|url| url.to_string()),
            _ => None,
        };
        self.make_room(chunk)?;
        Ok(Target {
            bucket: self.bucket(&origin)?,
            path,
            url: url.to_string(),
            endpoint,
            chunk,
            mode,
        })
    }

    /// Raises the ceiling of the memory for parts or chunks of this length, if they need more.
    pub(crate) fn make_room(&self, chunk: u64) -> Result<(), Failure> {
        let needed = chunk.saturating_mul(CHUNKS_IN_MEMORY);
        let mut memory = self.memory.lock();
        if needed > *memory {
            let raised = self.engine()?.set_memory(needed);
            raised.map_err(|error| {
                Failure::failed(format!("cannot raise the memory limit: {error}"))
            })?;
            *memory = needed;
        }
        Ok(())
    }

    /// Returns the bucket of a journaled upload. The S3 endpoint defaults to the recorded one.
    pub(crate) fn of_upload(&self, header: &Header) -> Result<Bucket, Failure> {
        if let Some(store) = SignedStore::recorded(&header.session) {
            let failed = |error| Failure::store(format!("cannot write {}", header.url), &error);
            self.make_room(header.chunk)?;
            return self.mount_signed(store.map_err(failed)?);
        }
        let url = Url::destination(&header.url);
        let url = url.map_err(|error| Failure::failed(format!("{}: {error}", header.url)))?;
        let origin = match (&url, &header.endpoint) {
            (Url::Folder(_), Some(root)) => {
                let root = root.strip_prefix("file://").unwrap_or(root);
                OriginUrl::File(PathBuf::from(root))
            }
            _ => url.split()?.0,
        };
        self.make_room(header.chunk)?;
        let recorded = || header.endpoint.as_deref()?.parse().ok();
        let endpoint = self.remote.endpoint().or_else(recorded);
        self.mount(&origin, &Remote::at(endpoint))
    }
}

#[cfg(test)]
mod tests {
    use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};

    use super::*;
    use crate::transfer::object::Object;
    use crate::transfer::part::part_bytes;

    /// As large as an object of S3 can be.
    const LARGEST: u64 = 5 << 40;

    struct Largest;

    impl Protocol for Largest {
        fn respond(&self, _: &HttpRequest) -> HttpResponse {
            let found = HttpResponse::status(200).with("etag", "\"tag\"");
            found.with("content-length", &LARGEST.to_string())
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memory_has_room_for_parts_of_the_largest_object() {
        let store = Server::start(Arc::new(Largest)).await.unwrap();
        let data = tempfile::tempdir().unwrap();
        let remote = Remote::at(Some(store.url().parse().unwrap()));
        let endpoint = Endpoint::new(&remote, data.path());
        let address = "s3://data/largest".parse().unwrap();
        let object = Object::open(&address, &endpoint).await.unwrap();
        assert_eq!(object.meta.size, LARGEST);
        assert!(*endpoint.memory.lock() >= CHUNKS_IN_MEMORY * part_bytes(LARGEST));
    }
}
