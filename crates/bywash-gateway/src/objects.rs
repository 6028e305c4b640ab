//! Code that an endpoint of another protocol shares with the endpoints of this crate: keys, ETags,
//! headers, conditions, listings and errors.

use std::borrow::Cow;
use std::sync::Arc;

use bywash::origin::kept_client_etag;
use bywash::{
    Bucket, CacheOutcome, DeleteCondition, Engine, EngineError, PutStreamOptions, ReadInfo,
};
use futures::{StreamExt, stream};
use http::StatusCode;
use http::header::{HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, GetOptions, GetResult, ObjectMeta, ObjectStore,
    PutMode,
};
use s3s::S3Error;

use crate::conditions::{Conditions, Unmet};
use crate::config::ETagStyle;
use crate::copying::{Replaced, carried_attributes, is_replaced};
use crate::digest::{Hasher, hex};
use crate::documents::{Documents, RequestDocuments};
use crate::errors::{OperationContext, from_engine, from_store};
use crate::keys;
use crate::limits::{MAX_COPY_ATTEMPTS, MAX_LIST_KEYS};
use crate::listing::{self, ListEntry, ListPosition, ListScope, ListedObject};
use crate::meta::{
    attributes_of, bare, client_e_tag, encode_metadata_for, keep_e_tag, keep_storage_class,
    refuse_text_for, refuse_unsupported, version_headers,
};
use crate::ops::{WriteCondition, deleted, is_absent, late, missing_result};
use crate::passing::PassingDigests;
use crate::shared_state::SharedState;
use crate::tags::Tags;

/// An error of an operation on an object, as the S3 endpoint states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectError {
    /// Code of S3, as `NoSuchKey`.
    pub code: String,
    /// Object, operation and next step.
    pub message: String,
}

impl From<S3Error> for ObjectError {
    fn from(error: S3Error) -> Self {
        Self {
            code: error.code().as_str().to_owned(),
            message: error.message().unwrap_or_default().to_owned(),
        }
    }
}

/// An operation on an object, for messages.
#[derive(Debug, Clone, Copy)]
pub struct ObjectOperation<'a> {
    /// The operation, as `read`.
    pub operation: &'static str,
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a str,
}

impl ObjectOperation<'_> {
    fn context(&self) -> OperationContext<'_> {
        OperationContext::new(self.operation, self.bucket, self.key)
    }

    /// Converts an error of the engine's storage trait.
    #[must_use]
    pub fn error(&self, error: &StoreError) -> ObjectError {
        from_store(self.context(), error).into()
    }

    /// Converts an error of the engine.
    #[must_use]
    pub fn engine_error(&self, error: &EngineError) -> ObjectError {
        from_engine(self.context(), error).into()
    }

    /// Returns the path of the key.
    ///
    /// # Errors
    /// `InvalidArgument` or `KeyTooLongError` for keys that cannot be stored.
    pub fn path(&self) -> Result<Path, ObjectError> {
        keys::path_of(self.key).map_err(ObjectError::from)
    }

    /// Returns the path of the key of an object that is read or deleted; other programs may have written keys that cannot be stored.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub fn stored_path(&self, bucket: &Bucket) -> Result<Path, ObjectError> {
        keys::stored_path(bucket, self.key).map_err(ObjectError::from)
    }
}

/// The key stored at `path`.
#[must_use]
pub fn key_of(path: &Path) -> Cow<'_, str> {
    keys::key_of(path)
}

/// The ETag that clients see, without quotes.
#[must_use]
pub fn etag_of(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().map(etag_of_text)
}

/// As [`etag_of`] of an ETag as the store returned it.
#[must_use]
pub fn etag_of_text(stored: &str) -> &str {
    bare(client_e_tag(stored))
}

/// Whether an object meets conditions by the ETags that clients see.
///
/// # Errors
/// `PreconditionFailed` or `NotModified`.
pub fn check_etags(
    operation: &ObjectOperation<'_>,
    meta: &ObjectMeta,
    if_match: Option<&str>,
    if_none_match: Option<&str>,
) -> Result<(), ObjectError> {
    let conditions = Conditions::of_write(if_match, if_none_match);
    let code = match conditions.check(meta) {
        Ok(()) => return Ok(()),
        Err(Unmet::Failed) => "PreconditionFailed",
        Err(Unmet::NotModified) => "NotModified",
    };
    let ObjectOperation {
        operation,
        bucket,
        key,
    } = operation;
    Err(ObjectError {
        code: code.to_owned(),
        message: format!(
            "{operation} {bucket}/{key}: the object does not meet the conditions of the request."
        ),
    })
}

