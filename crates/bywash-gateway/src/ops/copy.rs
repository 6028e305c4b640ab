//! CopyObject and UploadPartCopy.

use std::ops::Range;

use bywash::origin::odd_keys::is_odd;
use bywash::origin::{AttributeRewrite, CLIENT_ETAG, kept_client_etag};
use bywash::{Bucket, CopyMemory, PutStreamOptions, ReadInfo};
use chrono::Utc;
use http::HeaderMap;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetRange, GetResult, ObjectMeta,
    ObjectStore, PutMode, TagSet,
};
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, UploadPartCopyInput,
    UploadPartCopyOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::acl;
use super::checksums::{checksum_type, requested_algorithm};
use super::multipart::part_of_upload;
use super::set_checksum;
use super::write::WriteCondition;
use crate::conditions::Conditions;
use crate::copy_source::CopySource;
use crate::copying::{
    Attempt, Guard, Replaced, is_replaced, is_unmet, lacks_conditions, turn_onto_itself, version_of,
};
use crate::digest::Algorithm;
use crate::encryption;
use crate::errors::{OperationContext, fault, from_store, invalid_argument, slow_down};
use crate::gateway::Gateway;
use crate::keys::stored_path;
use crate::limits::MAX_COPY_ATTEMPTS;
use crate::meta::{
    attributes_of, check_version, e_tag, encode_metadata_for, forget_checksum, joined,
    keep_checksum, keep_e_tag, keep_metageneration, keep_storage_class, kept_checksum,
    refuse_text_for, refuse_unsupported, text, timestamp,
};
use crate::object_parts::ObjectParts;
use crate::passing::{PassedDigests, PassingDigests};
use crate::tags::Tags;
use crate::uploads::Part;

/// Source of a copy, whose conditions hold.
struct Source {
    bucket: Bucket,
    key: String,
    path: Path,
    meta: ObjectMeta,
    attributes: Attributes,
    /// Number of tags that its origin states to keep next to it.
    tags: u32,
}

impl Source {
    async fn find(gateway: &Gateway, headers: &HeaderMap) -> S3Result<Self> {
        let source = CopySource::of(headers)?;
        let CopySource {
            bucket,
            key,
            version,
        } = source.ok_or_else(|| {
            let message = "A copy needs the header x-amz-copy-source.";
            fault(S3ErrorCode::InvalidRequest, message)
        })?;
        let doing = OperationContext::new("copy from", &bucket, &key);
        let handle = gateway.bucket(&bucket)?;
        let path = stored_path(&handle, &key)?;
        check_version(version.as_deref(), &key)?;
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = handle
            .get_opts(&path, options)
            .await
            .map_err(|error| from_store(doing, &error))?;
        Conditions::from_headers(headers, "x-amz-copy-source-").check_source(doing, &found.meta)?;
        let info = found.extensions.get::<ReadInfo>();
        Ok(Self {
            bucket: handle,
            key,
            path,
            tags: info.map_or(0, |info| info.tags),
            meta: found.meta,
            attributes: found.attributes,
        })
    }

    fn doing(&self) -> OperationContext<'_> {
        OperationContext {
            operation: "copy from",
            bucket: self.bucket.name(),
            key: &self.key,
        }
    }

    async fn tags_beside(&self) -> S3Result<Tags> {
        let doing = OperationContext {
            operation: "copy the tags of",
            ..self.doing()
        };
        let tags = Tags::beside(&self.bucket, &self.path, self.tags).await;
        tags.map_err(|error| from_store(doing, &error))
    }

    /// Reads exactly the version that was checked, into the memory of the copy.
    async fn read(
        &self,
        range: Option<Range<u64>>,
        memory: &CopyMemory,
    ) -> Result<GetResult, StoreError> {
        let options = GetOptions {
            if_match: self.meta.e_tag.clone(),
            range: range.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        self.bucket
            .get_for_copy(&self.path, options, memory.reads())
            .await
    }

    /// The ETag that clients compute of its bytes, if it is kept.
    fn client_e_tag(&self) -> Option<&str> {
        self.meta.e_tag.as_deref().and_then(kept_client_etag)
    }

    /// Digests to compute of a copy to `bucket`. Known digests are in its attributes.
    fn digests(
        &self,
        gateway: &Gateway,
        bucket: &Bucket,
        attributes: &mut Attributes,
        algorithm: Option<Algorithm>,
    ) -> PassingDigests {
        let known = self.keep_known_e_tag(bucket, attributes);
        if algorithm.is_some() {
            forget_checksum(attributes);
        }
        PassingDigests::new(!known && gateway.wants_md5(bucket), algorithm)
    }

    /// Gives a copy of its bytes the ETag that clients compute. Returns false if that is not known, or `bucket` keeps none.
    fn keep_known_e_tag(&self, bucket: &Bucket, attributes: &mut Attributes) -> bool {
        let known = self
            .client_e_tag()
            .filter(|_| bucket.takes_late_attributes());
        if let Some(known) = known {
            keep_e_tag(attributes, known.to_owned());
        }
        known.is_some()
    }
}

