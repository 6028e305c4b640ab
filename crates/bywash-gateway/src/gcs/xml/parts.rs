//! Uploads in parts by the XML API. They are the S3 endpoint's: begun by either protocol, kept in
//! one place, or in a cluster continued at any node.

use std::sync::Arc;

use bytes::Bytes;
use bywash::Bucket;
use chrono::Utc;
use futures::StreamExt;
use http::header::ETAG;
use http::{HeaderValue, Response, StatusCode};
use object_store::path::Path;
use object_store::{Error as StoreError, TagSet};
use s3s::Body;
use s3s::dto::{CompletedPart, ETag};
use serde::Deserialize;

use super::super::body::{BodyStream, CheckedBody};
use super::super::condition::{WriteCondition, named};
use super::super::endpoint::{Endpoint, GcsRequest};
use super::super::error::{GcsError, GcsResult};
use super::super::generation::Conditions;
use super::super::insert::{body_of, take_stated_hashes};
use super::super::metadata::GivenMetadata;
use super::super::read::head_written;
use super::document;
use super::object::{content_length, given, quoted_e_tag, version_headers};
use crate::completion::{
    self, ClusterJob, CompletionJob, CompletionToken, Found, Repeated, earlier_result,
};
use crate::digest::{self, Algorithm, ChecksumKind};
use crate::errors::{OperationContext, from_store, no_such_upload};
use crate::limits::{MAX_PART_NUMBER, MAX_XML_BYTES};
use crate::meta::{bare, encode_metadata_for, refuse_text_of_parts};
use crate::passing::PassedDigests;
use crate::uploads::{NewUpload, Part, UploadName, Uploads, choose, part_number};
use crate::xml::element;

/// Names the upload of a request.
fn name_of(request: &GcsRequest) -> UploadName {
    let id = request.query.get("uploadId").unwrap_or_default();
    UploadName::of(request.doing("upload"), id.to_owned())
}

pub(super) async fn create(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("create upload of");
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    let GivenMetadata { mut attributes, .. } = given(&request.parts.headers)?;
    refuse_text_of_parts(&bucket, &attributes)?;
    encode_metadata_for(&bucket, &mut attributes)?;
    let uploads = endpoint.uploads().await?;
    let new = NewUpload {
        attributes,
        tags: TagSet::default(),
        // Each part is checked as it passes, so the object's is known at its end.
        algorithm: Some(Algorithm::Crc32c),
        full_object: true,
    };
    let admission = uploads.admit_upload(doing).await?;
    let target = (&bucket, &path);
    let id = uploads.create(target, new, admission, doing).await?;
    let inner =
        element("Bucket", doing.bucket) + &element("Key", doing.key) + &element("UploadId", &id);
    Ok(document("InitiateMultipartUploadResult", &inner))
}

pub(super) async fn put(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("upload part of");
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    if bucket.gathers_parts() {
        request.context.hold_memory();
    }
    let number = request.query.number("partNumber")?.unwrap_or_default();
    let number = part_number(i32::try_from(number).unwrap_or_default())?;
    let length = content_length(&request.parts.headers);
    let length = length.ok_or_else(|| {
        GcsError::new(
            StatusCode::LENGTH_REQUIRED,
            "required",
            "A part needs a Content-Length.",
        )
    })?;
    let mut given = GivenMetadata {
        attributes: object_store::Attributes::new(),
        ..given(&request.parts.headers)?
    };
    take_stated_hashes(request, &mut given)?;
    let name = name_of(request);
    let uploads = endpoint.uploads().await?;
    let target = uploads.target(name.id, doing).await?;
    let md5 = endpoint.wants_md5(&bucket);
    let body = body_of(request);
    let doing = request.doing("upload part of");
    let checked = CheckedBody::new(body, &given, md5, &request.context)?;
    let passed = checked.passed();
    let stored = bucket.put_part(&path, target.origin_id(), number, length, checked.body);
    let stored = match stored.await {
        Ok(stored) => stored,
        Err(StoreError::NotFound { .. }) => return Err(uploads.target_gone(&target).await.into()),
        Err(error) => return Err(from_store(doing, &error).into()),
    };
    let passed = passed.get();
    let part = Part {
        e_tag: stored,
        md5: passed.and_then(|passed| passed.md5.clone()).filter(|_| md5),
        size: length,
        checksum: passed.and_then(|passed| passed.checksum.clone()),
        modified: Utc::now(),
    };
    let e_tag = format!("\"{}\"", part.client_e_tag());
    let hashes = hashes(passed);
    uploads.keep_part(target, number, part).await?;
    let mut response = Response::new(Body::empty());
    for hash in hashes {
        response.headers_mut().append("x-goog-hash", hash);
    }
    if let Ok(e_tag) = HeaderValue::try_from(e_tag) {
        response.headers_mut().insert(ETAG, e_tag);
    }
    Ok(response)
}

