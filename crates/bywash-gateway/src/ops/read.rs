//! Reads: GetObject, HeadObject.

use std::borrow::Cow;
use std::sync::Arc;

use bywash::{Bucket, MayBeStale, PieceByPiece, ReadInfo};
use futures::TryStreamExt;
use http::header;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use http_body::Frame;
use http_body_util::StreamBody;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt,
};
use s3s::dto::*;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::auth::{Unsigned, denied};
use crate::body::RequestContext;
use crate::conditions::{Conditions, Unmet, meets_if_range};
use crate::digest::{Checksum, announce};
use crate::encryption;
use crate::errors::{
    OperationContext, WithElements, custom, fault, from_store, invalid_range, not_implemented,
    precondition_failed,
};
use crate::gateway::Gateway;
use crate::keys::stored_path;
use crate::limits::MAX_COPY_ATTEMPTS;
use crate::meta::{check_version, not_modified, object_headers, text};
use crate::object_parts::ObjectParts;
use crate::public_access::is_public;
use crate::range::{content_range, requested_range};
use crate::routes::Query;
use crate::values::{part_number, wants_checksum};

/// A validated read of an object.
pub(super) struct ReadRequest<'a> {
    bucket: Bucket,
    path: Path,
    conditions: Conditions,
    /// The query, which may override headers of the response.
    query: Option<&'a str>,
    doing: OperationContext<'a>,
}

impl<'a> ReadRequest<'a> {
    pub(super) fn new(
        gateway: &Gateway,
        doing: OperationContext<'a>,
        headers: &HeaderMap,
        uri: &'a Uri,
    ) -> S3Result<Self> {
        let bucket = gateway.bucket(doing.bucket)?;
        let path = stored_path(&bucket, doing.key)?;
        check_version(Query::new(uri).first("versionId"), doing.key)?;
        encryption::refuse(headers)?;
        if text(headers, "x-amz-server-side-encryption-customer-algorithm").is_some() {
            return Err(not_implemented(
                "Customer keys are not supported here; read without them.",
            ));
        }
        Ok(Self {
            bucket,
            path,
            conditions: Conditions::from_headers(headers, ""),
            query: uri.query(),
            doing,
        })
    }

