//! Reads: GetObject, HeadObject, GetObjectAttributes.

use std::sync::Arc;

use bywash::{Bucket, PieceByPiece, ReadInfo};
use futures::TryStreamExt;
use http::header::{self, CONTENT_RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use s3s::dto::*;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::set_checksum;
use crate::body::RequestContext;
use crate::conditions::{Conditions, Unmet, meets_if_range};
use crate::errors::{
    OperationContext, custom, fault, from_store, invalid_range, not_implemented,
    precondition_failed,
};
use crate::gateway::Gateway;
use crate::keys::path_of;
use crate::meta::{
    check_version, e_tag, kept_checksum, object_headers, text, timestamp, user_metadata, validators,
};

/// A validated read of an object.
struct ReadRequest<'a> {
    bucket: Bucket,
    path: Path,
    conditions: Conditions,
    doing: OperationContext<'a>,
}

impl<'a> ReadRequest<'a> {
    fn new(
        gateway: &Gateway,
        doing: OperationContext<'a>,
        headers: &HeaderMap,
        version: Option<&str>,
    ) -> S3Result<Self> {
        let bucket = gateway.bucket(doing.bucket)?;
        let path = path_of(doing.key)?;
        check_version(version, doing.key)?;
        if text(headers, "x-amz-server-side-encryption-customer-algorithm").is_some() {
            return Err(not_implemented(
                "Customer keys are not supported here; read without them.",
            ));
        }
        Ok(Self {
            bucket,
            path,
            conditions: Conditions::from_headers(headers, ""),
            doing,
        })
    }

    fn check(&self, meta: &ObjectMeta) -> S3Result<()> {
        self.conditions.check(meta).map_err(|unmet| match unmet {
            Unmet::Failed => precondition_failed(self.doing),
            Unmet::NotModified => {
                let mut error = S3Error::new(S3ErrorCode::NotModified);
                error.set_headers(validators(meta));
                error
            }
        })
    }

    /// Reads `range`, or the whole object if it is not the version of If-Range. Returns which of the two.
    async fn get_if(
        &self,
        mut range: Option<Range>,
        if_range: Option<&str>,
    ) -> S3Result<(GetResult, Option<Range>)> {
        let if_range = if_range.filter(|_| range.is_some());
        if let Some(version) = if_range {
            let found = self.bucket.head(&self.path).await;
            let meta = found.map_err(|error| from_store(self.doing, &error))?;
            range = range.filter(|_| meets_if_range(&meta, version));
        }
        let options = GetOptions {
            range: range.map(get_range),
            ..GetOptions::default()
        };
        let result = self.get(options).await?;
        match if_range {
            // The object was replaced in between.
            Some(version) if range.is_some() && !meets_if_range(&result.meta, version) => {
                Ok((self.get(GetOptions::default()).await?, None))
            }
            _ => Ok((result, range)),
        }
    }

    async fn get(&self, options: GetOptions) -> S3Result<GetResult> {
        // Conditions are checked here, against unquoted ETags. First against the known version, so that a 304 fetches
        // no data; then against the version read, which may be newer.
        if !self.conditions.is_empty() {
            let meta = self
                .bucket
                .head(&self.path)
                .await
                .map_err(|error| from_store(self.doing, &error))?;
            self.check(&meta)?;
        }
        let mut options = options;
        // The connection drops each piece once the socket has accepted it.
        options.extensions.insert(PieceByPiece);
        let result = self
            .bucket
            .get_opts(&self.path, options)
            .await
            .map_err(|error| from_store(self.doing, &error))?;
        self.check(&result.meta)?;
        Ok(result)
    }
}

/// Every object has one part: part 1 is the whole object.
fn part_range(part: Option<i32>, range: Option<Range>) -> S3Result<Option<Range>> {
    match (part, range) {
        (None, range) => Ok(range),
        (Some(_), Some(_)) => {
            let message = "Range and partNumber cannot be given together; give one.";
            Err(fault(S3ErrorCode::InvalidRequest, message))
        }
        (Some(1), None) => Ok(Some(Range::Int {
            first: 0,
            last: None,
        })),
        (Some(other), None) => {
            let message =
                format!("The part {other} does not exist: the object is read as one part.");
            Err(custom(
                "InvalidPartNumber",
                StatusCode::RANGE_NOT_SATISFIABLE,
                message,
            ))
        }
    }
}

fn get_range(range: Range) -> GetRange {
    match range {
        Range::Int {
            first,
            last: Some(last),
        } => GetRange::Bounded(first..last.saturating_add(1)),
        Range::Int { first, last: None } => GetRange::Offset(first),
        Range::Suffix { length } => GetRange::Suffix(length),
    }
}

fn content_range(headers: &mut HeaderMap, range: &std::ops::Range<u64>, size: u64) {
    let last = range.end.saturating_sub(1);
    if let Ok(value) = HeaderValue::try_from(format!("bytes {}-{last}/{size}", range.start)) {
        headers.insert(CONTENT_RANGE, value);
    }
}