/// The error of a copy whose source was replaced during every attempt.
fn source_always_replaced(doing: OperationContext<'_>) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    slow_down(format!(
        "{operation} {bucket}/{key}: the source was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again"
    ))
}

/// Attributes of a copy.
struct CopiedAttributes {
    attributes: Attributes,
    /// Tags to send with the write, unless they are the source's.
    tags: TagSet,
    /// Whether its tags are the source's.
    keeps_tags: bool,
    /// Whether attributes and tags are the source's.
    same: bool,
}

fn copied_attributes(
    gateway: &Gateway,
    headers: &HeaderMap,
    source: &Source,
    bucket: &Bucket,
) -> S3Result<CopiedAttributes> {
    let metadata = replaces(headers, "x-amz-metadata-directive")?;
    let tagging = replaces(headers, "x-amz-tagging-directive")?;
    let tags = if tagging {
        Tags::from_headers(headers)?
    } else {
        Tags::kept(&source.attributes)
    };
    let mut attributes = source.attributes.clone();
    // In a store that keeps no ETags of clients, the name is user metadata.
    attributes.remove(&CLIENT_ETAG);
    keep_metageneration(&mut attributes, 1);
    if metadata {
        attributes = attributes_of(headers)?;
        if let Some(checksum) = kept_checksum(&source.attributes) {
            keep_checksum(&mut attributes, &checksum);
        }
        ObjectParts::copy(&source.attributes, &mut attributes);
    }
    if !bucket.takes_late_attributes() {
        // Stores limit their metadata, and have their own lists.
        ObjectParts::remove(&mut attributes);
    }
    let tags = tags.keep(bucket, &mut attributes)?;
    let before = attributes.clone();
    keep_storage_class(headers, bucket, &mut attributes);
    encryption::keep(gateway, bucket, headers, &mut attributes)?;
    // The ACL of the source is not copied.
    let public = acl::public_by_headers(headers)?;
    acl::keep(bucket, public == Some(true), &mut attributes)?;
    let same = !metadata && !tagging && before == attributes;
    refuse_text_for(bucket, &attributes)?;
    encode_metadata_for(bucket, &mut attributes)?;
    Ok(CopiedAttributes {
        same,
        keeps_tags: !tagging,
        tags,
        attributes,
    })
}

/// Whether a directive is REPLACE; the default is COPY.
fn replaces(headers: &HeaderMap, name: &str) -> S3Result<bool> {
    match text(headers, name) {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => {
            let message = format!("Unknown directive: {name} is COPY or REPLACE.");
            Err(invalid_argument(name, other, message))
        }
    }
}

pub(crate) async fn object(
    gateway: &Gateway,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("copy to", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let turn = match CopySource::of(&headers)? {
        Some(CopySource {
            bucket: name, key, ..
        }) => {
            let from = gateway.bucket(&name)?;
            let from_path = stored_path(&from, &key)?;
            turn_onto_itself(&(from, from_path), &(bucket.clone(), path.clone())).await
        }
        None => None,
    };
    let (mut attempts, mut guard) = (0..MAX_COPY_ATTEMPTS, Guard::Condition);
    loop {
        let copying = Copying {
            gateway,
            headers: &headers,
            bucket: &bucket,
            path: &path,
            guard,
            doing,
        };
        match copying.attempt().await? {
            Attempt::Done(()) => break,
            Attempt::NoConditions => guard = Guard::LastLook,
            Attempt::Replaced => {
                if attempts.next().is_none() {
                    return Err(source_always_replaced(doing));
                }
            }
        }
    }
    drop(turn);
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let copied = bucket
        .get_opts(&path, head)
        .await
        .map_err(|error| from_store(doing, &error))?;
    let mut result = CopyObjectResult {
        e_tag: copied.meta.e_tag.as_deref().map(e_tag),
        last_modified: Some(timestamp(copied.meta.last_modified)),
        ..Default::default()
    };
    if let Some(checksum) = kept_checksum(&copied.attributes) {
        result.checksum_type = Some(checksum_type(checksum.kind()));
        set_checksum!(result, checksum);
    }
    let output = CopyObjectOutput {
        copy_object_result: Some(result),
        ..Default::default()
    };
    let mut response = HeaderMap::new();
    encryption::state_kept(&copied.attributes, &mut response);
    Ok(S3Response::with_headers(output, response))
}

/// A CopyObject.
struct Copying<'a> {
    gateway: &'a Gateway,
    headers: &'a HeaderMap,
    bucket: &'a Bucket,
    path: &'a Path,
    /// Of a copy onto itself.
    guard: Guard,
    doing: OperationContext<'a>,
}

