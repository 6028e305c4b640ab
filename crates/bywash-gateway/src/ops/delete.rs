//! DeleteObject and DeleteObjects.

use bywash::time::parse_http_date;
use bywash::{Bucket, DeleteCondition};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use http::HeaderMap;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::documents;
use crate::documents::entry_bytes;
use crate::errors::{OperationContext, fault, from_store, invalid_argument};
use crate::gateway::Gateway;
use crate::keys::stored_path;
use crate::limits::MAX_DELETE_KEYS;
use crate::meta::{bare, check_version, joined};
use crate::routes::Query;
use crate::values::size;
use crate::xml;

/// Bytes of an error's message in addition to its key: the key again, and text.
const ERROR_BYTES: u64 = 4 * 512;

/// A key to delete.
struct Target {
    path: Path,
    condition: DeleteCondition,
}

impl Target {
    fn new(
        bucket: &Bucket,
        key: &str,
        version: Option<&str>,
        condition: DeleteCondition,
    ) -> S3Result<Self> {
        check_version(version, key)?;
        let path = stored_path(bucket, key)?;
        Ok(Self { path, condition })
    }

    /// Deletes the object if it meets its condition.
    async fn delete(&self, bucket: &Bucket, doing: OperationContext<'_>) -> S3Result<()> {
        if self.condition.is_empty() {
            return deleted(bucket.delete(&self.path).await, doing);
        }
        let deleted = bucket.delete_if(&self.path, self.condition.clone()).await;
        deleted.map_err(|error| from_store(doing, &error))
    }
}

const SIZE: &str = "x-amz-if-match-size";
const MODIFIED: &str = "x-amz-if-match-last-modified-time";

/// Returns the condition of a delete. One that cannot be read is refused: without it, the object would be deleted.
fn condition_of(headers: &HeaderMap) -> S3Result<DeleteCondition> {
    let e_tag = joined(headers, "if-match").filter(|value| !value.is_empty());
    let modified = joined(headers, MODIFIED).filter(|value| !value.is_empty());
    let modified = modified.map(|value| {
        parse_http_date(&value).ok_or_else(|| {
            let message = format!("{MODIFIED} is an HTTP date, not {value}.");
            invalid_argument(MODIFIED, &value, message)
        })
    });
    Ok(DeleteCondition {
        e_tag: e_tag.map(|e_tag| wanted(&e_tag)).transpose()?,
        version: None,
        size: size(headers, SIZE)?,
        modified: modified.transpose()?,
    })
}

/// Returns the ETag of an If-Match without its quotes. Only `*` as it stands matches any version, and weak ETags match none.
fn wanted(if_match: &str) -> S3Result<String> {
    match (if_match.trim(), bare(if_match)) {
        ("*", any) => Ok(any.to_owned()),
        (weak, _) if weak.starts_with("W/") => Err(no_version(weak)),
        (quoted, "*") => Err(no_version(quoted)),
        (_, e_tag) => Ok(e_tag.to_owned()),
    }
}

fn no_version(e_tag: &str) -> S3Error {
    let message = format!("{e_tag} names no version; name a strong ETag, or * for any version.");
    invalid_argument("If-Match", e_tag, message)
}

/// Converts the time of a condition.
fn date(time: &Timestamp) -> S3Result<DateTime<Utc>> {
    let mut text = Vec::new();
    let written = time.format(TimestampFormat::HttpDate, &mut text).is_ok();
    let parsed = std::str::from_utf8(&text).ok().and_then(parse_http_date);
    parsed.filter(|_| written).ok_or_else(|| {
        let message = "The modification time of a condition is no HTTP date.";
        fault(S3ErrorCode::InvalidArgument, message)
    })
}

/// Checks the number of keys of a bulk delete, and their characters.
fn check_keys(objects: &[ObjectIdentifier]) -> S3Result<()> {
    if objects.is_empty() || objects.len() > MAX_DELETE_KEYS {
        let message = format!(
            "The request names {} keys; name 1 to {MAX_DELETE_KEYS}.",
            objects.len()
        );
        return Err(fault(S3ErrorCode::MalformedXML, message));
    }
    match objects
        .iter()
        .find(|object| !object.key.chars().all(xml::fits))
    {
        None => Ok(()),
        Some(object) => {
            let message = format!(
                "The key {:?} has a character that XML cannot represent.",
                object.key
            );
            Err(fault(S3ErrorCode::MalformedXML, message))
        }
    }
}

/// Whether a key cannot be stored, so that no object has it.
pub(crate) fn is_absent(error: &S3Error) -> bool {
    *error.code() == S3ErrorCode::NoSuchKey
}

