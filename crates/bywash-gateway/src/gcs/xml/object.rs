//! Objects by the XML API: read, write, copy, delete, and the start of a resumable session of a signed URL.

use bywash::Bucket;
use futures::StreamExt;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use object_store::{GetResult, ObjectMeta};
use s3s::Body;

use super::super::admit::Admission;
use super::super::condition::named;
use super::super::endpoint::{Endpoint, GcsRequest};
use super::super::error::{GcsError, GcsResult};
use super::super::generation::{Conditions, VersionNumbers};
use super::super::insert::{body_of, store};
use super::super::metadata::GivenMetadata;
use super::super::resource::media_headers;
use super::super::{copy as copies, read, sessions};
use super::document;
use super::names::of_amazon;
use crate::body::announces_no_body;
use crate::conditions::{Conditions as HeaderConditions, Unmet, meets_if_range};
use crate::encryption::refuse_wish;
use crate::errors::OperationContext;
use crate::meta::{attributes_of, bare, client_e_tag, not_modified, refuse_unsupported, text};
use crate::xml::element;

/// Checks the conditions of a read on ETags and times.
fn check(
    conditions: &HeaderConditions,
    bucket: &Bucket,
    found: &GetResult,
    doing: OperationContext<'_>,
) -> GcsResult<()> {
    let met = conditions.check(&found.meta);
    met.map_err(|unmet| match unmet {
        Unmet::NotModified => {
            let whole = media_headers(bucket, found, true);
            GcsError::not_modified(named(doing)).with_headers(not_modified(&whole))
        }
        Unmet::Failed => GcsError::condition(&named(doing)),
    })
}

pub(super) async fn get(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let headers = &request.parts.headers;
    let conditions = HeaderConditions::from_headers(headers, "");
    let if_range = text(headers, "if-range").map(str::to_owned);
    if !conditions.is_empty() || if_range.is_some() {
        let doing = request.doing("read");
        let (bucket, path) = endpoint.stored_object(doing.bucket, doing.key)?;
        let found = read::head(&bucket, &path, doing).await?;
        request.admission.check(&found.attributes)?;
        let numbers = VersionNumbers::of(&bucket, &found);
        check(&conditions, &bucket, &found, doing)?;
        let is_current = if_range.is_none_or(|version| meets_if_range(&found.meta, &version));
        let headers = &mut request.parts.headers;
        if !is_current {
            headers.remove(RANGE);
        }
        // For a newer version these do not hold; the others do, as the client does not know that
        // version.
        let binds = ["if-match", "if-unmodified-since", "if-range"];
        if is_current && binds.iter().any(|name| headers.contains_key(*name)) {
            request
                .query
                .set("ifGenerationMatch", &numbers.generation.to_string());
        }
    }
    let mut response = read::media(endpoint, request).await?;
    for (parameter, header) in [
        ("response-content-type", CONTENT_TYPE),
        ("response-content-disposition", CONTENT_DISPOSITION),
    ] {
        let value = request.query.get(parameter).map(HeaderValue::try_from);
        if let Some(value) = value {
            if request.admission != Admission::All {
                // Otherwise a link could make a page of an object that is not a page.
                return Err(GcsError::invalid(format!(
                    "The parameter {parameter} needs a signature or a token; leave it out."
                )));
            }
            let value = value.map_err(|_| {
                GcsError::invalid(format!(
                    "The parameter {parameter} is no value of a header."
                ))
            })?;
            response.headers_mut().insert(header, value);
        }
    }
    Ok(response)
}

pub(super) async fn head(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let doing = request.doing("head");
    let (bucket, path) = endpoint.stored_object(doing.bucket, doing.key)?;
    let found = read::head(&bucket, &path, doing).await?;
    request.admission.check(&found.attributes)?;
    let of_query = Conditions::of(&request.query)?;
    of_query.check_read(VersionNumbers::of(&bucket, &found), &named(doing))?;
    let of_headers = HeaderConditions::from_headers(&request.parts.headers, "");
    check(&of_headers, &bucket, &found, doing)?;
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = media_headers(&bucket, &found, true);
    let length = HeaderValue::from(found.meta.size);
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

/// Returns the metadata of an object to be written that the headers of a request have.
pub(super) fn given(headers: &HeaderMap) -> GcsResult<GivenMetadata> {
    let headers = of_amazon(headers);
    refuse_unsupported(&headers)?;
    refuse_wish(&headers)?;
    Ok(GivenMetadata {
        attributes: attributes_of(&headers)?,
        md5: text(&headers, "content-md5").map(str::to_owned),
        is_given: true,
        ..GivenMetadata::default()
    })
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_LENGTH.as_str())?.parse().ok()
}