impl Copying<'_> {
    /// Copies the current version of the source.
    async fn attempt(&self) -> S3Result<Attempt<()>> {
        let Self {
            gateway,
            headers,
            bucket,
            path,
            doing,
            ..
        } = *self;
        let source = Source::find(gateway, headers).await?;
        let copied = copied_attributes(gateway, headers, &source, bucket)?;
        let algorithm = requested_algorithm(headers)?;
        let within = source.bucket.name() == bucket.name();
        let encrypted = headers.contains_key(encryption::ENCRYPTION);
        let reclassed = headers.contains_key("x-amz-storage-class");
        if within && source.path == *path && copied.same && !reclassed && !encrypted {
            let message = "This copy request is illegal because it is trying to copy an object to itself without \
                           changing its metadata; give x-amz-metadata-directive: REPLACE.";
            return Err(fault(S3ErrorCode::InvalidRequest, message));
        }
        let condition = WriteCondition::find(bucket, path, headers, doing).await?;
        // The origin would copy the version that is current then, which may fail the condition. A copy through this
        // server is pinned to the checked version.
        let conditional = headers
            .keys()
            .any(|name| name.as_str().starts_with("x-amz-copy-source-if-"));
        let plain = matches!(condition.mode, PutMode::Overwrite);
        // The ETag of a file that was put behind our back is not known: its copy gets one from the bytes that pass here.
        let known = !gateway.wants_md5(bucket) || source.client_e_tag().is_some();
        let unhashed = known && algorithm.is_none();
        let onto_itself = bucket.is_same_object(path, &source.bucket, &source.path);
        if onto_itself && plain && unhashed && source.meta.e_tag.is_some() {
            if let Some(attempt) = self.in_place(&source, &copied).await? {
                return Ok(attempt);
            }
        } else if within
            && copied.same
            && !reclassed
            && !conditional
            && plain
            && unhashed
            && copy_by_origin(bucket, &source.path, path, doing).await?
        {
            return Ok(Attempt::Done(()));
        }
        let guard = (onto_itself && plain).then_some(self.guard);
        self.through_here(&source, copied, &condition, algorithm, guard)
            .await
    }

    /// Changes only the attributes, where the store can. `None` if the bytes have to be written
    /// again.
    async fn in_place(
        &self,
        source: &Source,
        copied: &CopiedAttributes,
    ) -> S3Result<Option<Attempt<()>>> {
        let mut attributes = copied.attributes.clone();
        source.keep_known_e_tag(self.bucket, &mut attributes);
        let rewrite = AttributeRewrite {
            version: version_of(&source.meta),
            size: source.meta.size,
            attributes,
            tags: copied.tags.clone(),
        };
        match self.bucket.rewrite_in_place(self.path, &rewrite).await {
            Ok(done) => Ok(done.map(|_| Attempt::Done(()))),
            Err(error) if is_replaced(&error) => Ok(Some(Attempt::Replaced)),
            Err(error) => Err(from_store(self.doing, &error)),
        }
    }

    /// Copies the bytes through this server. `guard`: of a copy onto itself without a condition of the client.
    async fn through_here(
        &self,
        source: &Source,
        copied: CopiedAttributes,
        condition: &WriteCondition,
        algorithm: Option<Algorithm>,
        guard: Option<Guard>,
    ) -> S3Result<Attempt<()>> {
        let Self {
            gateway,
            bucket,
            path,
            doing,
            ..
        } = *self;
        let CopiedAttributes {
            mut attributes,
            mut tags,
            keeps_tags,
            ..
        } = copied;
        // The client of the origin reaches no tags of an odd key, and the origin states their number.
        let has_tags = source.tags > 0 || !is_odd(&source.path);
        if keeps_tags && source.bucket.has_tags() && has_tags {
            tags = source.tags_beside().await?.keep(bucket, &mut attributes)?;
        }
        let memory = bucket.copy_memory(path, source.meta.size, &tags).await;
        let memory = memory.map_err(|error| from_store(doing, &error))?;
        let read = match source.read(None, &memory).await {
            Ok(read) => read,
            Err(error) if is_replaced(&error) => return Ok(Attempt::Replaced),
            Err(error) => return Err(from_store(source.doing(), &error)),
        };
        let length = read.meta.size;
        let digests = source.digests(gateway, bucket, &mut attributes, algorithm);
        let passed = digests.clone();
        let body = digests.of(read.into_stream());
        let (mode, body) = match guard {
            Some(guard) => guard.apply(bucket, path, &source.meta, body),
            None => (condition.mode.clone(), body),
        };
        let options = PutStreamOptions {
            mode,
            attributes,
            tags,
            late_attributes: Some(Box::new(move || late(passed.finish()))),
            length: Some(length),
            memory: Some(memory),
        };
        let replaced = Replaced::default();
        match bucket.put_stream(path, options, replaced.watch(body)).await {
            Ok(_) => Ok(Attempt::Done(())),
            Err(_) if replaced.is_seen() => Ok(Attempt::Replaced),
            Err(error) if guard.is_some() && is_unmet(&error) => Ok(Attempt::Replaced),
            Err(error) if guard == Some(Guard::Condition) && lacks_conditions(&error) => {
                Ok(Attempt::NoConditions)
            }
            Err(error) => Err(condition.error(doing, &error)),
        }
    }
}