/// Applies header overrides of the query (`response-content-type` and others).
fn override_headers(response: &mut HeaderMap, query: Option<&str>) {
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let name = match name.as_ref() {
            "response-cache-control" => header::CACHE_CONTROL,
            "response-content-disposition" => header::CONTENT_DISPOSITION,
            "response-content-encoding" => header::CONTENT_ENCODING,
            "response-content-language" => header::CONTENT_LANGUAGE,
            "response-content-type" => header::CONTENT_TYPE,
            "response-expires" => header::EXPIRES,
            _ => continue,
        };
        // Ignores values that are invalid in a header.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.insert(name, value);
        }
    }
}

/// Records the cache outcome in the context of the request.
fn note_cache(request: &http::Extensions, result: &GetResult) {
    let context = request.get::<Arc<RequestContext>>();
    if let (Some(context), Some(info)) = (context, result.extensions.get::<ReadInfo>()) {
        context.note_cache(info.outcome);
    }
}

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let S3Request {
        input,
        headers,
        uri,
        extensions,
        ..
    } = request;
    let doing = OperationContext {
        operation: "read",
        bucket: &input.bucket,
        key: &input.key,
    };
    let request = ReadRequest::new(gateway, doing, &headers, input.version_id.as_deref())?;
    let range = part_range(input.part_number, input.range)?;
    if range == Some(Range::Suffix { length: 0 }) {
        let meta = request
            .bucket
            .head(&request.path)
            .await
            .map_err(|error| from_store(doing, &error))?;
        return Err(invalid_range(doing, meta.size));
    }
    let (result, range) = match request.get_if(range, text(&headers, "if-range")).await {
        // Part 1 of an empty object is all of it.
        Err(error) if input.part_number.is_some() && *error.code() == S3ErrorCode::InvalidRange => {
            (request.get(GetOptions::default()).await?, None)
        }
        other => other?,
    };
    let size = result.meta.size;
    if range.is_some() && size == 0 && input.part_number.is_none() {
        return Err(invalid_range(doing, 0));
    }
    let whole = result.range == (0..size);
    let checksums = input
        .checksum_mode
        .as_ref()
        .is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    note_cache(&extensions, &result);
    let mut response = object_headers(&result, checksums && whole);
    if range.is_some() && size > 0 {
        content_range(&mut response, &result.range, size);
    }
    override_headers(&mut response, uri.query());
    let output = GetObjectOutput {
        content_length: i64::try_from(result.range.end - result.range.start).ok(),
        metadata: user_metadata(&result.attributes),
        // The engine's `Bytes` become frames of the response without a copy.
        body: Some(
            Body::http_body_unsync(StreamBody::new(result.into_stream().map_ok(Frame::data)))
                .into(),
        ),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

pub(crate) async fn head(
    gateway: &Gateway,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let S3Request {
        input,
        headers,
        uri,
        extensions,
        ..
    } = request;
    let doing = OperationContext {
        operation: "head",
        bucket: &input.bucket,
        key: &input.key,
    };
    let request = ReadRequest::new(gateway, doing, &headers, input.version_id.as_deref())?;
    let range = part_range(input.part_number, input.range)?;
    let result = request
        .get(GetOptions {
            head: true,
            ..GetOptions::default()
        })
        .await?;
    let size = result.meta.size;
    let checked = match range.filter(|_| size > 0 || input.part_number.is_none()) {
        None => None,
        Some(range) => Some(range.check(size).map_err(|_| invalid_range(doing, size))?),
    };
    let checksums = input
        .checksum_mode
        .as_ref()
        .is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
    let whole = checked.as_ref().is_none_or(|range| *range == (0..size));
    note_cache(&extensions, &result);
    let mut response = object_headers(&result, checksums && whole);
    let mut length = size;
    if let Some(range) = checked {
        content_range(&mut response, &range, size);
        length = range.end - range.start;
    }
    override_headers(&mut response, uri.query());
    let output = HeadObjectOutput {
        content_length: i64::try_from(length).ok(),
        metadata: user_metadata(&result.attributes),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

pub(crate) async fn attributes(
    gateway: &Gateway,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext {
        operation: "read attributes of",
        bucket: &input.bucket,
        key: &input.key,
    };
    let request = ReadRequest::new(gateway, doing, &headers, input.version_id.as_deref())?;
    let result = request
        .get(GetOptions {
            head: true,
            ..GetOptions::default()
        })
        .await?;
    let requested = |name: &str| {
        let mut names = input
            .object_attributes
            .iter()
            .flat_map(|list| list.as_str().split(','));
        names.any(|requested| requested.trim() == name)
    };
    let checksum = kept_checksum(&result.attributes)
        .filter(|_| requested(ObjectAttributes::CHECKSUM))
        .map(|kept| {
            let mut checksum = Checksum {
                checksum_type: Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
                ..Default::default()
            };
            set_checksum!(checksum, kept);
            checksum
        });
    let stored = result
        .meta
        .e_tag
        .as_deref()
        .filter(|_| requested(ObjectAttributes::ETAG));
    let size = requested(ObjectAttributes::OBJECT_SIZE).then_some(result.meta.size);
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum,
        e_tag: stored.map(e_tag),
        last_modified: Some(timestamp(result.meta.last_modified)),
        object_size: size.and_then(|size| i64::try_from(size).ok()),
        storage_class: requested(ObjectAttributes::STORAGE_CLASS)
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        ..Default::default()
    }))
}

#[cfg(test)]
mod tests;
