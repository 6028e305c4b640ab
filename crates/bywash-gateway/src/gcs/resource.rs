//! Objects and buckets as the JSON API describes them, and the headers of their bytes.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::origin::kept_client_etag;
use bywash::time::http_date;
use bywash::{Bucket, BucketInfo, ReadInfo};
use chrono::{DateTime, SecondsFormat, Utc};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Response};
use object_store::{Attribute, Attributes, GetResult, ObjectMeta};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::Body;
use serde::Serialize;

use super::error::{GcsError, GcsResult};
use super::generation::generation;
use crate::digest::{Algorithm, from_hex};
use crate::encoded_word::decode;
use crate::meta::{
    bare, client_e_tag, kept_checksum, kept_metageneration, put_read_info, user_metadata_of,
};

/// Characters of a name that are written unchanged in a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// The header of a version's number.
pub(crate) const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");

/// The type of objects that were stored without one.
const DEFAULT_TYPE: &str = "application/octet-stream";

pub(crate) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, PLAIN).to_string()
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// An object's resource. Where metadata are a request for each object, the resource of a listed
/// object has only the fields of its listing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectResource {
    kind: &'static str,
    id: String,
    name: String,
    bucket: String,
    generation: String,
    storage_class: &'static str,
    size: String,
    etag: String,
    time_created: String,
    updated: String,
    self_link: String,
    media_link: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    md5_hash: Option<String>,
    #[serde(flatten)]
    of_read: Option<ReadProperties>,
}

/// Properties of an object that listings do not have.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadProperties {
    metageneration: String,
    content_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl ObjectResource {
    /// Describes an object from its listing entry. `url`: URL of this endpoint, as the client
    /// addressed it.
    pub(crate) fn listed(bucket: &Bucket, key: &str, meta: &ObjectMeta, url: &str) -> Self {
        let generation = generation(bucket, meta);
        let place = format!("storage/v1/b/{}/o/{}", encoded(bucket.name()), encoded(key));
        Self {
            kind: "storage#object",
            id: format!("{}/{key}/{generation}", bucket.name()),
            name: key.to_owned(),
            bucket: bucket.name().to_owned(),
            generation: generation.to_string(),
            storage_class: "STANDARD",
            size: meta.size.to_string(),
            etag: bare(client_e_tag(meta.e_tag.as_deref().unwrap_or_default())).to_owned(),
            time_created: time(meta.last_modified),
            updated: time(meta.last_modified),
            self_link: format!("{url}/{place}"),
            // rclone reads a listed object by this URL.
            media_link: format!("{url}/download/{place}?generation={generation}&alt=media"),
            md5_hash: md5(meta),
            of_read: None,
        }
    }

    /// The bytes of its addresses, which have its name in them.
    pub(crate) fn link_bytes(&self) -> u64 {
        (self.self_link.len() + self.media_link.len()) as u64
    }

    /// Adds the digests of the bytes that were written, where the origin does not keep them.
    pub(crate) fn with_hashes(mut self, crc32c: Option<String>, md5: Option<String>) -> Self {
        if let Some(read) = &mut self.of_read {
            read.crc32c = read.crc32c.take().or(crc32c);
        }
        self.md5_hash = self.md5_hash.or(md5);
        self
    }

    /// Writes names of metadata as the request that set them did, where the origin keeps them in
    /// small letters, as S3 does. Google's Java client orders the parts of an object by the
    /// metadata in the responses to their writes.
    pub(crate) fn with_names(mut self, given: &[String]) -> Self {
        let Some(read) = &mut self.of_read else {
            return self;
        };
        for name in given {
            if !read.metadata.contains_key(name)
                && let Some(value) = read.metadata.remove(&name.to_ascii_lowercase())
            {
                read.metadata.insert(name.clone(), value);
            }
        }
        self
    }

    /// Describes an object with all its properties. `url`: URL of this endpoint, as the client
    /// addressed it.
    pub(crate) fn read(bucket: &Bucket, key: &str, found: &GetResult, url: &str) -> Self {
        let attributes = &found.attributes;
        let text = |attribute: Attribute| {
            attributes
                .get(&attribute)
                .map(|value| value.as_ref().to_owned())
        };
        let listed = Self::listed(bucket, key, &found.meta, url);
        let read = ReadProperties {
            metageneration: kept_metageneration(attributes).to_string(),
            content_type: text(Attribute::ContentType).unwrap_or_else(|| DEFAULT_TYPE.to_owned()),
            content_encoding: text(Attribute::ContentEncoding),
            content_disposition: text(Attribute::ContentDisposition),
            content_language: text(Attribute::ContentLanguage),
            cache_control: text(Attribute::CacheControl),
            crc32c: crc32c(attributes),
            metadata: user_metadata_of(attributes)
                .map(|(name, value)| (name.to_owned(), decode(value).into_owned()))
                .collect(),
        };
        Self {
            of_read: Some(read),
            ..listed
        }
    }
}

