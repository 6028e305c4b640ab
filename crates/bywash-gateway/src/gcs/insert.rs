//! Writes of an object by one request: its bytes alone, or after its metadata.

use bywash::{Bucket, PutStreamOptions};
use futures::StreamExt;
use http::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use object_store::{Attribute, GetResult, TagSet};
use s3s::Body;

use super::body::{BodyStream, CheckedBody};
use super::condition::WriteCondition;
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::Conditions;
use super::metadata::GivenMetadata;
use super::multipart::boundary;
use super::read::head_written;
use super::related;
use super::resource::{self, ObjectResource};
use super::route::Operation;
use crate::errors::OperationContext;
use crate::limits::MAX_JSON_BYTES;
use crate::meta::{encode_metadata_for, refuse_text_for, text};
use crate::passing::PassedDigests;

/// Takes the body out of a request.
pub(crate) fn body_of(request: &mut GcsRequest) -> BodyStream {
    std::mem::replace(&mut request.body, futures::stream::empty().boxed())
}

/// Digests of a whole object, in base64.
#[derive(Debug, Default)]
pub(crate) struct StatedHashes {
    pub(crate) crc32c: Option<String>,
    pub(crate) md5: Option<String>,
}

impl StatedHashes {
    /// Hashes that the headers `x-goog-hash` of a request state: one or several in a header, which may come several times.
    ///
    /// # Errors
    /// If one would not be compared with the bytes: of another algorithm, not `NAME=VALUE`, or a second value of one algorithm.
    pub(crate) fn of(request: &GcsRequest) -> GcsResult<Self> {
        let mut stated = Self::default();
        for value in request.parts.headers.get_all("x-goog-hash") {
            let text = String::from_utf8_lossy(value.as_bytes());
            let pairs = text.split(',').map(str::trim);
            for pair in pairs.filter(|pair| !pair.is_empty()) {
                let kept = match pair.split_once('=') {
                    Some(("crc32c", value)) => Some((&mut stated.crc32c, value)),
                    Some(("md5", value)) => Some((&mut stated.md5, value)),
                    _ => None,
                };
                let taken = kept.is_some_and(|(kept, value)| {
                    kept.get_or_insert_with(|| value.to_owned()) == value
                });
                if !taken {
                    return Err(GcsError::invalid(format!(
                        "The hash {pair} of x-goog-hash cannot be compared; send crc32c=.. and md5=.., each once."
                    )));
                }
            }
        }
        Ok(stated)
    }
}

/// Takes the digests of a body that the headers of its request state.
///
/// # Errors
/// As [`StatedHashes::of`].
pub(crate) fn take_stated_hashes(request: &GcsRequest, given: &mut GivenMetadata) -> GcsResult<()> {
    let stated = StatedHashes::of(request)?;
    given.crc32c = stated.crc32c.or(given.crc32c.take());
    given.md5 = stated.md5.or(given.md5.take());
    Ok(())
}

pub(crate) async fn object(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    match request.query.get("uploadType") {
        None | Some("media") => media(endpoint, request).await,
        Some("multipart") => multipart(endpoint, request).await,
        Some(other) => Err(GcsError::not_served(format!(
            "The uploadType is media, multipart or resumable, not {other}."
        ))),
    }
}

async fn media(endpoint: &Endpoint, request: &mut GcsRequest) -> GcsResult<Response<Body>> {
    let mut given = GivenMetadata::default();
    if let Some(kind) = text(&request.parts.headers, CONTENT_TYPE.as_str()) {
        let kind = kind.to_owned();
        given.attributes.insert(Attribute::ContentType, kind.into());
    }
    let length = text(&request.parts.headers, CONTENT_LENGTH.as_str());
    let length = length.and_then(|length| length.parse().ok());
    let body = body_of(request);
    write(endpoint, request, given, body, length).await
}

