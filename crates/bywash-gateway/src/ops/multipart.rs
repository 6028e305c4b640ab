//! Multipart uploads: create, parts, lists, complete, abort.

use std::sync::Arc;

use bywash::{Bucket, UploadedPart};
use chrono::Utc;
use http::{HeaderMap, Uri};
use object_store::Error as StoreError;
use object_store::path::Path;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::checksums::{self, checksum_algorithm, checksum_type};
use super::write::{WriteCondition, body_length, part_body, write_error};
use super::{acl, context, set_checksum};
use crate::completion::{
    ClusterJob, CompletionJob, CompletionToken, Found, Repeated, earlier_result, late_attributes,
};
use crate::digest::{self, Algorithm, ChecksumKind, announce};
use crate::encryption;
use crate::errors::{OperationContext, WithElements, fault, no_such_upload, not_implemented};
use crate::gateway::Gateway;
use crate::meta::{
    attributes_of, e_tag, encode_metadata_for, keep_storage_class, refuse_text_of_parts,
    refuse_unsupported, text,
};
use crate::routes::Query;
use crate::tags::Tags;
use crate::uploads::{NewUpload, Part as StoredPart, Upload, UploadName, choose};
use crate::values::{part_number, size};
use crate::verify::{Checks, VerifiedBody, invalid_checksum};

/// Returns the part and the upload that a request names.
pub(super) fn part_of_upload(uri: &Uri) -> S3Result<(u16, String)> {
    let query = Query::new(uri);
    let number = part_number(&query)?.ok_or_else(|| {
        let message = "A part needs partNumber and uploadId.";
        fault(S3ErrorCode::InvalidRequest, message)
    })?;
    Ok((number, query.text("uploadId").to_owned()))
}