/// Deleting an absent key succeeds.
pub(crate) fn deleted<T>(
    result: Result<T, StoreError>,
    doing: OperationContext<'_>,
) -> S3Result<()> {
    match result {
        Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(from_store(doing, &error)),
    }
}

pub(crate) async fn one(
    gateway: &Gateway,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let query = Query::new(&uri);
    let version = query.first("versionId");
    let bucket = gateway.bucket(&input.bucket)?;
    let condition = condition_of(&headers)?;
    let is_plain = condition.is_empty();
    let doing = OperationContext::new("delete", &input.bucket, &input.key);
    match Target::new(&bucket, &input.key, version, condition) {
        Ok(target) => target.delete(&bucket, doing).await?,
        Err(refused) if is_plain && is_absent(&refused) => {}
        Err(refused) => return Err(refused),
    }
    Ok(S3Response::new(DeleteObjectOutput {
        version_id: version.map(str::to_owned),
        ..Default::default()
    }))
}

pub(crate) async fn many(
    gateway: &Gateway,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let documents = documents(&request)?;
    let input = request.input;
    let bucket = gateway.bucket(&input.bucket)?;
    let objects = input.delete.objects;
    check_keys(&objects)?;
    // Checked before any deletion: each key gets a result, deleted or an error.
    let results = objects
        .iter()
        .map(|object| entry_bytes(&object.key) + ERROR_BYTES);
    let doing = OperationContext::new("delete keys of", &input.bucket, "");
    documents.charge_more(results.sum(), doing).await?;
    let targets: Vec<S3Result<Target>> = objects
        .iter()
        .map(|object| target_of(&bucket, object))
        .collect();
    let plain = |target: &&Target| target.condition.is_empty();
    let paths = targets.iter().flatten().filter(plain);
    let paths: Vec<_> = paths.map(|target| Ok(target.path.clone())).collect();
    // One request to an origin that deletes many keys at a time. Results are in the order of the paths.
    let mut responses = bucket.delete_stream(futures::stream::iter(paths).boxed());
    let quiet = input.delete.quiet.unwrap_or(false);
    let (mut gone, mut errors) = (Vec::new(), Vec::new());
    for (object, target) in objects.into_iter().zip(targets) {
        let doing = OperationContext::new("delete", &input.bucket, &object.key);
        let result = match target {
            Err(refused) if is_absent(&refused) && !has_condition(&object) => Ok(()),
            Err(refused) => Err(refused),
            Ok(target) if !target.condition.is_empty() => target.delete(&bucket, doing).await,
            Ok(_) => {
                let response = responses
                    .next()
                    .await
                    .unwrap_or_else(|| Err(missing_result()));
                deleted(response, doing)
            }
        };
        match result {
            Ok(()) if quiet => {}
            Ok(()) => gone.push(DeletedObject {
                key: Some(object.key),
                version_id: object.version_id,
                ..Default::default()
            }),
            Err(error) => errors.push(entry(object, &error)),
        }
    }
    let (deleted, errors) = (Some(gone), Some(errors));
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted,
        errors,
        ..Default::default()
    }))
}

fn target_of(bucket: &Bucket, object: &ObjectIdentifier) -> S3Result<Target> {
    let e_tag = object.e_tag.as_ref().map(|e_tag| match e_tag {
        ETag::Strong(value) if value != "*" => Ok(value.clone()),
        ETag::Strong(value) => Err(no_version(&format!("\"{value}\""))),
        ETag::Weak(value) => Err(no_version(&format!("W/\"{value}\""))),
    });
    let size = object.size.map(|size| {
        u64::try_from(size).map_err(|_| {
            let message = format!("The size of an object's condition is 0 or more, not {size}.");
            invalid_argument("Size", &size.to_string(), message)
        })
    });
    let condition = DeleteCondition {
        e_tag: e_tag.transpose()?,
        version: None,
        size: size.transpose()?,
        modified: object.last_modified_time.as_ref().map(date).transpose()?,
    };
    Target::new(bucket, &object.key, object.version_id.as_deref(), condition)
}

fn has_condition(object: &ObjectIdentifier) -> bool {
    object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some()
}

pub(crate) fn missing_result() -> StoreError {
    StoreError::Generic {
        store: "Bywash",
        source: "the result of the deletion is unknown; delete it again".into(),
    }
}

fn entry(object: ObjectIdentifier, error: &S3Error) -> Error {
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(object.key),
        message: error.message().map(str::to_owned),
        version_id: object.version_id,
    }
}
