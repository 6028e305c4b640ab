//! DeleteObject and DeleteObjects.

use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::documents;
use crate::documents::entry_bytes;
use crate::errors::{OperationContext, fault, from_store, not_implemented};
use crate::gateway::Gateway;
use crate::keys::path_of;
use crate::limits::MAX_DELETE_KEYS;
use crate::meta::check_version;
use crate::xml;

/// Bytes of an error's message besides its key: the key again, and text.
const ERROR_BYTES: u64 = 4 * 512;

/// Returns the path of a key to delete, if that is allowed.
fn target(key: &str, version: Option<&str>, conditional: bool) -> S3Result<Path> {
    refuse_condition(conditional)?;
    check_version(version, key)?;
    path_of(key)
}

/// Deleting an absent key succeeds.
fn deleted<T>(result: Result<T, StoreError>, doing: OperationContext<'_>) -> S3Result<()> {
    match result {
        Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(from_store(doing, &error)),
    }
}

fn refuse_condition(conditional: bool) -> S3Result<()> {
    if conditional {
        return Err(not_implemented(
            "Conditional deletes are not supported here; delete without a condition.",
        ));
    }
    Ok(())
}

pub(crate) async fn one(
    gateway: &Gateway,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let input = request.input;
    let bucket = gateway.bucket(&input.bucket)?;
    let conditions = [
        input.if_match.is_some(),
        input.if_match_size.is_some(),
        input.if_match_last_modified_time.is_some(),
    ];
    let version = input.version_id.as_deref();
    let path = target(&input.key, version, conditions.contains(&true))?;
    let doing = OperationContext::new("delete", &input.bucket, &input.key);
    deleted(bucket.delete(&path).await, doing)?;
    Ok(S3Response::new(DeleteObjectOutput {
        version_id: input.version_id,
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
    if objects.is_empty() || objects.len() > MAX_DELETE_KEYS {
        let message = format!(
            "The request names {} keys; name 1 to {MAX_DELETE_KEYS}.",
            objects.len()
        );
        return Err(fault(S3ErrorCode::MalformedXML, message));
    }
    if let Some(object) = objects
        .iter()
        .find(|object| !object.key.chars().all(xml::fits))
    {
        let message = format!(
            "The key {:?} has a character that XML cannot represent.",
            object.key
        );
        return Err(fault(S3ErrorCode::MalformedXML, message));
    }
    // Checked before any deletion: each key gets a result, deleted or an error.
    let results = objects
        .iter()
        .map(|object| entry_bytes(&object.key) + ERROR_BYTES);
    let doing = OperationContext::new("delete keys of", &input.bucket, "");
    documents.charge_more(results.sum(), doing).await?;
    let targets: Vec<S3Result<Path>> = objects.iter().map(target_of).collect();
    let paths: Vec<_> = targets.iter().flatten().cloned().map(Ok).collect();
    // One request to an origin that deletes many keys at a time. Results are in the order of the paths.
    let mut responses = bucket.delete_stream(futures::stream::iter(paths).boxed());
    let quiet = input.delete.quiet.unwrap_or(false);
    let (mut gone, mut errors) = (Vec::new(), Vec::new());
    for (object, target) in objects.into_iter().zip(targets) {
        let result = match target {
            Err(refused) => Err(refused),
            Ok(_) => {
                let doing = OperationContext::new("delete", &input.bucket, &object.key);
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

fn target_of(object: &ObjectIdentifier) -> S3Result<Path> {
    let conditions = [
        object.e_tag.is_some(),
        object.size.is_some(),
        object.last_modified_time.is_some(),
    ];
    let conditional = conditions.contains(&true);
    target(&object.key, object.version_id.as_deref(), conditional)
}

fn missing_result() -> StoreError {
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
