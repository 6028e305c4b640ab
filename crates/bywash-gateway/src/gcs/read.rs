//! Objects: metadata, bytes, deletion.

use bywash::{Bucket, EngineError, MayBeStale, PieceByPiece, ReadInfo};
use futures::TryStreamExt;
use http::header::{ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, VARY, WARNING};
use http::{Extensions, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt,
};
use s3s::Body;
use s3s::dto::Range;

use super::condition::{bound_error, current, named};
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::gunzip::{self, GUNZIP_BYTES, is_due};
use super::resource::{self, ObjectResource, media_headers};
use crate::copying::is_unmet;
use crate::documents::Charge;
use crate::errors::{OperationContext, from_store, internal_error, invalid_range};
use crate::meta::{bare, put_staleness};
use crate::range::{content_range, requested_range};

/// Reads the metadata of an object.
pub(crate) async fn head(
    bucket: &Bucket,
    path: &Path,
    doing: OperationContext<'_>,
) -> GcsResult<GetResult> {
    head_with(bucket, path, doing, &Extensions::new()).await
}

async fn head_with(
    bucket: &Bucket,
    path: &Path,
    doing: OperationContext<'_>,
    extensions: &Extensions,
) -> GcsResult<GetResult> {
    let options = GetOptions {
        head: true,
        extensions: extensions.clone(),
        ..GetOptions::default()
    };
    let found = bucket.get_opts(path, options).await;
    found.map_err(|error| failed(doing, &error))
}

/// Converts an error of an object's version.
fn failed(doing: OperationContext<'_>, error: &StoreError) -> GcsError {
    match error {
        StoreError::NotFound { .. } if EngineError::find(error).is_none() => {
            GcsError::no_such_object(&named(doing))
        }
        _ => from_store(doing, error).into(),
    }
}

/// Reads the metadata of an object that was just written, whose ETag is `e_tag`. Fails if it was replaced since then: the client would
/// take another writer's generation for its own.
pub(crate) async fn head_written(
    bucket: &Bucket,
    path: &Path,
    e_tag: Option<&str>,
    doing: OperationContext<'_>,
) -> GcsResult<GetResult> {
    let found = head(bucket, path, doing).await?;
    match (e_tag, found.meta.e_tag.as_deref()) {
        (Some(written), Some(current)) if bare(written) != bare(current) => {
            Err(GcsError::unavailable(format!(
                "{}: the object was written, and another writer replaced it before its metadata were read; read it again.",
                named(doing)
            )))
        }
        _ => Ok(found),
    }
}

pub(crate) async fn metadata(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("head");
    let (bucket, path) = endpoint.stored_object(doing.bucket, doing.key)?;
    let conditions = Conditions::of(&request.query)?;
    let mut extensions = Extensions::new();
    extensions.insert(MayBeStale);
    let found = head_with(&bucket, &path, doing, &extensions).await?;
    request.admission.check(&found.attributes)?;
    conditions.check_read(VersionNumbers::of(&bucket, &found), &named(doing))?;
    let url = endpoint.url(&request.parts);
    let resource = ObjectResource::read(&bucket, doing.key, &found, &url);
    let mut response = resource::document(&resource)?;
    if let Some(info) = found.extensions.get::<ReadInfo>() {
        put_staleness(response.headers_mut(), info);
    }
    Ok(response)
}

fn get_range(range: &Range) -> GetRange {
    match *range {
        Range::Int {
            first,
            last: Some(last),
        } => GetRange::Bounded(first..last.saturating_add(1)),
        Range::Int { first, last: None } => GetRange::Offset(first),
        Range::Suffix { length } => GetRange::Suffix(length),
    }
}

