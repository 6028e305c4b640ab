//! One copy between any two locations.
//!
//! A [`Source`] reads parts ahead, concurrently where possible, and the sink stores them. Small files are written to
//! a temporary file and renamed, large objects downloaded by [`crate::transfer::download`], and objects uploaded by the
//! engine's [`Upload`](bywash::upload::Upload). The destination appears only once it is complete.

use std::sync::Arc;
use std::time::Instant;

use bywash::ContentDigest;
use indicatif::ProgressBar;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::transfer::Pair;
use crate::transfer::claims::Claims;
use crate::transfer::download::{self, Download};
use crate::transfer::file::{self, FileTarget};
use crate::transfer::object::Object;
use crate::transfer::removal::{Since, remove_file, remove_object};
use crate::transfer::source::Source;
use crate::transfer::upload;
use crate::transfer::version::{ObjectVersion, Version};
use crate::url::Url;

/// S3's size limit for a server-side copy by one request.
const SERVER_COPY_MAX_BYTES: u64 = 5 << 30;
/// Max memory of concurrent copies in MiB: parts read ahead, and as much again in the sinks.
const IN_FLIGHT_MIB: usize = 256;
/// Max memory of one copy.
const COPY_MIB: u64 = 64;

/// Runs copies concurrently, with common stores and conditions.
#[derive(Debug)]
pub(crate) struct Copier {
    pub(crate) endpoint: Endpoint,
    /// Condition on the existing destination.
    mode: PutMode,
    /// SHA-256 that the source, an object, must have.
    sha256: Option<ContentDigest>,
    output: Output,
    room: Semaphore,
    /// When the command began to copy.
    pub(crate) start: Instant,
    /// Destinations so far, if there are several sources.
    claims: Option<Claims>,
}

/// Properties of a source from a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) bytes: u64,
    /// Version of an object.
    pub(crate) version: Option<ObjectVersion>,
}

impl From<ObjectMeta> for Listed {
    fn from(meta: ObjectMeta) -> Self {
        Self {
            bytes: meta.size,
            version: Some(ObjectVersion::from(&meta)),
        }
    }
}

/// Result of a successful copy.
#[derive(Debug, Serialize)]
pub(crate) struct Copied {
    pub(crate) source: String,
    pub(crate) destination: String,
    /// `None` for a server-side copy.
    pub(crate) bytes: Option<u64>,
    /// Part of these bytes that an interrupted copy had stored.
    #[serde(skip_serializing_if = "is_none_or_zero")]
    resumed_bytes: Option<u64>,
    seconds: f64,
    e_tag: Option<String>,
    /// Version of the source that was copied, if it has versions.
    #[serde(skip)]
    pub(crate) version: Option<Version>,
}

#[allow(clippy::ref_option, reason = "the signature that serde asks for")]
fn is_none_or_zero(bytes: &Option<u64>) -> bool {
    bytes.unwrap_or(0) == 0
}

impl Copied {
    /// Result of moving a file by a rename.
    pub(crate) fn renamed(source: &Url, destination: &Url) -> Self {
        Self {
            source: source.to_string(),
            destination: destination.to_string(),
            bytes: None,
            resumed_bytes: None,
            seconds: 0.0,
            e_tag: None,
            version: None,
        }
    }
}

/// Result of a sink.
#[derive(Debug, Default)]
struct Stored {
    bytes: Option<u64>,
    resumed_bytes: Option<u64>,
    e_tag: Option<String>,
    version: Option<Version>,
}

impl Copier {
    pub(crate) fn new(endpoint: Endpoint, mode: PutMode, output: Output) -> Self {
        Self {
            endpoint,
            mode,
            sha256: None,
            output,
            room: Semaphore::new(IN_FLIGHT_MIB),
            start: Instant::now(),
            claims: None,
        }
    }

    /// Compares the source with this digest.
    pub(crate) fn comparing(self, sha256: Option<ContentDigest>) -> Self {
        Self { sha256, ..self }
    }

