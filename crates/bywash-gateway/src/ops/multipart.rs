//! Multipart uploads: create, parts, lists, complete, abort.

use std::sync::Arc;

use bywash::{Bucket, UploadedPart};
use chrono::Utc;
use http::HeaderMap;
use object_store::Error as StoreError;
use object_store::path::Path;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::set_checksum;
use super::write::{WriteCondition, body_length, part_body, write_error};
use super::{acl, context, trailers};
use crate::completion::{
    ClusterJob, CompletionJob, CompletionToken, Found, Repeated, earlier_result, late_attributes,
};
use crate::digest::{self, Algorithm, announce};
use crate::errors::{OperationContext, fault, no_such_upload};
use crate::gateway::Gateway;
use crate::meta::{
    attributes_of, e_tag, encode_metadata_for, keep_storage_class, refuse_text_for,
    refuse_unsupported, text,
};
use crate::tags::Tags;
use crate::uploads::{NewUpload, Part as StoredPart, Upload, UploadName, choose, part_number};
use crate::verify::{Checks, VerifiedBody, invalid_checksum};

fn full_object(algorithm: Option<Algorithm>, kind: Option<&ChecksumType>) -> bool {
    match kind.map(ChecksumType::as_str) {
        Some(kind) => kind == ChecksumType::FULL_OBJECT,
        None => algorithm == Some(Algorithm::Crc64Nvme),
    }
}

pub(super) fn checksum_type(full: bool) -> ChecksumType {
    ChecksumType::from_static(if full {
        ChecksumType::FULL_OBJECT
    } else {
        ChecksumType::COMPOSITE
    })
}

pub(super) fn checksum_algorithm(algorithm: Algorithm) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from_static(algorithm.name())
}

/// Returns the checksum algorithm that a request names.
pub(super) fn requested_algorithm(
    named: Option<&ChecksumAlgorithm>,
) -> S3Result<Option<Algorithm>> {
    let Some(named) = named else {
        return Ok(None);
    };
    let found = Algorithm::by_name(named.as_str()).ok_or_else(|| {
        let message = format!("The checksum algorithm {} is unknown.", named.as_str());
        fault(S3ErrorCode::InvalidRequest, message)
    });
    found.map(Some)
}

pub(crate) async fn create(
    gateway: &Gateway,
    request: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("create upload of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let algorithm = requested_algorithm(input.checksum_algorithm.as_ref())?;
    let full = full_object(algorithm, input.checksum_type.as_ref());
    if full && matches!(algorithm, Some(Algorithm::Sha1 | Algorithm::Sha256)) {
        let message = "A FULL_OBJECT checksum of an upload in parts must be a CRC.";
        return Err(fault(S3ErrorCode::InvalidRequest, message));
    }
    let admission = gateway.uploads.admit_upload(doing).await?;
    let mut attributes = attributes_of(&headers)?;
    refuse_text_for(&bucket, &attributes)?;
    encode_metadata_for(&bucket, &mut attributes)?;
    keep_storage_class(&headers, &bucket, &mut attributes);
    let public = acl::public_by_headers(&headers)?;
    acl::keep(&bucket, public == Some(true), &mut attributes)?;
    let tags = Tags::from_headers(&headers)?.keep(&bucket, &mut attributes)?;
    let new = NewUpload {
        attributes,
        tags,
        algorithm,
        full_object: full,
    };
    let target = (&bucket, &path);
    let created = gateway.uploads.create(target, new, admission, doing);
    let id = created.await?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id),
        checksum_algorithm: algorithm.map(checksum_algorithm),
        checksum_type: algorithm.map(|_| checksum_type(full)),
        ..Default::default()
    }))
}