/// The MD5 of an object's bytes in base64, if it is kept with the object. An ETag of another store
/// is no digest.
fn md5(meta: &ObjectMeta) -> Option<String> {
    let digits = kept_client_etag(meta.e_tag.as_deref()?)?;
    from_hex(digits).map(|digest| BASE64_STANDARD.encode(digest))
}

/// The CRC32C of an object's bytes in base64, if it is kept with the object.
fn crc32c(attributes: &Attributes) -> Option<String> {
    kept_checksum(attributes)
        .filter(|checksum| checksum.algorithm == Algorithm::Crc32c && !checksum.value.contains('-'))
        .map(|checksum| checksum.value)
}

/// Where buckets are, in the words of Google's documents.
pub(crate) const LOCATION: &str = "US";
pub(crate) const LOCATION_TYPE: &str = "multi-region";

/// A bucket's resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BucketResource {
    kind: &'static str,
    id: String,
    name: String,
    location: &'static str,
    location_type: &'static str,
    storage_class: &'static str,
    /// Settings of a bucket are not changed.
    metageneration: &'static str,
    time_created: String,
    updated: String,
    self_link: String,
}

impl BucketResource {
    pub(crate) fn new(info: &BucketInfo, url: &str) -> Self {
        Self {
            kind: "storage#bucket",
            id: info.name.clone(),
            name: info.name.clone(),
            location: LOCATION,
            location_type: LOCATION_TYPE,
            storage_class: "STANDARD",
            metageneration: "1",
            time_created: time(info.created),
            updated: time(info.created),
            self_link: format!("{url}/storage/v1/b/{}", encoded(&info.name)),
        }
    }
}

const CONTENT: [(HeaderName, Attribute); 4] = [
    (header::CACHE_CONTROL, Attribute::CacheControl),
    (header::CONTENT_DISPOSITION, Attribute::ContentDisposition),
    (header::CONTENT_LANGUAGE, Attribute::ContentLanguage),
    (header::CONTENT_ENCODING, Attribute::ContentEncoding),
];

/// The headers of a response with an object's bytes; see [`version_headers`].
pub(crate) fn media_headers(bucket: &Bucket, found: &GetResult, whole: bool) -> HeaderMap {
    let mut headers = version_headers(bucket, &found.meta, &found.attributes, whole);
    if let Some(info) = found.extensions.get::<ReadInfo>() {
        put_read_info(&mut headers, info);
    }
    headers
}

/// Headers of the bytes of a version. `whole`: whether they are all its bytes, so that digests
/// apply.
pub(crate) fn version_headers(
    bucket: &Bucket,
    meta: &ObjectMeta,
    attributes: &Attributes,
    whole: bool,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        // Values that are invalid in a header are left out.
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.append(name, value);
        }
    };
    let kind = attributes.get(&Attribute::ContentType);
    put(
        header::CONTENT_TYPE,
        kind.map_or(DEFAULT_TYPE, |kind| kind.as_ref()),
    );
    for (name, attribute) in CONTENT {
        if let Some(value) = attributes.get(&attribute) {
            put(name, value);
        }
    }
    let encoding = attributes.get(&Attribute::ContentEncoding);
    let named = HeaderName::from_static;
    put(GENERATION, &generation(bucket, meta).to_string());
    let metageneration = kept_metageneration(attributes).to_string();
    put(named("x-goog-metageneration"), &metageneration);
    put(named("x-goog-storage-class"), "STANDARD");
    put(
        named("x-goog-stored-content-length"),
        &meta.size.to_string(),
    );
    let hashes = [
        crc32c(attributes).map(|crc32c| format!("crc32c={crc32c}")),
        md5(meta).map(|md5| format!("md5={md5}")),
    ];
    let hashes = hashes.into_iter().flatten().filter(|_| whole);
    let has_hash = hashes.map(|hash| put(named("x-goog-hash"), &hash)).count() > 0;
    let encoding = match encoding.map(AsRef::as_ref) {
        // Google's Node client refuses whole objects without a digest that are stored as they are.
        None if whole && !has_hash => None,
        encoding => Some(encoding.unwrap_or("identity")),
    };
    if let Some(encoding) = encoding {
        put(named("x-goog-stored-content-encoding"), encoding);
    }
    for (name, value) in user_metadata_of(attributes) {
        if let Ok(name) = HeaderName::try_from(format!("x-goog-meta-{name}")) {
            put(name, value);
        }
    }
    put(header::ACCEPT_RANGES, "bytes");
    if let Some(e_tag) = &meta.e_tag {
        put(header::ETAG, &format!("\"{}\"", bare(client_e_tag(e_tag))));
    }
    put(header::LAST_MODIFIED, &http_date(meta.last_modified));
    headers
}

/// Returns a response with a JSON document.
pub(crate) fn document(value: &impl Serialize) -> GcsResult<Response<Body>> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| GcsError::unavailable(error.to_string()))?;
    Ok(json(text))
}

/// A response with a JSON document that is written already.
pub(crate) fn json(text: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let json = HeaderValue::from_static("application/json; charset=UTF-8");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