/// Response headers of a version: content headers, metadata, checksum; without the headers of the
/// response itself.
#[must_use]
pub fn headers_of(result: &GetResult) -> HeaderMap {
    let info = result.extensions.get::<ReadInfo>();
    let tags = info.map_or(0, |info| info.tags);
    version_headers(&result.meta, &result.attributes, None, tags, true)
}

/// Converts the headers of a write to attributes that the bucket's origin keeps.
///
/// # Errors
/// As the S3 endpoint refuses them.
pub fn attributes_for(bucket: &Bucket, headers: &HeaderMap) -> Result<Attributes, ObjectError> {
    refuse_unsupported(headers)?;
    let mut attributes = attributes_of(headers)?;
    refuse_text_for(bucket, &attributes)?;
    encode_metadata_for(bucket, &mut attributes)?;
    keep_storage_class(headers, bucket, &mut attributes);
    Ok(attributes)
}

/// The condition of a write, by the ETags that clients see.
pub struct ObjectCondition(WriteCondition);

impl ObjectCondition {
    /// Looks the condition up. Without `if_match` and `create` it finds no condition, and sends no
    /// request.
    ///
    /// # Errors
    /// `NoSuchKey` or `PreconditionFailed` if it fails already; otherwise errors of the origin.
    pub async fn find(
        operation: &ObjectOperation<'_>,
        bucket: &Bucket,
        path: &Path,
        if_match: Option<&str>,
        create: bool,
    ) -> Result<Self, ObjectError> {
        let mut headers = HeaderMap::new();
        if let Some(etag) = if_match {
            let value = HeaderValue::from_str(&format!("\"{}\"", bare(etag)));
            let value = value.map_err(|_| ObjectError {
                code: "InvalidArgument".to_owned(),
                message: format!("{etag:?} in the condition is not an ETag."),
            })?;
            headers.insert(IF_MATCH, value);
        }
        if create {
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        let found = WriteCondition::find(bucket, path, &headers, operation.context()).await?;
        Ok(Self(found))
    }

    /// The mode of the write: the origin checks the condition when the object becomes visible.
    #[must_use]
    pub fn mode(&self) -> PutMode {
        self.0.mode.clone()
    }

    /// Converts an error of the write.
    #[must_use]
    pub fn error(&self, operation: &ObjectOperation<'_>, error: &StoreError) -> ObjectError {
        self.0.error(operation.context(), error).into()
    }
}

impl std::fmt::Debug for ObjectCondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectCondition")
            .field(&self.0.mode)
            .finish()
    }
}

/// A copy of an object, with its attributes, within a bucket or to another one.
#[derive(Debug, Clone, Copy)]
pub struct ObjectCopy<'a> {
    /// The source, for messages.
    pub from: ObjectOperation<'a>,
    /// Bucket of the source.
    pub from_bucket: &'a Bucket,
    /// ETag that the source has; `None`: any.
    pub from_etag: Option<&'a str>,
    /// The target, for messages.
    pub to: ObjectOperation<'a>,
    /// Bucket of the target.
    pub to_bucket: &'a Bucket,
    /// Condition of the target.
    pub condition: &'a ObjectCondition,
    /// Whether a copy gets the MD5 of its bytes as ETag.
    pub style: ETagStyle,
}