async fn multipart(endpoint: &Endpoint, request: &mut GcsRequest) -> GcsResult<Response<Body>> {
    let kind = text(&request.parts.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let boundary = boundary(kind, "multipart/related").ok_or_else(|| {
        GcsError::invalid("The Content-Type of this upload is multipart/related with a boundary.")
    })?;
    let body = body_of(request);
    let doing = request.doing("write");
    let (head, bytes) = {
        // Released before the write, which waits for memory of its own.
        let documents = &request.documents;
        let _charge = documents.charge_document(MAX_JSON_BYTES, doing).await?;
        related::open(body, &boundary, &request.context).await?
    };
    let mut given = GivenMetadata::parse(&head.document)?;
    if given.attributes.get(&Attribute::ContentType).is_none()
        && let Some(kind) = head.content_type
    {
        given.attributes.insert(Attribute::ContentType, kind.into());
    }
    write(endpoint, request, given, bytes.boxed(), None).await
}

/// Names the object of a write by its query or its metadata.
pub(crate) fn name_object(request: &mut GcsRequest, given: &GivenMetadata) -> GcsResult<()> {
    if request.route.object.is_empty() {
        request.route.object = given.name.clone().unwrap_or_default();
    }
    if request.route.object.is_empty() {
        Err(GcsError::required(
            "name",
            "The object has no name; give the parameter name, or name in the metadata.",
        ))
    } else {
        Ok(())
    }
}

/// An object that was written.
pub(crate) struct Written {
    pub(crate) bucket: Bucket,
    pub(crate) found: GetResult,
    pub(crate) crc32c: Option<String>,
    /// In base64.
    pub(crate) md5: Option<String>,
}

async fn write(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    given: GivenMetadata,
    body: BodyStream,
    length: Option<u64>,
) -> GcsResult<Response<Body>> {
    let names = given.names();
    let written = store(endpoint, request, given, body, length).await?;
    let url = endpoint.url(&request.parts);
    let key = &request.route.object;
    let resource = ObjectResource::read(&written.bucket, key, &written.found, &url);
    let resource = resource.with_names(&names);
    resource::document(&resource.with_hashes(written.crc32c, written.md5))
}

/// Writes an object under the conditions of the request.
pub(crate) async fn store(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    mut given: GivenMetadata,
    body: BodyStream,
    length: Option<u64>,
) -> GcsResult<Written> {
    request.context.hold_memory();
    name_object(request, &given)?;
    take_stated_hashes(request, &mut given)?;
    let doing = OperationContext::new("write", &request.route.bucket, &request.route.object);
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    refuse_text_for(&bucket, &given.attributes)?;
    encode_metadata_for(&bucket, &mut given.attributes)?;
    let conditions = Conditions::of(&request.query)?;
    let condition = WriteCondition::find(&bucket, &path, &conditions, doing).await?;
    let computes_md5 = match request.route.operation {
        // Responses of the XML API have the digests that are kept.
        Operation::Xml(_) => endpoint.wants_md5(&bucket),
        _ => endpoint.computes_md5(),
    };
    let checked = CheckedBody::new(body, &given, computes_md5, &request.context)?;
    let options = PutStreamOptions {
        mode: condition.mode.clone(),
        attributes: given.attributes,
        tags: TagSet::default(),
        late_attributes: Some(checked.late(endpoint.wants_md5(&bucket))),
        length,
        memory: None,
    };
    let passed = checked.passed();
    let written = bucket.put_stream(&path, options, checked.body).await;
    let written = written.map_err(|error| condition.error(doing, &error))?;
    let found = head_written(&bucket, &path, written.e_tag.as_deref(), doing).await?;
    let passed = passed.get();
    let checksum = passed.and_then(|passed| passed.checksum.as_ref());
    Ok(Written {
        crc32c: checksum.map(|checksum| checksum.value.clone()),
        md5: passed.and_then(PassedDigests::md5_hash),
        bucket,
        found,
    })
}