/// The digests of a part as headers, which Google's Python client compares.
fn hashes(passed: Option<&PassedDigests>) -> Vec<HeaderValue> {
    let crc32c = passed.and_then(|passed| passed.checksum.as_ref());
    let crc32c = crc32c.map(|checksum| format!("crc32c={}", checksum.value));
    let md5 = passed.and_then(PassedDigests::md5_hash);
    let md5 = md5.map(|md5| format!("md5={md5}"));
    let hashes = [crc32c, md5].into_iter().flatten();
    hashes
        .filter_map(|hash| HeaderValue::try_from(hash).ok())
        .collect()
}

/// The document of a completion.
#[derive(Debug, Deserialize)]
struct CompleteUpload {
    #[serde(default, rename = "Part")]
    parts: Vec<NamedPart>,
}

#[derive(Debug, Deserialize)]
struct NamedPart {
    #[serde(rename = "PartNumber")]
    number: i32,
    #[serde(rename = "ETag")]
    e_tag: String,
}

/// Reads the parts that a completion names. The caller has charged the document.
async fn named_parts(mut body: BodyStream) -> GcsResult<Vec<CompletedPart>> {
    let mut text = Vec::new();
    while let Some(piece) = body.next().await {
        let piece: Bytes = piece.map_err(|error| GcsError::invalid(error.to_string()))?;
        if text.len() + piece.len() > MAX_XML_BYTES {
            return Err(GcsError::invalid(format!(
                "The list of parts is longer than {MAX_XML_BYTES} bytes."
            )));
        }
        text.extend_from_slice(&piece);
    }
    let list: CompleteUpload = quick_xml::de::from_reader(text.as_slice())
        .map_err(|error| GcsError::invalid(format!("The list of parts is no XML: {error}.")))?;
    if list.parts.len() > usize::from(MAX_PART_NUMBER) {
        return Err(GcsError::invalid(format!(
            "The list has {} parts, more than {MAX_PART_NUMBER}.",
            list.parts.len()
        )));
    }
    let part = |part: NamedPart| CompletedPart {
        part_number: Some(part.number),
        e_tag: Some(ETag::Strong(bare(&part.e_tag).to_owned())),
        ..CompletedPart::default()
    };
    Ok(list.parts.into_iter().map(part).collect())
}

pub(super) async fn complete(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let doing = request.doing("complete upload of");
    // Three times: as text, as it is parsed, and as parts.
    let bytes = content_length(&request.parts.headers).unwrap_or(MAX_XML_BYTES as u64);
    let bytes = bytes.min(MAX_XML_BYTES as u64).saturating_mul(3);
    request.documents.charge_more(bytes, doing).await?;
    let requested = named_parts(body).await?;
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    let uploads = endpoint.uploads().await?;
    let (name, conditions) = (name_of(request), Conditions::of(&request.query)?);
    let target = (bucket.clone(), path.clone());
    let e_tag = match uploads.cluster() {
        None => complete_here(&uploads, target, &name, requested, conditions).await?,
        Some(cluster) => {
            let job = ClusterJob::new(cluster, target, cluster.open(name)?, requested);
            let found = job.find(&uploads, doing).await?;
            complete_in_cluster(found, (&bucket, &path), conditions, doing).await?
        }
    };
    let found = head_written(&bucket, &path, e_tag.as_deref(), doing).await?;
    Ok(completed_response(endpoint, request, &bucket, &found))
}