impl ObjectCopy<'_> {
    /// Copies the current version of the source.
    ///
    /// # Errors
    /// As CopyObject of the S3 endpoint; `InvalidRequest` for a copy onto itself.
    pub async fn run(&self) -> Result<(), ObjectError> {
        let from_path = self.from.stored_path(self.from_bucket)?;
        let to_path = self.to.path()?;
        if self
            .to_bucket
            .is_same_object(&to_path, self.from_bucket, &from_path)
        {
            return Err(ObjectError {
                code: "InvalidRequest".to_owned(),
                message: format!(
                    "copy {}/{}: the source and the target of a copy are two objects.",
                    self.from.bucket, self.from.key
                ),
            });
        }
        for _ in 0..=MAX_COPY_ATTEMPTS {
            if self.attempt(&from_path, &to_path).await? {
                return Ok(());
            }
        }
        Err(ObjectError {
            code: "SlowDown".to_owned(),
            message: format!(
                "copy {}/{}: the source was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again.",
                self.from.bucket, self.from.key
            ),
        })
    }

    /// Returns false if the source was replaced.
    async fn attempt(&self, from_path: &Path, to_path: &Path) -> Result<bool, ObjectError> {
        let (from, to) = (self.from_bucket, self.to_bucket);
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = from.get_opts(from_path, head).await;
        let found = found.map_err(|error| self.from.error(&error))?;
        check_etags(&self.from, &found.meta, self.from_etag, None)?;
        let known = found
            .meta
            .e_tag
            .as_deref()
            .and_then(kept_client_etag)
            .is_some();
        let md5 = !known && self.style == ETagStyle::Md5 && to.takes_late_attributes();
        let plain = self.condition.mode() == PutMode::Overwrite && self.from_etag.is_none();
        if plain && !md5 && from.name() == to.name() {
            match from
                .copy_opts(from_path, to_path, CopyOptions::default())
                .await
            {
                Ok(()) => return Ok(true),
                Err(
                    StoreError::NotSupported { .. }
                    | StoreError::NotImplemented { .. }
                    | StoreError::Precondition { .. },
                ) => {}
                Err(error) => return Err(self.from.error(&error)),
            }
        }
        let tags = found
            .extensions
            .get::<ReadInfo>()
            .map_or(0, |info| info.tags);
        let mut attributes = carried_attributes(to, &found);
        refuse_text_for(to, &attributes)?;
        encode_metadata_for(to, &mut attributes)?;
        let tags = Tags::of_object(from, from_path, tags, &mut attributes).await;
        let tags = tags.map_err(|error| self.from.error(&error))??;
        let memory = to.copy_memory(to_path, found.meta.size, &tags).await;
        let memory = memory.map_err(|error| self.to.error(&error))?;
        let bound = GetOptions {
            if_match: found.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        let read = match from.get_for_copy(from_path, bound, memory.reads()).await {
            Ok(read) => read,
            Err(error) if is_replaced(&error) => return Ok(false),
            Err(error) => return Err(self.from.error(&error)),
        };
        let digests = PassingDigests::new(md5, None);
        let passed = digests.clone();
        let put = PutStreamOptions {
            mode: self.condition.mode(),
            tags,
            attributes,
            late_attributes: Some(Box::new(move || late(passed.finish()))),
            length: Some(read.meta.size),
            memory: Some(memory),
        };
        let replaced = Replaced::default();
        let body = replaced.watch(digests.of(read.into_stream()));
        match to.put_stream(to_path, put, body).await {
            Ok(_) => Ok(true),
            Err(_) if replaced.is_seen() => Ok(false),
            Err(error) => Err(self.condition.error(&self.to, &error)),
        }
    }
}

/// MD5 of a body, which becomes the ETag of an object in a folder or in memory.
pub struct BodyMd5(Hasher);

impl std::fmt::Debug for BodyMd5 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyMd5").finish_non_exhaustive()
    }
}

impl BodyMd5 {
    /// Begins the digest of a body for `bucket`. `None` if its origin has ETags of its own.
    #[must_use]
    pub fn begin(bucket: &Bucket, style: ETagStyle) -> Option<Self> {
        let wanted = style == ETagStyle::Md5 && bucket.takes_late_attributes();
        wanted.then(|| Self(Hasher::md5()))
    }

    /// Adds bytes of the body.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The attributes that state it.
    #[must_use]
    pub fn finish(self) -> Attributes {
        let mut attributes = Attributes::new();
        keep_e_tag(&mut attributes, hex(&self.0.finish()));
        attributes
    }
}

/// Deletes objects, at most 1,000. Returns a result for each key, in order; an absent object counts as deleted.
pub async fn delete(
    bucket: &Bucket,
    keys: &[String],
    if_match: Option<&str>,
) -> Vec<Result<(), ObjectError>> {
    let doing = |key| OperationContext::new("delete", bucket.name(), key);
    if let (Some(etag), [key]) = (if_match, keys) {
        return vec![delete_if(bucket, key, etag).await];
    }
    let paths: Vec<_> = keys
        .iter()
        .map(|key| keys::stored_path(bucket, key))
        .collect();
    let known: Vec<_> = paths.iter().flatten().cloned().map(Ok).collect();
    let mut responses = bucket.delete_stream(stream::iter(known).boxed());
    let mut results = Vec::with_capacity(keys.len());
    for (key, path) in keys.iter().zip(paths) {
        results.push(match path {
            Err(refused) if is_absent(&refused) => Ok(()),
            Err(refused) => Err(refused.into()),
            Ok(_) => {
                let response = responses.next().await;
                let response = response.unwrap_or_else(|| Err(missing_result()));
                deleted(response, doing(key)).map_err(ObjectError::from)
            }
        });
    }
    results
}

