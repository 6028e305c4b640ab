//! One version of an object, read part by part.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use bywash::{Bucket, ContentDigest, Download, DownloadOptions, EngineError, Segments, Verify};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetRange, ObjectMeta, ObjectStore};

use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::transfer::part::{PART_MIN_BYTES, part_bytes};
use crate::transfer::version::{ObjectVersion, Version};

/// An object at a known version. All parts are read from that version, past the cache.
#[derive(Clone)]
pub(crate) struct Object {
    /// Name as the user wrote it.
    name: String,
    bucket: Bucket,
    path: Path,
    pub(crate) meta: ObjectMeta,
    /// Content headers and user metadata.
    pub(crate) attributes: Attributes,
    /// Digest that the store states, if reads are compared with it.
    pub(crate) digest: Option<ContentDigest>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.name)
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

impl Object {
    /// Looks up the current version.
    pub(crate) async fn open(address: &Address, endpoint: &Endpoint) -> Result<Self, Failure> {
        let (path, bucket) = (address.object()?, endpoint.reader(address)?);
        let mut object = Self::at(&address.to_string(), bucket, path).await?;
        if endpoint.remote.verify == Verify::Off {
            object.digest = None;
        }
        endpoint.make_room(part_bytes(object.meta.size))?;
        Ok(object)
    }

    /// Looks up the object at a path of a bucket; `name` is the user's spelling.
    pub(crate) async fn at(name: &str, bucket: Bucket, path: Path) -> Result<Self, Failure> {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = bucket.get_opts(&path, head).await;
        let found = found.map_err(|error| Failure::store(format!("cannot read {name}"), &error))?;
        Ok(Self {
            name: name.to_owned(),
            bucket,
            path,
            digest: found.extensions.get().copied(),
            meta: found.meta,
            attributes: found.attributes,
        })
    }

    /// Reads an object by one request. `None` if it is empty or longer than a part: the length is known from a listing only.
    pub(crate) async fn read_small(
        address: &Address,
        endpoint: &Endpoint,
    ) -> Result<Option<(Self, Segments)>, Failure> {
        let (path, bucket) = (address.object()?, endpoint.reader(address)?);
        let failed = |error| Failure::store(format!("cannot read {address}"), &error);
        let begun = match download(&bucket, &path, 0..PART_MIN_BYTES).await {
            Err(error) if is_empty(&error) => return Ok(None),
            begun => begun.map_err(failed)?,
        };
        let (meta, attributes) = (begun.meta().clone(), begun.attributes().clone());
        if meta.size > PART_MIN_BYTES {
            return Ok(None);
        }
        let bytes = begun.finish().await.map_err(failed)?;
        let object = Self {
            name: address.to_string(),
            bucket,
            path,
            meta,
            attributes,
            // Compared by the engine.
            digest: None,
        };
        Ok(Some((object, bytes)))
    }

    /// The version, to find it again.
    pub(crate) fn version(&self) -> Version {
        Version::Object(ObjectVersion::from(&self.meta))
    }

    /// Whether the version has an ETag that promises equal bytes.
    pub(crate) fn has_strong_e_tag(&self) -> bool {
        let tag = self.meta.e_tag.as_ref();
        tag.is_some_and(|tag| !tag.starts_with("W/"))
    }

    /// Whether several requests can be bound to this version: by its ETag, or by its date. Stores without dates report the
    /// epoch.
    pub(crate) fn has_parts(&self) -> bool {
        self.has_strong_e_tag() || self.meta.last_modified.timestamp() > 0
    }

    /// Reads a range of the known version. Fails if the object was replaced.
    pub(crate) async fn part(&self, range: Range<u64>) -> Result<Segments, Failure> {
        let failed = |error| Failure::store(format!("cannot read {}", self.name), &error);
        let begun = download(&self.bucket, &self.path, range).await;
        let begun = begun.map_err(failed)?;
        self.check_same(begun.meta())?;
        begun.finish().await.map_err(failed)
    }

    fn check_same(&self, now: &ObjectMeta) -> Result<(), Failure> {
        let then = &self.meta;
        let same = if self.has_strong_e_tag() {
            now.e_tag == then.e_tag
        } else {
            now.last_modified == then.last_modified
        };
        if same && now.size == then.size {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "cannot read {}: it changed while it was read; try again",
            self.name
        )))
    }

    /// Reads a range in order, by one request.
    pub(crate) async fn stream(
        &self,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, Failure> {
        let options = GetOptions {
            range: (range != (0..self.meta.size)).then_some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let found = self.bucket.get_opts(&self.path, options).await;
        let found =
            found.map_err(|error| Failure::store(format!("cannot read {}", self.name), &error))?;
        self.check_same(&found.meta)?;
        Ok(found.into_stream())
    }
}

fn is_empty(error: &object_store::Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::RangeNotSatisfiable { length: 0, .. })
    )
}

/// Begins a download of a range by one request.
async fn download(
    bucket: &Bucket,
    path: &Path,
    range: Range<u64>,
) -> object_store::Result<Download> {
    let options = DownloadOptions {
        part_size: range.end - range.start,
        range: Some(GetRange::Bounded(range)),
        parallel: 1,
        digest: None,
        cached: false,
    };
    bucket.download(path, options).await
}