pub(crate) async fn media(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("read");
    let (bucket, path) = endpoint.stored_object(doing.bucket, doing.key)?;
    let conditions = Conditions::of(&request.query)?;
    if !conditions.is_empty() {
        // First against the known version, so that a 304 fetches no data; then against the version read.
        let (found, numbers) = current(&bucket, &path, doing).await?;
        found.ok_or_else(|| GcsError::no_such_object(&named(doing)))?;
        conditions.check_read(numbers, &named(doing))?;
    }
    let mut range = requested_range(&request.parts.headers);
    if let Some(Range::Suffix { length: 0 }) = range {
        let meta = head(&bucket, &path, doing).await?.meta;
        return Err(invalid_range(doing, meta.size).into());
    }
    let mut options = GetOptions {
        range: range.as_ref().map(get_range),
        ..GetOptions::default()
    };
    // The connection drops each piece once the socket has accepted it.
    options.extensions.insert(PieceByPiece);
    options.extensions.insert(MayBeStale);
    let mut charge = None;
    let read = loop {
        let read = bucket.get_opts(&path, options.clone()).await;
        let read = read.map_err(|error| failed(doing, &error))?;
        if read.meta.size == 0 || !is_due(&read.attributes, &request.parts.headers) {
            break read;
        }
        // Decompressed bytes have no ranges.
        let is_whole = range.take().is_none();
        options.range = None;
        charge = charge.or_else(|| endpoint.gunzips.try_charge(GUNZIP_BYTES));
        if is_whole && charge.is_some() {
            break read;
        }
        // A read that waits for memory holds none.
        drop(read);
        if charge.is_none() {
            charge = Some(endpoint.gunzips.charge(GUNZIP_BYTES, doing).await?);
        }
    };
    request.admission.check(&read.attributes)?;
    conditions.check_read(VersionNumbers::of(&bucket, &read), &named(doing))?;
    if let Some(info) = read.extensions.get::<ReadInfo>() {
        request.context.note_cache(info.outcome);
    }
    if let Some(charge) = charge
        && is_due(&read.attributes, &request.parts.headers)
    {
        return gunzipped(charge, &bucket, read, doing).await;
    }
    let size = read.meta.size;
    if range.is_some() && size == 0 {
        return Err(invalid_range(doing, 0).into());
    }
    let mut headers = media_headers(&bucket, &read, range.is_none());
    let mut status = StatusCode::OK;
    if range.is_some() {
        status = StatusCode::PARTIAL_CONTENT;
        content_range(&mut headers, &read.range, size);
    }
    let length = read.range.end - read.range.start;
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    // The engine's `Bytes` become frames of the response without a copy.
    let body = StreamBody::new(read.into_stream().map_ok(Frame::data));
    let mut response = Response::new(Body::http_body_unsync(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Returns the bytes of a gzip file, decompressed. Its digests are not theirs.
async fn gunzipped(
    charge: Charge,
    bucket: &Bucket,
    read: GetResult,
    doing: OperationContext<'_>,
) -> GcsResult<Response<Body>> {
    let mut headers = media_headers(bucket, &read, false);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    let opened = gunzip::open(read.into_stream(), charge).await;
    let opened = opened.map_err(|error| {
        if gunzip::is_damage(&error) {
            internal_error(doing, &error.to_string())
        } else {
            from_store(doing, &error)
        }
    });
    let body = match opened? {
        Ok(decompressed) => {
            headers.remove(CONTENT_ENCODING);
            headers.append(WARNING, HeaderValue::from_static("214 Bywash gunzipped"));
            decompressed
        }
        Err(unchanged) => unchanged,
    };
    let body = StreamBody::new(body.map_ok(Frame::data));
    let mut response = Response::new(Body::http_body_unsync(body));
    *response.headers_mut() = headers;
    Ok(response)
}

pub(crate) async fn delete(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("delete");
    let (bucket, path) = endpoint.stored_object(doing.bucket, doing.key)?;
    let conditions = Conditions::of(&request.query)?;
    conditions.refuse_unbound(&bucket)?;
    let (found, numbers) = current(&bucket, &path, doing).await?;
    let meta = found.ok_or_else(|| GcsError::no_such_object(&named(doing)))?;
    let deleted = if conditions.is_empty() {
        bucket.delete(&path).await
    } else {
        conditions.check_write(numbers, &named(doing))?;
        if meta.e_tag.is_none() {
            return Err(GcsError::not_served(format!(
                "{}: the origin has no ETags, so a deletion cannot depend on a generation.",
                named(doing)
            )));
        }
        bucket.delete_version(&meta).await
    };
    deleted.map_err(|error| {
        if is_unmet(&error) && !conditions.names_version() {
            bound_error(doing, &error)
        } else {
            failed(doing, &error)
        }
    })?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
