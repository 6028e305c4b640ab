//! PutObject, and functions shared by all writes.

use std::sync::Arc;

use bywash::{Bucket, PartBody, PutStreamOptions};
use futures::StreamExt;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use object_store::path::Path;
use object_store::{Attributes, Error as StoreError, ObjectStoreExt, PutMode, UpdateVersion};
use s3s::dto::*;
use s3s::stream::ByteStream;
use s3s::{S3Error, S3Request, S3Response, S3Result};

use super::{acl, context};
use crate::body::{BodyError, RequestContext};
use crate::conditions::{Conditions, tags};
use crate::digest::announce;
use crate::encryption;
use crate::errors::{OperationContext, conflict, from_store, no_such_key, precondition_failed};
use crate::gateway::Gateway;
use crate::meta::{
    attributes_of, e_tag, e_tag_like, encode_metadata_for, keep_checksum, keep_e_tag,
    keep_storage_class, refuse_text_for, refuse_unsupported, text,
};
use crate::tags::Tags;
use crate::verify::{Checks, VerifiedBody};

/// The conditions of a write, as a mode of the origin, which evaluates it when the object becomes visible.
pub(crate) struct WriteCondition {
    pub(crate) mode: PutMode,
    /// Whether the mode only binds the write to the version for which the conditions held: a failure is a conflict with another write.
    bound: bool,
}

impl WriteCondition {
    pub(crate) async fn find(
        bucket: &Bucket,
        path: &Path,
        headers: &HeaderMap,
        doing: OperationContext<'_>,
    ) -> S3Result<Self> {
        let exact = |mode| Ok(Self { mode, bound: false });
        let bound = |mode| Ok(Self { mode, bound: true });
        let (matched, unmatched) = (tags(headers, "if-match"), tags(headers, "if-none-match"));
        let (matched, unmatched) = (matched.as_deref(), unmatched.as_deref());
        match (matched, unmatched) {
            (None, None) => return exact(PutMode::Overwrite),
            (None, Some("*")) => return exact(PutMode::Create),
            _ => {}
        }
        let found = match bucket.head(path).await {
            Ok(meta) => Some(meta),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(from_store(doing, &error)),
        };
        let Some(meta) = found else {
            return match matched {
                Some(_) => Err(no_such_key(doing)),
                // No version has the ETag of If-None-Match.
                None => bound(PutMode::Create),
            };
        };
        if let (Some(wanted), None) = (matched, unmatched)
            && wanted != "*"
            && !wanted.contains(',')
        {
            // The version that is known here may be an old one: the origin itself compares the client's ETag.
            let known = meta.e_tag.as_deref().unwrap_or_default();
            return exact(PutMode::Update(UpdateVersion {
                e_tag: Some(e_tag_like(known, wanted)),
                version: meta.version,
            }));
        }
        Conditions::of_write(matched, unmatched)
            .check(&meta)
            .map_err(|_| precondition_failed(doing))?;
        bound(PutMode::Update(UpdateVersion {
            e_tag: meta.e_tag,
            version: meta.version,
        }))
    }

    /// Converts an error of the origin.
    pub(crate) fn error(&self, doing: OperationContext<'_>, error: &StoreError) -> S3Error {
        match error {
            StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } if self.bound => {
                conflict(doing)
            }
            error => from_store(doing, error),
        }
    }
}

/// The error of a write. A fault of the request's body precedes the errors it caused.
pub(super) fn write_error(
    context: &RequestContext,
    doing: OperationContext<'_>,
    error: &StoreError,
) -> S3Error {
    context.fault().unwrap_or_else(|| from_store(doing, error))
}

/// The announced length of a body, without its framing.
pub(super) fn body_length(body: &StreamingBlob, headers: &HeaderMap) -> Option<u64> {
    let exact = body.remaining_length().exact().map(|length| length as u64);
    exact.or_else(|| text(headers, CONTENT_LENGTH.as_str())?.parse().ok())
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
    context.hold_memory();
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("write", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let mut attributes = attributes_of(&headers)?;
    refuse_text_for(&bucket, &attributes)?;
    encode_metadata_for(&bucket, &mut attributes)?;
    keep_storage_class(&headers, &bucket, &mut attributes);
    let mut response = encryption::keep(gateway, &bucket, &headers, &mut attributes)?;
    let public = acl::public_by_headers(&headers)?;
    acl::keep(&bucket, public == Some(true), &mut attributes)?;
    let tags = Tags::from_headers(&headers)?.keep(&bucket, &mut attributes)?;
    let checks = Checks::announced(&headers, &context)?.with_md5(gateway.wants_md5(&bucket));
    if let Some(checksum) = checks.known() {
        keep_checksum(&mut attributes, &checksum);
    }
    let condition = WriteCondition::find(&bucket, &path, &headers, doing).await?;
    let body = input.body.unwrap_or_else(|| s3s::Body::empty().into());
    let length = body_length(&body, &headers);
    let options = PutStreamOptions {
        mode: condition.mode.clone(),
        attributes,
        tags,
        late_attributes: Some(digests(Arc::clone(&context), gateway.wants_md5(&bucket))),
        length,
        memory: None,
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
        .map_err(|error| {
            let fault = context.fault();
            fault.unwrap_or_else(|| condition.error(doing, &error))
        })?;
    if let Some(checksum) = context.verified.get() {
        announce(&mut response, checksum);
    }
    let output = PutObjectOutput {
        e_tag: result.e_tag.as_deref().map(e_tag),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

/// The digests that are known once the body was read: of a trailer, and for the ETag.
fn digests(
    context: Arc<RequestContext>,
    keeps_md5: bool,
) -> Box<dyn FnOnce() -> Attributes + Send> {
    Box::new(move || {
        let mut late = Attributes::new();
        if let Some(checksum) = context.verified.get() {
            keep_checksum(&mut late, checksum);
        }
        // One announced is checked also where it is not kept.
        if let Some(md5) = context.md5.get().filter(|_| keeps_md5) {
            keep_e_tag(&mut late, md5.clone());
        }
        late
    })
}