    fn check(&self, found: &GetResult) -> S3Result<()> {
        let met = self.conditions.check(&found.meta);
        met.map_err(|unmet| match unmet {
            Unmet::Failed => precondition_failed(self.doing),
            Unmet::NotModified => {
                let mut whole = object_headers(found, false);
                override_headers(&mut whole, self.query);
                let mut error = S3Error::new(S3ErrorCode::NotModified);
                error.set_headers(not_modified(&whole));
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

    /// Rejects an unsigned request for an object that is not public, before any of its bytes is read.
    async fn check_public(&self, extensions: &http::Extensions) -> S3Result<()> {
        if !is_by_object(extensions) {
            return Ok(());
        }
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        match self.bucket.get_opts(&self.path, head).await {
            Ok(found) => check_public(extensions, &found),
            // The response does not show whether the object exists.
            Err(_) => Err(denied(NOT_PUBLIC)),
        }
    }

    /// Reads a part, of one version.
    async fn get_part(&self, number: u16) -> S3Result<(GetResult, PartRange)> {
        let mut attempts = 0..MAX_COPY_ATTEMPTS;
        loop {
            let found = self.head().await?;
            let part = PartRange::find(&found, number)?;
            let range = Some(part.range.clone()).filter(|range| !range.is_empty());
            let mut options = GetOptions {
                // An empty part has no bytes to read.
                head: range.is_none(),
                range: range.map(GetRange::Bounded),
                if_match: found.meta.e_tag,
                ..GetOptions::default()
            };
            options.extensions.insert(PieceByPiece);
            options.extensions.insert(MayBeStale);
            match self.bucket.get_opts(&self.path, options).await {
                Ok(mut result) => {
                    result.range = part.range.clone();
                    return Ok((result, part));
                }
                // Replaced since the part was found.
                Err(StoreError::Precondition { .. }) if attempts.next().is_some() => {}
                Err(error) => return Err(from_store(self.doing, &error)),
            }
        }
    }

    pub(super) async fn head(&self) -> S3Result<GetResult> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        self.get(options).await
    }

    /// Reads a range, or the whole object without one. Returns whether the response is a range.
    async fn get_range(
        &self,
        range: Option<Range>,
        if_range: Option<&str>,
    ) -> S3Result<(GetResult, bool)> {
        if range == Some(Range::Suffix { length: 0 }) {
            let found = self.bucket.head(&self.path).await;
            let meta = found.map_err(|error| from_store(self.doing, &error))?;
            return Err(invalid_range(self.doing, meta.size));
        }
        let (result, range) = self.get_if(range, if_range).await?;
        if range.is_some() && result.meta.size == 0 {
            return Err(invalid_range(self.doing, 0));
        }
        Ok((result, range.is_some()))
    }

    async fn get(&self, options: GetOptions) -> S3Result<GetResult> {
        // Conditions are checked here, against unquoted ETags. First against the known version, so that a 304 fetches
        // no data; then against the version read, which may be newer.
        let mut options = options;
        options.extensions.insert(MayBeStale);
        if !self.conditions.is_empty() {
            let head = GetOptions {
                head: true,
                extensions: options.extensions.clone(),
                ..GetOptions::default()
            };
            let found = self.bucket.get_opts(&self.path, head).await;
            let found = found.map_err(|error| from_store(self.doing, &error))?;
            self.check(&found)?;
        }
        // The connection drops each piece once the socket has accepted it.
        options.extensions.insert(PieceByPiece);
        let result = self
            .bucket
            .get_opts(&self.path, options)
            .await
            .map_err(|error| from_store(self.doing, &error))?;
        self.check(&result)?;
        Ok(result)
    }
}

const NOT_PUBLIC: &str = "A signature is required: the object is not public.";

fn is_by_object(extensions: &http::Extensions) -> bool {
    let unsigned = extensions.get::<Unsigned>();
    unsigned.is_some_and(|unsigned| unsigned.by_object)
}

/// Rejects an unsigned request for a version that is not public.
fn check_public(extensions: &http::Extensions, found: &GetResult) -> S3Result<()> {
    if is_by_object(extensions) && !is_public(&found.attributes) {
        Err(denied(NOT_PUBLIC))
    } else {
        Ok(())
    }
}

/// A part of an object: its bytes, and the number of parts if the object was uploaded in parts.
struct PartRange {
    range: std::ops::Range<u64>,
    count: Option<usize>,
    /// Digest of the part, if the object was uploaded in parts.
    checksum: Option<Checksum>,
}

impl PartRange {
    /// Finds the part `number`. An object that was not uploaded in parts has one.
    fn find(found: &GetResult, number: u16) -> S3Result<Self> {
        let size = found.meta.size;
        let parts = ObjectParts::kept(&found.attributes, size);
        let count = parts.as_ref().map(ObjectParts::len);
        let found = match parts {
            Some(parts) => parts.part(number).map(|part| (part.range, part.checksum)),
            None => (number == 1).then_some((0..size, None)),
        };
        let found = found.map(|(range, checksum)| Self {
            range,
            count,
            checksum,
        });
        found.ok_or_else(|| {
            let message = format!("The object has no part {number}.");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            custom("InvalidPartNumber", status, message).with([
                ("PartNumberRequested", number.to_string()),
                ("ActualPartCount", count.unwrap_or(1).to_string()),
            ])
        })
    }
}

/// Part of an object that a request reads.
struct WantedBytes {
    range: Option<Range>,
    part: Option<u16>,
    checksum: bool,
}

impl WantedBytes {
    fn of(headers: &HeaderMap, query: &Query<'_>) -> S3Result<Self> {
        // Together in any form, as in S3.
        if headers.contains_key(header::RANGE) && query.has("partNumber") {
            let message = "Range and partNumber cannot be given together; give one.";
            return Err(fault(S3ErrorCode::InvalidRequest, message));
        }
        Ok(Self {
            range: requested_range(headers),
            part: part_number(query)?,
            checksum: wants_checksum(headers)?,
        })
    }
}

/// Adds the number of parts, and the checksum of the part if it is wanted, of an object that was uploaded in parts.
fn part_headers(headers: &mut HeaderMap, part: &PartRange, with_checksum: bool) {
    let Some(count) = part.count else {
        return;
    };
    headers.insert("x-amz-mp-parts-count", HeaderValue::from(count));
    if with_checksum && let Some(checksum) = &part.checksum {
        announce(headers, checksum);
        // The type is one of the object's checksum.
        headers.remove("x-amz-checksum-type");
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

/// The header overrides of a query (`response-content-type` and others).
fn overrides(query: Option<&str>) -> impl Iterator<Item = (HeaderName, Cow<'_, str>)> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.filter_map(|(name, value)| {
        let name = match name.as_ref() {
            "response-cache-control" => header::CACHE_CONTROL,
            "response-content-disposition" => header::CONTENT_DISPOSITION,
            "response-content-encoding" => header::CONTENT_ENCODING,
            "response-content-language" => header::CONTENT_LANGUAGE,
            "response-content-type" => header::CONTENT_TYPE,
            "response-expires" => header::EXPIRES,
            _ => return None,
        };
        Some((name, value))
    })
}

/// Rejects an unsigned request with header overrides, as S3 does: otherwise a link could make a
/// page of a public object that is not a page.
fn refuse_unsigned_overrides(extensions: &http::Extensions, query: Option<&str>) -> S3Result<()> {
    if extensions.get::<Unsigned>().is_none() || overrides(query).next().is_none() {
        return Ok(());
    }
    let message = "Request specific response headers cannot be used for anonymous GET requests; sign the request, or leave them out.";
    Err(fault(S3ErrorCode::InvalidRequest, message))
}

/// Applies the header overrides of a query.
fn override_headers(response: &mut HeaderMap, query: Option<&str>) {
    let mut seen = Vec::new();
    for (name, value) in overrides(query) {
        if seen.contains(&name) {
            // The first counts.
            continue;
        }
        seen.push(name.clone());
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
    let query = Query::new(&uri);
    let request = ReadRequest::new(gateway, doing, &headers, &uri)?;
    let wanted = WantedBytes::of(&headers, &query)?;
    refuse_unsigned_overrides(&extensions, uri.query())?;
    request.check_public(&extensions).await?;
    let (result, ranged, part) = match wanted.part {
        Some(number) => {
            let (result, part) = request.get_part(number).await?;
            (result, !part.range.is_empty(), Some(part))
        }
        None => {
            let if_range = text(&headers, "if-range");
            let (result, ranged) = request.get_range(wanted.range, if_range).await?;
            (result, ranged, None)
        }
    };
    // It may have been replaced since.
    check_public(&extensions, &result)?;
    let size = result.meta.size;
    let is_part = part.as_ref().is_some_and(|part| part.count.is_some());
    let whole = result.range == (0..size) && !is_part;
    note_cache(&extensions, &result);
    let mut response = object_headers(&result, wanted.checksum && whole);
    if ranged {
        content_range(&mut response, &result.range, size);
    }
    if let Some(part) = &part {
        part_headers(&mut response, part, wanted.checksum);
    }
    override_headers(&mut response, uri.query());
    let output = GetObjectOutput {
        content_length: i64::try_from(result.range.end - result.range.start).ok(),
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
    let query = Query::new(&uri);
    let request = ReadRequest::new(gateway, doing, &headers, &uri)?;
    let wanted = WantedBytes::of(&headers, &query)?;
    refuse_unsigned_overrides(&extensions, uri.query())?;
    request.check_public(&extensions).await?;
    let result = request.head().await?;
    check_public(&extensions, &result)?;
    let size = result.meta.size;
    let part = match wanted.part {
        Some(number) => Some(PartRange::find(&result, number)?),
        None => None,
    };
    let is_part = part.as_ref().is_some_and(|part| part.count.is_some());
    let if_range = text(&headers, "if-range");
    let is_current = if_range.is_none_or(|version| meets_if_range(&result.meta, version));
    let checked = match (&part, wanted.range.filter(|_| is_current)) {
        (Some(part), _) => Some(part.range.clone()),
        (None, None) => None,
        (None, Some(range)) => Some(range.check(size).map_err(|_| invalid_range(doing, size))?),
    };
    let whole = checked.as_ref().is_none_or(|range| *range == (0..size)) && !is_part;
    note_cache(&extensions, &result);
    let mut response = object_headers(&result, wanted.checksum && whole);
    let mut length = size;
    if let Some(range) = checked {
        if !range.is_empty() {
            content_range(&mut response, &range, size);
        }
        length = range.end - range.start;
    }
    if let Some(part) = &part {
        part_headers(&mut response, part, wanted.checksum);
    }
    override_headers(&mut response, uri.query());
    let output = HeadObjectOutput {
        content_length: i64::try_from(length).ok(),
        ..Default::default()
    };
    Ok(S3Response::with_headers(output, response))
}

#[cfg(test)]
mod tests;
