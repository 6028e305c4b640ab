//! Buckets: list, create, head, delete, location.

use std::sync::Arc;

use bywash::EngineError;
use http::HeaderMap;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::{acl, documents};
use crate::config::Scope;
use crate::encryption;
use crate::errors::{
    OperationContext, WithElements, fault, from_engine, invalid_argument, not_implemented,
};
use crate::gateway::Gateway;
use crate::limits::MAX_LIST_BUCKETS;
use crate::meta::{refuse_unsupported, text, timestamp};
use crate::routes::Query;
use crate::shared_state::delete_bucket;
use crate::values::count;

/// The region that S3 represents by an empty value.
const DEFAULT_REGION: &str = "us-east-1";
/// Bytes of a bucket in a ListBuckets response: its value, and its XML in a buffer that grows by doubling.
const BUCKET_BYTES: u64 = 800;
/// Owner of all buckets and objects; there are no accounts.
pub(crate) const OWNER: &str = "bywash";

pub(crate) fn owner() -> Owner {
    Owner {
        id: Some(OWNER.to_owned()),
        display_name: Some(OWNER.to_owned()),
    }
}

pub(crate) async fn list(
    gateway: &Gateway,
    request: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let scope = request.extensions.get::<Arc<Scope>>().cloned();
    let documents = documents(&request)?;
    let query = Query::new(&request.uri);
    let requested = query.text("max-buckets");
    let max = match count("max-buckets", Some(requested))?.map(usize::try_from) {
        None => MAX_LIST_BUCKETS,
        Some(Ok(max)) if (1..=MAX_LIST_BUCKETS).contains(&max) => max,
        Some(_) => {
            let message = format!(
                "Argument max-buckets must be an integer between 1 and {MAX_LIST_BUCKETS}."
            );
            return Err(invalid_argument("max-buckets", requested, message));
        }
    };
    let doing = OperationContext::new("list buckets", "", "");
    let charge = max as u64 * BUCKET_BYTES;
    documents.charge_more(charge, doing).await?;
    let (prefix, after) = (query.text("prefix"), query.text("continuation-token"));
    let engine = gateway.engine.clone();
    // Reads a folder: blocking.
    let mut found = tokio::task::spawn_blocking(move || engine.buckets())
        .await
        .map_err(|error| fault(S3ErrorCode::InternalError, error.to_string()))?;
    if let Some(scope) = scope {
        found.retain(|bucket| scope.sees(&bucket.name));
    }
    let here = query.first("bucket-region");
    let here = here.is_none_or(|region| region == &*gateway.region);
    found.retain(|bucket| here && bucket.name.starts_with(prefix) && bucket.name.as_str() > after);
    let more = found.len() > max;
    found.truncate(max);
    let continuation_token = found
        .last()
        .filter(|_| more)
        .map(|bucket| bucket.name.clone());
    let bucket = |info: bywash::BucketInfo| Bucket {
        bucket_region: Some(gateway.region.to_string()),
        creation_date: Some(timestamp(info.created)),
        name: Some(info.name),
    };
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(found.into_iter().map(bucket).collect()),
        continuation_token,
        owner: Some(owner()),
        prefix: query.first("prefix").map(str::to_owned),
    }))
}

/// Rejects settings of a new bucket that would be ignored, and malformed ones.
fn check_settings(headers: &HeaderMap) -> S3Result<()> {
    const LOCK: &str = "x-amz-bucket-object-lock-enabled";
    const OWNERSHIP: &str = "x-amz-object-ownership";
    let lock = text(headers, LOCK);
    if lock.is_some_and(|lock| !lock.eq_ignore_ascii_case("false")) {
        let message = "Object lock is not supported here; create the bucket without it.";
        return Err(not_implemented(message).with([("Header", LOCK)]));
    }
    match text(headers, OWNERSHIP) {
        None | Some("BucketOwnerEnforced" | "BucketOwnerPreferred" | "ObjectWriter") => Ok(()),
        Some(other) => {
            let message = format!("Invalid {OWNERSHIP} header: {other}");
            Err(invalid_argument(OWNERSHIP, other, message))
        }
    }
}

pub(crate) async fn create(
    gateway: &Gateway,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let S3Request { input, headers, .. } = request;
    refuse_unsupported(&headers)?;
    encryption::refuse_wish(&headers)?;
    let public = acl::public_by_headers(&headers)?;
    check_settings(&headers)?;
    let doing = OperationContext {
        operation: "create bucket",
        bucket: &input.bucket,
        key: "",
    };
    match gateway.engine.create_bucket(&input.bucket) {
        // As in this region of S3: all buckets have one owner.
        Err(EngineError::BucketExists(_)) if *gateway.region == *DEFAULT_REGION => {}
        created => {
            created.map_err(|error| from_engine(doing, &error))?;
        }
    }
    if let Some(public) = public {
        acl::set_bucket(gateway, &input.bucket, public).await?;
    }
    Ok(S3Response::new(CreateBucketOutput {
        location: Some(format!("/{}", input.bucket)),
    }))
}

pub(crate) async fn head(
    gateway: &Gateway,
    request: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    gateway.bucket(&request.input.bucket)?;
    let bucket_region = Some(gateway.region.to_string());
    Ok(S3Response::new(HeadBucketOutput {
        bucket_region,
        ..Default::default()
    }))
}

pub(crate) async fn delete(
    gateway: &Gateway,
    request: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    let name = request.input.bucket;
    gateway.bucket(&name)?;
    let (uploads, rules) = (Arc::clone(&gateway.uploads), Arc::clone(&gateway.rules));
    delete_bucket(&gateway.engine, Some(uploads), Some(rules), &name).await?;
    Ok(S3Response::new(DeleteBucketOutput {}))
}

pub(crate) async fn location(
    gateway: &Gateway,
    request: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    gateway.bucket(&request.input.bucket)?;
    let region = gateway.region.to_string();
    let location_constraint =
        (region != DEFAULT_REGION).then(|| BucketLocationConstraint::from(region));
    Ok(S3Response::new(GetBucketLocationOutput {
        location_constraint,
    }))
}