pub(crate) async fn upload(
    gateway: &Gateway,
    request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let context = context(&request)?;
    let trailing_headers = trailers(&request);
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("upload part of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    refuse_unsupported(&headers)?;
    let number = part_number(input.part_number)?;
    let target = gateway.uploads.target(input.upload_id, doing).await?;
    let checks = Checks::announced(&headers, trailing_headers, &context)?
        .with_checksum(target.algorithm())
        .with_md5(gateway.wants_md5(&bucket));
    let body = input.body.unwrap_or_else(|| s3s::Body::empty().into());
    let Some(length) = body_length(&body, input.content_length) else {
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
                    "The {} you specified is not that of the parts.",
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
fn check_size(chosen: &[(UploadedPart, &StoredPart)], announced: Option<i64>) -> S3Result<()> {
    let size: u64 = chosen.iter().map(|(_, part)| part.size).sum();
    if announced.is_some_and(|announced| u64::try_from(announced) != Ok(size)) {
        let message = format!(
            "The parts have {size} bytes together, not the number in x-amz-mp-object-size."
        );
        return Err(fault(S3ErrorCode::InvalidRequest, message));
    }
    Ok(())
}

/// What a completion announces of the object.
struct ExpectedObject<'a> {
    headers: &'a HeaderMap,
    size: Option<i64>,
    kind: Option<&'a ChecksumType>,
}

impl ExpectedObject<'_> {
    /// Compares it with the parts, and returns the checksum of the object if all parts have one.
    fn check(
        &self,
        upload: &Upload,
        chosen: &[(UploadedPart, &StoredPart)],
    ) -> S3Result<Option<digest::Checksum>> {
        check_size(chosen, self.size)?;
        let checksums: Vec<_> = chosen
            .iter()
            .map(|(_, part)| (part.checksum.as_ref(), part.size))
            .collect();
        let algorithm = checksums
            .first()
            .and_then(|(checksum, _)| checksum.map(|checksum| checksum.algorithm));
        let full = upload.full_object || full_object(algorithm, self.kind);
        let computed = digest::combine(&checksums, full);
        check_whole(self.headers, computed.as_ref())?;
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
        let condition = WriteCondition::find(bucket, path, self.headers, doing).await?;
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
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext::new("complete upload of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    let name = UploadName::of(doing, input.upload_id);
    let requested = input
        .multipart_upload
        .and_then(|upload| upload.parts)
        .unwrap_or_default();
    if let Some(cluster) = gateway.uploads.cluster() {
        let expected = ExpectedObject {
            headers: &headers,
            size: input.mpu_object_size,
            kind: input.checksum_type.as_ref(),
        };
        let sealed = cluster.open(name)?;
        let job = ClusterJob::new(cluster, (bucket.clone(), path.clone()), sealed, requested);
        let found = job.find(&gateway.uploads, doing).await?;
        let (e_tag, checksum) = expected.complete((&bucket, &path), found, doing).await?;
        return Ok(completed(doing, url, e_tag.as_deref(), checksum));
    }
    let (completion, upload) = match gateway.uploads.complete(&name) {
        Ok(found) => found,
        Err(refusal) => {
            let earlier = earlier_result(&bucket, &path, &name.id, &requested).await;
            let (e_tag, checksum) = earlier.ok_or(refusal)?;
            return Ok(completed(doing, url, Some(&e_tag), checksum));
        }
    };
    let chosen = choose(&upload, &requested)?;
    let expected = ExpectedObject {
        headers: &headers,
        size: input.mpu_object_size,
        kind: input.checksum_type.as_ref(),
    };
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
            let condition = WriteCondition::find(&job.bucket, &job.path, &headers, doing).await?;
            let result = job.run(condition.mode.clone()).await?;
            result.map_err(|error| match error {
                StoreError::NotFound { .. } => no_such_upload(&id),
                error => condition.error(doing, &error),
            })?
        }
    };
    Ok(completed(doing, url, result.e_tag.as_deref(), computed))
}

fn completed(
    doing: OperationContext<'_>,
    url: String,
    stored: Option<&str>,
    checksum: Option<digest::Checksum>,
) -> S3Response<CompleteMultipartUploadOutput> {
    let mut output = CompleteMultipartUploadOutput {
        location: Some(url),
        e_tag: stored.map(e_tag),
        bucket: Some(doing.bucket.to_owned()),
        key: Some(doing.key.to_owned()),
        ..Default::default()
    };
    if let Some(checksum) = checksum {
        output.checksum_type = Some(ChecksumType::from_static(checksum.kind()));
        set_checksum!(output, checksum);
    }
    S3Response::new(output)
}

pub(crate) async fn abort(
    gateway: &Gateway,
    request: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let input = request.input;
    let doing = OperationContext::new("abort upload of", &input.bucket, &input.key);
    let (bucket, path) = gateway.target(doing)?;
    let uploads = &gateway.uploads;
    uploads
        .abort(&bucket, &path, input.upload_id, doing)
        .await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}
