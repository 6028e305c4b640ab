//! Stores that a verb reaches, and their clients. Requests about objects and all retries are the engine's.

use std::collections::HashMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bywash::origin::s3::{S3Store, builder_from_env, endpoint_of_profile};
use bywash::origin::{Connector, Origin};
use bywash::upload::journal::{Header, Journal};
use bywash::{Bucket, Consistency, Engine, OriginUrl, RetryPolicy};
use object_store::PutMode;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use parking_lot::Mutex;

use crate::address::Address;
use crate::failure::{Failure, Kind};
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::url::Url;

/// Max time of a request for credentials.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(60);
/// A copy fails after this time without progress. It can go on later.
const COPY_DEADLINE: Duration = Duration::from_secs(30);
/// A verb that only looks or deletes fails after this time without progress: a person waits.
const SHORT_DEADLINE: Duration = Duration::from_secs(5);
/// Max silence of a request; several fit the deadline of a copy.
const STALL: Duration = Duration::from_secs(10);
/// Ceiling of the engine's memory: the parts of all copies in flight, and the share that is kept for uploads. Only what
/// is in flight takes memory, for nothing is cached.
const MEMORY_BYTES: u64 = 512 << 20;
/// Chunks that fit the memory. Those of the largest objects are longer than usual.
const CHUNKS_IN_MEMORY: u64 = 8;
/// Default chunk of an upload.
const CHUNK_BYTES: usize = 8 << 20;
/// Folder of the journal in the data folder.
const JOURNAL: &str = "uploads";

/// How buckets are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Remote {
    /// The S3 endpoint, as http://127.0.0.1:8420 [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, then AWS itself]
    ///
    /// Credentials and region come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    /// and AWS_REGION, then from the profile of ~/.aws that AWS_PROFILE names, then from the instance's metadata. Where there
    /// are none, requests to a loopback endpoint are not signed. gs:// and az:// find theirs as Google's and Azure's clients do.
    #[arg(long, global = true, value_name = "URL")]
    endpoint: Option<url::Url>,
}

impl Remote {
    /// Returns the S3 endpoint: the given one, or that of the environment.
    pub(crate) fn endpoint(&self) -> Option<url::Url> {
        let ambient = || ambient_endpoint().map(|(_, url)| url);
        self.endpoint.clone().or_else(ambient)
    }

    /// Returns credentials, region and endpoint for `bucket`.
    pub(crate) fn builder(&self, bucket: &str) -> Result<AmazonS3Builder, Failure> {
        let builder = builder_from_env();
        let builder = builder.map_err(|error| {
            Failure::new(Kind::Denied, format!("cannot open s3://{bucket}: {error}"))
        })?;
        let mut builder = builder
            .with_bucket_name(bucket)
            .with_http_connector(Connector::with_timeout(CREDENTIALS_TIMEOUT));
        if let Some(endpoint) = self.endpoint() {
            builder = builder
                .with_config(
                    AmazonS3ConfigKey::S3Endpoint,
                    endpoint.as_str().trim_end_matches('/'),
                )
                .with_allow_http(endpoint.scheme() == "http");
            let key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId);
            if is_loopback(&endpoint) && key.is_none() {
                builder = builder.with_skip_signature(true);
            }
        }
        Ok(builder)
    }

    /// Opens an origin. Sends no request.
    fn open(&self, url: &OriginUrl) -> Result<Arc<dyn Origin>, Failure> {
        let failed =
            |error: &object_store::Error| Failure::store(format!("cannot open {url}"), error);
        match url {
            OriginUrl::S3 { bucket, prefix } => {
                let store = S3Store::from_builder(self.builder(bucket)?, bucket, prefix);
                Ok(Arc::new(store.map_err(|error| failed(&error))?))
            }
            url => url.open().map_err(|error| failed(&error)),
        }
    }
}

/// Source of an endpoint in a profile of the AWS command line, for messages.
pub(crate) const PROFILE_ENDPOINT: &str = "endpoint_url of the AWS profile";