    /// Writes each destination once, if the command has several sources.
    pub(crate) fn of_sources(self, sources: usize) -> Self {
        let claims = (sources > 1).then(Claims::default);
        Self { claims, ..self }
    }

    pub(crate) fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }

    /// Whether an existing destination may prevent the copy.
    pub(crate) fn keeps_existing(&self) -> bool {
        self.mode != PutMode::Overwrite
    }

    /// Copies one object or file after waiting for memory. Reports each part to `bar`.
    pub(crate) async fn copy(&self, pair: &Pair, bar: &ProgressBar) -> Result<Copied, Failure> {
        let Pair {
            source,
            destination,
            ..
        } = pair;
        let listed = pair.listed.as_ref();
        let places = self.endpoint.places();
        if pair.signed.is_none() && places.are_one(source, destination) {
            return Err(Failure::usage(format!(
                "{source} would be copied onto itself"
            )));
        }
        let mib = listed.map_or(COPY_MIB, |listed| listed.bytes.div_ceil(1 << 20));
        // At most COPY_MIB, so the cast is lossless.
        let permits = mib.clamp(1, COPY_MIB) as u32;
        let _room = or_interrupt(async {
            let room = self.room.acquire_many(permits).await;
            room.map_err(|error| Failure::failed(format!("cannot copy {source}: {error}")))
        })
        .await?;
        let start = Instant::now();
        let by_the_store = match &pair.signed {
            Some(_) => None,
            None => self.server_copy(source, destination, listed).await?,
        };
        let stored = match by_the_store {
            Some(stored) => {
                bar.inc(listed.map_or(0, |listed| listed.bytes));
                stored
            }
            None => Box::pin(self.carry(pair, bar)).await?,
        };
        Ok(Copied {
            source: source.to_string(),
            destination: destination.to_string(),
            bytes: stored.bytes,
            resumed_bytes: stored.resumed_bytes,
            seconds: start.elapsed().as_secs_f64(),
            e_tag: stored.e_tag,
            version: stored.version,
        })
    }

    /// Copies within a bucket at the store. `None` if the copy does not qualify.
    async fn server_copy(
        &self,
        source: &Url,
        destination: &Url,
        listed: Option<&Listed>,
    ) -> Result<Option<Stored>, Failure> {
        let (Url::Object(from), Url::Object(to)) = (source, destination) else {
            return Ok(None);
        };
        let same_store = (from.scheme, &from.bucket) == (to.scheme, &to.bucket);
        if !same_store || self.mode != PutMode::Overwrite || self.sha256.is_some() {
            return Ok(None);
        }
        let store = self.endpoint.of(from)?;
        let (from, to) = (from.object()?, to.object()?);
        let failed =
            |error| Failure::store(format!("cannot copy {source} to {destination}"), &error);
        or_interrupt(async {
            let Listed { bytes, version } = match listed {
                Some(listed) => listed.clone(),
                None => store.head(&from).await.map_err(failed)?.into(),
            };
            if bytes > SERVER_COPY_MAX_BYTES {
                return Ok(None);
            }
            store.copy(&from, &to).await.map_err(failed)?;
            Ok(Some(Stored {
                version: version.map(Version::Object),
                ..Stored::default()
            }))
        })
        .await
    }

    /// Copies through this process.
    async fn carry(&self, pair: &Pair, bar: &ProgressBar) -> Result<Stored, Failure> {
        let (source, destination) = (&pair.source, &pair.destination);
        let listed = pair.listed.as_ref();
        let mut opened = match (source, destination) {
            (Url::Object(address), Url::File(path))
                if listed
                    .is_none_or(|listed| listed.bytes > crate::transfer::part::PART_MIN_BYTES) =>
            {
                let mut object = or_interrupt(Object::open(address, &self.endpoint)).await?;
                object.digest = self.sha256.or(object.digest);
                if listed.is_none() {
                    bar.inc_length(object.meta.size);
                }
                if download::can_resume(&object)
                    && let Some(target) =
                        FileTarget::prepare(path, &self.mode, pair.tree.as_deref())?
                    && let Some(states) = download::states(self.endpoint.data_dir())
                {
                    let download = Download {
                        object,
                        address,
                        target: Arc::new(target),
                        mode: &self.mode,
                        states,
                        endpoint: &self.endpoint,
                    };
                    return self.download(download, bar).await;
                }
                Source::of_object(object, &source.to_string(), None)?
            }
            _ => {
                let bytes = listed.map(|listed| listed.bytes);
                let opened = Box::pin(or_interrupt(Source::open(
                    source,
                    None,
                    bytes,
                    &self.endpoint,
                )))
                .await?;
                if listed.is_none() {
                    bar.inc_length(opened.bytes.unwrap_or(0));
                }
                match self.sha256 {
                    Some(sha256) => opened.compared(source.to_string(), sha256),
                    None => opened,
                }
            }
        };
        let version = opened.version.clone();
        let stored = self.store(&mut opened, pair, bar).await?;
        Ok(Stored { version, ..stored })
    }

    async fn download(&self, download: Download<'_>, bar: &ProgressBar) -> Result<Stored, Failure> {
        let version = Some(download.object.version());
        let done = or_interrupt(download.run(bar, self.output)).await?;
        Ok(Stored {
            bytes: Some(done.bytes),
            resumed_bytes: Some(done.resumed_bytes),
            e_tag: None,
            version,
        })
    }

    async fn store(
        &self,
        opened: &mut Source,
        pair: &Pair,
        bar: &ProgressBar,
    ) -> Result<Stored, Failure> {
        let Pair {
            destination,
            tree,
            signed,
            ..
        } = pair;
        let plain = |bytes| Stored {
            bytes: Some(bytes),
            ..Stored::default()
        };
        if let Some(signed) = signed {
            let (mode, bytes) = (self.mode.clone(), opened.bytes);
            let target = self
                .endpoint
                .signed_target(signed, opened.part_bytes, bytes, mode)?;
            let result = upload::new_object(opened, &target, bar).await?;
            return Ok(Stored {
                e_tag: result.put.e_tag,
                ..plain(result.length)
            });
        }
        match destination {
            Url::File(path) => {
                let written = file::write(opened, (path, tree.as_deref()), &self.mode, bar);
                Ok(plain(or_interrupt(written).await?))
            }
            Url::Stdio => {
                let written = file::to_stdout(opened, |bytes| bar.inc(bytes));
                Ok(plain(or_interrupt(written).await?))
            }
            url @ (Url::Folder(_) | Url::Object(_)) => {
                // Parts of the source's length are uploaded without a copy.
                let target = self
                    .endpoint
                    .target(url, opened.part_bytes, self.mode.clone())?;
                let result = upload::new_object(opened, &target, bar).await?;
                Ok(Stored {
                    e_tag: result.put.e_tag,
                    ..plain(result.length)
                })
            }
        }
    }

    /// Deletes the source of a move, if it still is the version that was copied.
    pub(crate) async fn remove(
        &self,
        source: &Url,
        copied: Option<&Version>,
    ) -> Result<(), Failure> {
        match (source, copied) {
            (Url::File(path) | Url::Folder(path), Some(Version::File(version))) => {
                let (path, version) = (path.clone(), version.clone());
                let remove = move || remove_file(&path, &version, Since::Copied);
                let removed = tokio::task::spawn_blocking(remove);
                removed
                    .await
                    .map_err(|error| Failure::failed(format!("cannot delete {source}: {error}")))?
            }
            (Url::Object(address), Some(Version::Object(version))) => {
                let (store, path) = (self.endpoint.of(address)?, address.object()?);
                let what = source.to_string();
                or_interrupt(remove_object(&store, &path, &what, version)).await
            }
            _ => Err(Failure::failed(format!(
                "{source} was copied but not deleted: it has no versions to compare"
            ))),
        }
    }
}
