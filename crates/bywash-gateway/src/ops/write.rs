//! PutObject, and functions shared by all writes.

use std::sync::Arc;

use bywash::{Bucket, PartBody, PutStreamOptions};
use futures::StreamExt;
use http::HeaderMap;
use object_store::path::Path;
use object_store::{Attributes, Error as StoreError, ObjectStoreExt, PutMode, UpdateVersion};
use s3s::dto::*;
use s3s::stream::ByteStream;
use s3s::{S3Error, S3Request, S3Response, S3Result};

use super::context;
use crate::body::{BodyError, RequestContext};
use crate::digest::announce;
use crate::errors::{OperationContext, from_store, not_implemented};
use crate::gateway::Gateway;
use crate::meta::{attributes_of, e_tag, e_tag_like, keep_checksum, refuse_unsupported, text};
use crate::tags::Tags;
use crate::verify::{Checks, VerifiedBody};

/// Converts the conditions of a write to a put mode.
pub(super) async fn put_mode(
    bucket: &Bucket,
    path: &Path,
    headers: &HeaderMap,
    doing: OperationContext<'_>,
) -> S3Result<PutMode> {
    match (text(headers, "if-match"), text(headers, "if-none-match")) {
        (None, None) => Ok(PutMode::Overwrite),
        (None, Some("*")) => Ok(PutMode::Create),
        (Some(wanted), None) if wanted != "*" => {
            // Only to learn the origin's style of ETags and whether the object exists. The origin itself evaluates
            // the condition when it writes.
            let meta = bucket
                .head(path)
                .await
                .map_err(|error| from_store(doing, &error))?;
            let known = meta.e_tag.as_deref().unwrap_or_default();
            Ok(PutMode::Update(UpdateVersion {
                e_tag: Some(e_tag_like(known, wanted)),
                version: meta.version,
            }))
        }
        _ => {
            let message =
                "A write takes If-None-Match: * or If-Match with one ETag, not this combination.";
            Err(not_implemented(message))
        }
    }
}

/// Returns the error of a write. A fault of the request's body precedes the errors it caused.
pub(super) fn write_error(
    context: &RequestContext,
    doing: OperationContext<'_>,
    error: &StoreError,
) -> S3Error {
    context.fault().unwrap_or_else(|| from_store(doing, error))
}

/// Returns the announced length of a body, without its framing.
pub(super) fn body_length(body: &StreamingBlob, content_length: Option<i64>) -> Option<u64> {
    let exact = body.remaining_length().exact().map(|length| length as u64);
    exact.or_else(|| content_length.and_then(|length| u64::try_from(length).ok()))
}

pub(super) fn store_error(error: BodyError) -> StoreError {
    StoreError::Generic {
        store: "request body",
        source: Box::new(error),
    }
}

/// Converts the verified body for the engine.
pub(super) fn part_body(body: VerifiedBody) -> PartBody {
    body.map(|piece| piece.map_err(store_error)).boxed()
}

pub(crate) async fn put(
    gateway: &Gateway,
    request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let context = context(&request)?;
    let S3Request {
        input,
        headers,
        trailing_headers,
        ..
    } = request;
    let doing = OperationContext::new("write", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let mut attributes = attributes_of(&headers)?;
    Tags::from_headers(&headers)?.keep(&bucket, &mut attributes)?;
    let checks = Checks::announced(&headers, trailing_headers, &context)?;
    if let Some(checksum) = checks.known() {
        keep_checksum(&mut attributes, &checksum);
    }
    let mode = put_mode(&bucket, &path, &headers, doing).await?;
    let body = input.body.unwrap_or_else(|| s3s::Body::empty().into());
    let length = body_length(&body, input.content_length);
    let options = PutStreamOptions {
        mode,
        attributes,
        late_attributes: Some(trailer_checksum(Arc::clone(&context))),
        length,
    };
    let body = part_body(VerifiedBody::new(
        body,
        checks,
        length,
        Arc::clone(&context),
    ));
    let result = bucket
        .put_stream(&path, options, body)
        .await
        .map_err(|error| write_error(&context, doing, &error))?;
    let mut response = HeaderMap::new();
    if let Some(checksum) = context.verified.get() {
        announce(&mut response, checksum);
    }
    let output = PutObjectOutput {
        e_tag: result.e_tag.as_deref().map(e_tag),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

/// Returns the checksum from a trailer once the body was read.
fn trailer_checksum(context: Arc<RequestContext>) -> Box<dyn FnOnce() -> Attributes + Send> {
    Box::new(move || {
        let mut late = Attributes::new();
        if let Some(checksum) = context.verified.get() {
            keep_checksum(&mut late, checksum);
        }
        late
    })
}