async fn delete_if(bucket: &Bucket, key: &str, etag: &str) -> Result<(), ObjectError> {
    let operation = ObjectOperation {
        operation: "delete",
        bucket: bucket.name(),
        key,
    };
    let condition = DeleteCondition {
        e_tag: Some(bare(etag).to_owned()),
        ..DeleteCondition::default()
    };
    let path = operation.stored_path(bucket)?;
    let deleted = bucket.delete_if(&path, condition).await;
    deleted.map_err(|error| operation.error(&error))
}

/// Name of a read's cache outcome in headers and logs.
#[must_use]
pub fn is_hit(info: Option<&ReadInfo>) -> bool {
    info.is_some_and(|info| info.outcome == CacheOutcome::Hit)
}

/// A page of a listing.
#[derive(Debug, Default)]
pub struct ObjectPage {
    /// Keys with their metadata.
    pub objects: Vec<(String, ObjectMeta)>,
    /// Keys cut after the delimiter.
    pub prefixes: Vec<String>,
    /// Token of the next page.
    pub next: Option<String>,
    /// Number of entries that are left out of it, as the S3 endpoint states it.
    pub left_out: u64,
}

/// Which keys a page lists.
#[derive(Debug, Clone, Copy)]
pub struct ObjectScope<'a> {
    /// Keys begin with it.
    pub prefix: &'a str,
    /// Keys are cut after it; empty: not.
    pub delimiter: &'a str,
    /// Token of the page before.
    pub after: Option<&'a str>,
    /// Maximum entries, at most 1,000.
    pub limit: usize,
}

/// Pages of listings within the memory of documents that the endpoints share.
#[derive(Debug)]
pub struct Listings(Arc<Documents>);

/// Memory of a page, until it is sent.
#[derive(Debug)]
pub struct PageCharge(#[expect(dead_code, reason = "held for its drop")] RequestDocuments);

impl Listings {
    /// Listings of the engine that `shared` belongs to.
    #[must_use]
    pub fn new(shared: &SharedState, engine: &Engine) -> Self {
        Self(shared.documents(engine))
    }

    /// Lists one page, in the order of keys. With little memory it has fewer entries than the limit.
    ///
    /// # Errors
    /// `SlowDown` if there is no memory in time, `InvalidArgument` if the token is malformed;
    /// otherwise errors of the origin.
    pub async fn page(
        &self,
        bucket: &Bucket,
        scope: ObjectScope<'_>,
    ) -> Result<(ObjectPage, PageCharge), ObjectError> {
        let context = OperationContext::new("list", bucket.name(), scope.prefix);
        let charge = RequestDocuments::new(Arc::clone(&self.0));
        let max = MAX_LIST_KEYS.min(i32::try_from(scope.limit).unwrap_or(MAX_LIST_KEYS));
        let max_bytes = charge.charge_page(max, MAX_LIST_KEYS, context).await?;
        let page = list(bucket, scope, max as usize, max_bytes).await?;
        Ok((page, PageCharge(charge)))
    }
}

async fn list(
    bucket: &Bucket,
    scope: ObjectScope<'_>,
    limit: usize,
    max_bytes: u64,
) -> Result<ObjectPage, ObjectError> {
    let after = match scope.after {
        None => ListPosition::Key(String::new()),
        Some(token) => ListPosition::from_token(token).ok_or_else(|| ObjectError {
            code: "InvalidArgument".to_owned(),
            message: "The token of the page is not one of a listing here; list from the start."
                .to_owned(),
        })?,
    };
    let keys = ListScope {
        prefix: scope.prefix,
        delimiter: scope.delimiter,
    };
    let page = listing::page(bucket, keys, after, limit, max_bytes).await;
    let page = page.map_err(|error| {
        let context = OperationContext::new("list", bucket.name(), scope.prefix);
        ObjectError::from(from_store(context, &error))
    })?;
    let mut listed = ObjectPage {
        next: page.next.map(|next| next.to_token()),
        left_out: page.left_out,
        ..ObjectPage::default()
    };
    for entry in page.entries {
        match entry {
            ListEntry::Object(ListedObject { key, meta }) => listed.objects.push((key, meta)),
            ListEntry::Prefix(prefix) => listed.prefixes.push(prefix),
        }
    }
    Ok(listed)
}

/// The status of an error in access logs, as at the S3 endpoint.
#[must_use]
pub fn status_of(error: &ObjectError) -> u16 {
    s3s::S3ErrorCode::from_bytes(error.code.as_bytes())
        .and_then(|code| code.status_code())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        .as_u16()
}