pub(crate) async fn create(
    gateway: &Gateway,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("create upload of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let (algorithm, kind) = checksums::of_upload(&headers)?.unzip();
    let admission = gateway.uploads.admit_upload(doing).await?;
    let mut attributes = attributes_of(&headers)?;
    refuse_text_of_parts(&bucket, &attributes)?;
    encode_metadata_for(&bucket, &mut attributes)?;
    keep_storage_class(&headers, &bucket, &mut attributes);
    let response = encryption::keep(gateway, &bucket, &headers, &mut attributes)?;
    let public = acl::public_by_headers(&headers)?;
    acl::keep(&bucket, public == Some(true), &mut attributes)?;
    let tags = Tags::from_headers(&headers)?.keep(&bucket, &mut attributes)?;
    let new = NewUpload {
        attributes,
        tags,
        algorithm,
        full_object: kind == Some(ChecksumKind::FullObject),
    };
    let target = (&bucket, &path);
    let created = gateway.uploads.create(target, new, admission, doing);
    let id = created.await?;
    let output = CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id),
        checksum_algorithm: algorithm.map(checksum_algorithm),
        checksum_type: kind.map(checksum_type),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

pub(crate) async fn upload(
    gateway: &Gateway,
    request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let context = context(&request)?;
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let doing = OperationContext::new("upload part of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    if bucket.gathers_parts() {
        context.hold_memory();
    }
    refuse_unsupported(&headers)?;
    encryption::refuse(&headers)?;
    let (number, upload) = part_of_upload(&uri)?;
    let target = gateway.uploads.target(upload, doing).await?;
    let checks = Checks::announced(&headers, &context)?
        .with_checksum(target.algorithm())?
        .with_md5(gateway.wants_md5(&bucket));
    let body = input.body.unwrap_or_else(|| s3s::Body::empty().into());
    let Some(length) = body_length(&body, &headers) else {
        let message = "A part needs Content-Length or x-amz-decoded-content-length.";
        return Err(fault(S3ErrorCode::MissingContentLength, message));
    };
    let body = part_body(VerifiedBody::new(
        body,
        checks,
        Some(length),
        Arc::clone(&context),
    ));
    let id = target.origin_id();
    let stored = match bucket.put_part(&path, id, number, length, body).await {
        Ok(stored) => stored,
        Err(StoreError::NotFound { .. }) => return Err(gateway.uploads.target_gone(&target).await),
        Err(error) => return Err(write_error(&context, doing, &error)),
    };
    let checksum = context.verified.get().cloned();
    let mut response = HeaderMap::new();
    if let Some(checksum) = &checksum {
        announce(&mut response, checksum);
        response.remove("x-amz-checksum-type");
    }
    let part = StoredPart {
        e_tag: stored,
        md5: context.md5.get().cloned(),
        size: length,
        checksum,
        modified: Utc::now(),
    };
    let output = UploadPartOutput {
        e_tag: Some(e_tag(part.client_e_tag())),
        ..Default::default()
    };
    gateway.uploads.keep_part(target, number, part).await?;
    Ok(S3Response::with_headers(output, response))
}

/// Compares the client's checksum of the object with the one computed from its parts.
fn check_whole(headers: &HeaderMap, computed: Option<&digest::Checksum>) -> S3Result<()> {
    for algorithm in Algorithm::ALL {
        let Some(announced) = text(headers, algorithm.header()) else {
            continue;
        };
        // A composite value may have its number of parts or not.
        let plain = |value: &str| value.split('-').next().unwrap_or_default().to_owned();
        if algorithm.decode(&plain(announced)).is_none() {
            return Err(invalid_checksum(algorithm));
        }
        match computed.filter(|computed| computed.algorithm == algorithm) {
            Some(computed) if plain(&computed.value) == plain(announced) => {}
            Some(_) => {
                let message = format!(
                    "The {} you specified does not match the parts.",
                    algorithm.header()
                );
                return Err(fault(S3ErrorCode::BadDigest, message));
            }
            None => {
                let message = format!(
                    "{} cannot be verified: not every part came with one.",
                    algorithm.header()
                );
                return Err(fault(S3ErrorCode::InvalidRequest, message));
            }
        }
    }
    Ok(())
}

/// Compares the client's size of the object with the sum of its parts.
fn check_size(headers: &HeaderMap, chosen: &[(UploadedPart, &StoredPart)]) -> S3Result<()> {
    const SIZE: &str = "x-amz-mp-object-size";
    let computed: u64 = chosen.iter().map(|(_, part)| part.size).sum();
    match size(headers, SIZE)? {
        Some(announced) if announced != computed => {
            let message = format!(
                "The provided '{SIZE}' header does not match what was computed: the parts have {computed} bytes together."
            );
            Err(fault(S3ErrorCode::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

/// Properties of the object that a completion announces in its headers.
struct ExpectedObject<'a>(&'a HeaderMap);

impl ExpectedObject<'_> {
    /// Compares it with the parts, and returns the checksum of the object if all parts have one.
    fn check(
        &self,
        upload: &Upload,
        chosen: &[(UploadedPart, &StoredPart)],
    ) -> S3Result<Option<digest::Checksum>> {
        let headers = self.0;
        check_size(headers, chosen)?;
        let checksums: Vec<_> = chosen
            .iter()
            .map(|(_, part)| (part.checksum.as_ref(), part.size))
            .collect();
        let algorithm = checksums
            .first()
            .and_then(|(checksum, _)| checksum.map(|checksum| checksum.algorithm));
        let kind = checksums::of_completion(headers, upload.checksum_kind(), algorithm)?;
        let computed = digest::combine(&checksums, kind);
        check_whole(headers, computed.as_ref())?;
        Ok(computed)
    }

    /// Completes an upload of a cluster. Returns the ETag of the object, and its checksum if it is known here.
    async fn complete(
        &self,
        (bucket, path): (&Bucket, &Path),
        found: Found,
        doing: OperationContext<'_>,
    ) -> S3Result<(Option<String>, Option<digest::Checksum>)> {
        let stored = match found {
            Found::Completed(earlier) => return Ok((earlier.e_tag, None)),
            Found::Open(stored) => stored,
        };
        let (upload, chosen) = stored.chosen()?;
        let checksum = self.check(upload, &chosen)?;
        let condition = WriteCondition::find(bucket, path, self.0, doing).await?;
        let completed = stored.complete(condition.mode.clone(), doing).await?;
        let completed = completed.map_err(|error| condition.error(doing, &error))?;
        Ok((completed.e_tag, checksum.filter(|_| !completed.is_earlier)))
    }
}

pub(crate) async fn complete(
    gateway: &Gateway,
    request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let url = gateway.url(&request.uri, &request.headers);
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let id = Query::new(&uri).text("uploadId").to_owned();
    let doing = OperationContext::new("complete upload of", &input.bucket, &input.key);
    let name = UploadName::of(doing, id.clone());
    let requested = input
        .multipart_upload
        .and_then(|upload| upload.parts)
        .unwrap_or_default();
    let completion = complete_named(gateway, (doing, name), &headers, requested);
    let (stored, checksum) = completion.await.map_err(|error| of_upload(error, &id))?;
    let mut output = CompleteMultipartUploadOutput {
        location: Some(url),
        e_tag: stored.as_deref().map(e_tag),
        bucket: Some(doing.bucket.to_owned()),
        key: Some(doing.key.to_owned()),
        ..Default::default()
    };
    if let Some(checksum) = checksum {
        output.checksum_type = Some(checksum_type(checksum.kind()));
        set_checksum!(output, checksum);
    }
    Ok(S3Response::new(output))
}

/// Names the upload in errors about its parts.
fn of_upload(error: S3Error, id: &str) -> S3Error {
    match error.code() {
        S3ErrorCode::InvalidPart | S3ErrorCode::InvalidPartOrder => error.with([("UploadId", id)]),
        _ => error,
    }
}

/// Completes an upload. Returns the ETag of the object, and its checksum if it is known.
async fn complete_named(
    gateway: &Gateway,
    (doing, name): (OperationContext<'_>, UploadName),
    headers: &HeaderMap,
    requested: Vec<CompletedPart>,
) -> S3Result<(Option<String>, Option<digest::Checksum>)> {
    let (bucket, path) = gateway.target(doing)?;
    let expected = ExpectedObject(headers);
    if let Some(cluster) = gateway.uploads.cluster() {
        let sealed = cluster.open(name)?;
        let job = ClusterJob::new(cluster, (bucket.clone(), path.clone()), sealed, requested);
        let found = job.find(&gateway.uploads, doing).await?;
        return expected.complete((&bucket, &path), found, doing).await;
    }
    let (completion, upload) = match gateway.uploads.complete(&name) {
        Ok(found) => found,
        Err(refusal) => {
            let earlier = earlier_result(&bucket, &path, &name.id, &requested).await;
            let (e_tag, checksum) = earlier.ok_or(refusal)?;
            return Ok((Some(e_tag), checksum));
        }
    };
    let chosen = choose(&upload, &requested)?;
    let computed = expected.check(&upload, &chosen)?;
    let size = chosen.iter().map(|(_, part)| part.size).sum();
    let attributes = late_attributes(&chosen, computed.as_ref(), &name.id);
    let parts: Vec<_> = chosen.into_iter().map(|(part, _)| part).collect();
    let job = CompletionJob {
        completion,
        token: CompletionToken::new(&upload, &parts, size),
        bucket,
        path,
        id: name.id,
        parts,
        attributes,
    };
    let result = match job.repeated(doing).await? {
        Repeated::Done(result) => result,
        Repeated::Pending(job) => {
            let id = job.id.clone();
            let condition = WriteCondition::find(&job.bucket, &job.path, headers, doing).await?;
            let result = job.run(condition.mode.clone()).await?;
            result.map_err(|error| match error {
                StoreError::NotFound { .. } => no_such_upload(&id),
                error => condition.error(doing, &error),
            })?
        }
    };
    Ok((result.e_tag, computed))
}

pub(crate) async fn abort(
    gateway: &Gateway,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    const INITIATED: &str = "x-amz-if-match-initiated-time";
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    if headers.contains_key(INITIATED) {
        let message = format!("The header {INITIATED} is not supported here; leave it out.");
        return Err(not_implemented(message).with([("Header", INITIATED)]));
    }
    let id = Query::new(&uri).text("uploadId").to_owned();
    let doing = OperationContext::new("abort upload of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    let uploads = &gateway.uploads;
    uploads.abort(&bucket, &path, id, doing).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}