pub(super) async fn put(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    if announces_no_body(&request.parts) {
        return Err(GcsError::new(
            StatusCode::LENGTH_REQUIRED,
            "required",
            "The request needs a Content-Length, 0 of an empty body.",
        ));
    }
    let given = given(&request.parts.headers)?;
    let length = content_length(&request.parts.headers);
    let body = body_of(request);
    let written = store(endpoint, request, given, body, length).await?;
    let mut response = Response::new(Body::empty());
    *response.headers_mut() =
        version_headers(&written.bucket, &written.found, written.crc32c.as_deref());
    Ok(response)
}

/// Headers that state a version, without headers that describe its bytes. `crc32c`: CRC32C of the
/// written bytes, where the origin does not keep it.
pub(super) fn version_headers(
    bucket: &Bucket,
    found: &GetResult,
    crc32c: Option<&str>,
) -> HeaderMap {
    const HASH: HeaderName = HeaderName::from_static("x-goog-hash");
    let of_version = |name: &HeaderName| {
        let text = name.as_str();
        let of_google = text.starts_with("x-goog-") && !text.starts_with("x-goog-meta-");
        of_google || *name == ETAG || *name == LAST_MODIFIED
    };
    let mut headers = HeaderMap::new();
    for (name, value) in &media_headers(bucket, found, true) {
        if of_version(name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let is_stated = |value: &HeaderValue| value.as_bytes().starts_with(b"crc32c=");
    if !headers.get_all(HASH).iter().any(is_stated)
        && let Some(crc32c) = crc32c
        && let Ok(value) = HeaderValue::try_from(format!("crc32c={crc32c}"))
    {
        headers.append(HASH, value);
    }
    headers
}

/// The ETag of a version as clients see it, quoted.
pub(super) fn quoted_e_tag(meta: &ObjectMeta) -> String {
    let stored = meta.e_tag.as_deref().unwrap_or_default();
    format!("\"{}\"", bare(client_e_tag(stored)))
}

pub(super) async fn copy(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let headers = of_amazon(&request.parts.headers);
    refuse_unsupported(&headers)?;
    refuse_wish(&headers)?;
    let given = match text(&headers, "x-amz-metadata-directive") {
        None => GivenMetadata::default(),
        Some(directive) if directive.eq_ignore_ascii_case("copy") => GivenMetadata::default(),
        Some(directive) if directive.eq_ignore_ascii_case("replace") => {
            given(&request.parts.headers)?
        }
        Some(other) => {
            return Err(GcsError::invalid(format!(
                "The metadata directive of a copy is COPY or REPLACE, not {other}."
            )));
        }
    };
    let copied = copies::run(endpoint, request, given).await?;
    let modified = copied.found.meta.last_modified;
    let inner = element(
        "LastModified",
        &modified.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
    ) + &element("ETag", &quoted_e_tag(&copied.found.meta));
    let mut response = document("CopyObjectResult", &inner);
    let headers = version_headers(&copied.bucket, &copied.found, None);
    response.headers_mut().extend(headers);
    Ok(response)
}

pub(super) async fn delete(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    read::delete(endpoint, request).await
}

/// Starts a resumable session, as clients with a signed URL do: the session has the rights of the signature.
pub(super) async fn start_session(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let mut body = body_of(request);
    if let Some(Ok(piece)) = body.next().await
        && !piece.is_empty()
    {
        return Err(GcsError::invalid(
            "The start of a session has no body; send the bytes to the address in Location.",
        ));
    }
    let mut given = given(&request.parts.headers)?;
    // It is the MD5 of the empty body.
    given.md5 = None;
    let mut response = sessions::begin(endpoint, request, given).await?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}