/// Completes an upload of this node's table. Returns the ETag of the object.
async fn complete_here(
    uploads: &Arc<Uploads>,
    (bucket, path): (Bucket, Path),
    name: &UploadName,
    requested: Vec<CompletedPart>,
    conditions: Conditions,
) -> GcsResult<Option<String>> {
    let doing = OperationContext::new("complete upload of", &name.bucket, &name.key);
    let (completion, upload) = match uploads.complete(name) {
        Ok(found) => found,
        Err(refusal) => {
            let earlier = earlier_result(&bucket, &path, &name.id, &requested).await;
            let (e_tag, _) = earlier.ok_or(refusal)?;
            return Ok(Some(e_tag));
        }
    };
    let chosen = choose(&upload, &requested)?;
    let checksums: Vec<_> = chosen
        .iter()
        .map(|(_, part)| (part.checksum.as_ref(), part.size))
        .collect();
    let computed = digest::combine(&checksums, ChecksumKind::FullObject);
    let size = chosen.iter().map(|(_, part)| part.size).sum();
    let attributes = completion::late_attributes(&chosen, computed.as_ref(), &name.id);
    let parts: Vec<_> = chosen.into_iter().map(|(part, _)| part).collect();
    let job = CompletionJob {
        completion,
        token: CompletionToken::new(&upload, &parts, size),
        bucket,
        path,
        id: name.id.clone(),
        parts,
        attributes,
    };
    let put = match job.repeated(doing).await? {
        Repeated::Done(put) => put,
        Repeated::Pending(job) => {
            let condition =
                WriteCondition::find(&job.bucket, &job.path, &conditions, doing).await?;
            let result = job.run(condition.mode.clone()).await?;
            result.map_err(|error| match error {
                StoreError::NotFound { .. } => no_such_upload(&name.id).into(),
                error => condition.error(doing, &error),
            })?
        }
    };
    Ok(put.e_tag)
}

/// Completes an upload of a cluster. Returns the ETag of the object.
async fn complete_in_cluster(
    found: Found,
    (bucket, path): (&Bucket, &Path),
    conditions: Conditions,
    doing: OperationContext<'_>,
) -> GcsResult<Option<String>> {
    let stored = match found {
        Found::Completed(earlier) => return Ok(earlier.e_tag),
        Found::Open(stored) => stored,
    };
    let condition = WriteCondition::find(bucket, path, &conditions, doing).await?;
    let completed = stored.complete(condition.mode.clone(), doing).await?;
    let completed = completed.map_err(|error| condition.error(doing, &error))?;
    Ok(completed.e_tag)
}

fn completed_response(
    endpoint: &Endpoint,
    request: &GcsRequest,
    bucket: &Bucket,
    found: &object_store::GetResult,
) -> Response<Body> {
    let doing = request.doing("complete upload of");
    let location = format!("{}/{}", endpoint.url(&request.parts), named(doing));
    let inner = element("Location", &location)
        + &element("Bucket", doing.bucket)
        + &element("Key", doing.key)
        + &element("ETag", &quoted_e_tag(&found.meta));
    let mut response = document("CompleteMultipartUploadResult", &inner);
    let headers = version_headers(bucket, found, None);
    response.headers_mut().extend(headers);
    response
}

pub(super) async fn abort(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("abort upload of");
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    let uploads: Arc<_> = endpoint.uploads().await?;
    let id = name_of(request).id;
    uploads.abort(&bucket, &path, id, doing).await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