/// Returns the S3 endpoint of the environment, with the variable's name, as S3 clients find it; else that of the profile.
pub(crate) fn ambient_endpoint() -> Option<(&'static str, url::Url)> {
    let variable = |name: &'static str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some((name, url::Url::parse(&value).ok()?))
    };
    let profile = || {
        Some((
            PROFILE_ENDPOINT,
            url::Url::parse(&endpoint_of_profile()?).ok()?,
        ))
    };
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .into_iter()
        .find_map(variable)
        .or_else(profile)
}

fn is_loopback(endpoint: &url::Url) -> bool {
    match endpoint.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

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
            deadline: COPY_DEADLINE,
            engine: OnceLock::new(),
            memory: Mutex::new(MEMORY_BYTES),
            buckets: Mutex::default(),
        }
    }

    /// For verbs that look or delete: they give up sooner, and write no journal.
    pub(crate) fn with_short_deadline(remote: &Remote) -> Self {
        Self {
            deadline: SHORT_DEADLINE,
            ..Self::new(remote, DEFAULT_DATA_DIR.as_ref())
        }
    }

    /// Returns the data folder, with the state of unfinished copies.
    pub(crate) fn data_dir(&self) -> &FsPath {
        &self.data_dir
    }

    /// Returns the bucket of an address. Sends no request.
    pub(crate) fn of(&self, address: &Address) -> Result<Bucket, Failure> {
        self.bucket(&address.origin()?)
    }

    /// Returns the bucket over an origin. Sends no request.
    pub(crate) fn bucket(&self, origin: &OriginUrl) -> Result<Bucket, Failure> {
        self.mount(origin, &self.remote)
    }

    fn mount(&self, url: &OriginUrl, remote: &Remote) -> Result<Bucket, Failure> {
        let key = (url.clone(), remote.endpoint());
        if let Some(bucket) = self.buckets.lock().get(&key) {
            return Ok(bucket.clone());
        }
        let origin = remote.open(url)?;
        // Buckets of an engine need unique names, which are never shown.
        let name = format!("origin-{:016x}", rand::random::<u64>());
        // Each read sees the current version: `mv` compares it.
        let consistency = Consistency::Revalidate(Duration::ZERO);
        let mounted = self.engine()?.mount(&name, origin, consistency);
        let bucket =
            mounted.map_err(|error| Failure::failed(format!("cannot open {url}: {error}")))?;
        Ok(self.buckets.lock().entry(key).or_insert(bucket).clone())
    }

    fn engine(&self) -> Result<&Engine, Failure> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::builder()
            .memory(MEMORY_BYTES)
            .chunk_size(CHUNK_BYTES)
            .journal(journal(&self.data_dir).folder())
            .retry(RetryPolicy {
                deadline: self.deadline,
                stall: STALL,
                ..RetryPolicy::default()
            })
            .build()
            .map_err(|error| Failure::failed(format!("cannot start the engine: {error}")))?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// Returns the stored CRC32C of an object, if its store has one and the object still is the version of this ETag.
    pub(crate) async fn crc32c(
        &self,
        address: &Address,
        e_tag: Option<&str>,
    ) -> Result<Option<u32>, Failure> {
        let origin = self.remote.open(&address.origin()?)?;
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

    /// Raises the ceiling of the memory for chunks of this length, if they need more.
    fn make_room(&self, chunk: u64) -> Result<(), Failure> {
        let needed = chunk.saturating_mul(CHUNKS_IN_MEMORY);
        let mut memory = self.memory.lock();
        if needed > *memory {
            let raised = self.engine()?.set_memory(needed);
            raised.map_err(|error| Failure::failed(format!("cannot upload: {error}")))?;
            *memory = needed;
        }
        Ok(())
    }

    /// Returns the bucket of a journaled upload. The S3 endpoint defaults to the recorded one.
    pub(crate) fn of_upload(&self, header: &Header) -> Result<Bucket, Failure> {
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
        self.mount(&origin, &Remote { endpoint })
    }
}