/// The attributes of a copy that are known when its bytes have passed.
pub(crate) fn late(passed: PassedDigests) -> Attributes {
    let mut attributes = Attributes::new();
    if let Some(md5) = passed.md5 {
        keep_e_tag(&mut attributes, md5);
    }
    if let Some(checksum) = passed.checksum {
        keep_checksum(&mut attributes, &checksum);
    }
    attributes
}

/// Copies at the origin. Returns false if the origin cannot.
async fn copy_by_origin(
    bucket: &Bucket,
    from: &Path,
    to: &Path,
    doing: OperationContext<'_>,
) -> S3Result<bool> {
    match bucket.copy_opts(from, to, CopyOptions::default()).await {
        Ok(()) => Ok(true),
        Err(StoreError::NotSupported { .. } | StoreError::NotImplemented { .. }) => Ok(false),
        // The source was replaced during the origin's copy: copy its current version through this server.
        Err(StoreError::Precondition { .. }) => Ok(false),
        Err(error) => Err(from_store(doing, &error)),
    }
}

/// Returns the bytes of the source that a part copies: all, or `bytes=FIRST-LAST`, the only form of S3.
fn source_range(headers: &HeaderMap, size: u64) -> S3Result<Option<Range<u64>>> {
    const RANGE: &str = "x-amz-copy-source-range";
    let Some(value) = joined(headers, RANGE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let parsed = s3s::dto::Range::parse(&value).ok();
    let Some(s3s::dto::Range::Int {
        first,
        last: Some(last),
    }) = parsed
    else {
        let message = format!(
            "The {RANGE} value must be of the form bytes=first-last where first and last are the zero-based offsets of the \
             first and last bytes to copy"
        );
        return Err(invalid_argument(RANGE, &value, message));
    };
    if last >= size {
        let message = format!("Range specified is not valid for source object of size: {size}");
        return Err(invalid_argument(RANGE, &value, message));
    }
    Ok(Some(first..last + 1))
}

pub(crate) async fn part(
    gateway: &Gateway,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let doing = OperationContext::new("copy to part of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    encryption::refuse(&headers)?;
    let (number, upload) = part_of_upload(&uri)?;
    let target = gateway.uploads.target(upload, doing).await?;
    let (id, algorithm) = (target.origin_id(), target.algorithm());
    let md5 = gateway.wants_md5(&bucket);
    let mut attempts = 0..MAX_COPY_ATTEMPTS;
    let (stored, length, passed) = loop {
        let source = Source::find(gateway, &headers).await?;
        let size = source.meta.size;
        let range = source_range(&headers, size)?;
        let length = range.as_ref().map_or(size, |range| range.end - range.start);
        let memory = bucket.part_copy_memory(&path, length).await;
        let memory = memory.map_err(|error| from_store(doing, &error))?;
        let replaced = Replaced::default();
        match source.read(range, &memory).await {
            Ok(read) => {
                let digests = PassingDigests::new(md5, algorithm);
                let body = digests.of(replaced.watch(read.into_stream()));
                match bucket.put_part(&path, id, number, length, body).await {
                    Ok(stored) => break (stored, length, digests.finish()),
                    Err(_) if replaced.is_seen() => {}
                    Err(StoreError::NotFound { .. }) => {
                        return Err(gateway.uploads.target_gone(&target).await);
                    }
                    Err(error) => return Err(from_store(doing, &error)),
                }
            }
            Err(error) if is_replaced(&error) => {}
            Err(error) => return Err(from_store(source.doing(), &error)),
        }
        if attempts.next().is_none() {
            return Err(source_always_replaced(doing));
        }
    };
    let part = Part {
        e_tag: stored,
        md5: passed.md5,
        size: length,
        checksum: passed.checksum,
        modified: Utc::now(),
    };
    let mut result = CopyPartResult {
        e_tag: Some(e_tag(part.client_e_tag())),
        last_modified: Some(timestamp(part.modified)),
        ..Default::default()
    };
    if let Some(checksum) = &part.checksum {
        set_checksum!(result, checksum);
    }
    gateway.uploads.keep_part(target, number, part).await?;
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        ..Default::default()
    }))
}
