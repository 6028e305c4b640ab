//! Conversion of ETags, times and attributes between HTTP and the engine.

use std::borrow::Cow;
use std::time::SystemTime;

use bywash::origin::{CLIENT_ETAG, EXPIRES, TextHeaders, client_etag, etag_matches};
use bywash::time::http_date;
use bywash::{Bucket, CacheOutcome, ReadInfo};
use chrono::{DateTime, Utc};
use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use object_store::{Attribute, AttributeValue, Attributes, GetResult, ObjectMeta};
use s3s::dto::{ETag, Timestamp};
use s3s::{S3ErrorCode, S3Result};

use crate::digest::{Algorithm, Checksum, announce};
use crate::encoded_word::encode;
use crate::encryption;
use crate::errors::{WithElements, fault, invalid_argument, not_implemented};
use crate::limits::MAX_METADATA_BYTES;
use crate::signature::is_aws_chunked;
use crate::tags::Tags;

/// Prefix of user metadata that is reserved for Bywash.
const RESERVED: &str = "bywash-";
const CHECKSUM: &str = "bywash-checksum-";
/// Identifies the multipart upload that created an object, to a client that repeats its completion.
const UPLOAD_ID: &str = "bywash-upload";
/// Identifies the multipart upload that created an object. Reserved too; Azure allows no hyphen in a name.
const UPLOAD_MARK: &str = "bywashupload";
/// Counts the versions of an object's metadata, for Google's API. Reserved; without a hyphen, as the mark.
const METAGENERATION: &str = "bywashmetageneration";
/// Prefix under which user metadata with a reserved name is stored: its writer is another Bywash,
/// whose origin is this one.
const FOREIGN: &str = "bywash-foreign-";
const USER_METADATA: &str = "x-amz-meta-";

/// Accepts only the version `null`. Other names are invalid, or of a version that does not exist.
pub(crate) fn check_version(version: Option<&str>, key: &str) -> S3Result<()> {
    let invalid =
        |version: &str, message: &str| Err(invalid_argument("versionId", version, message));
    match version {
        None | Some("null") => Ok(()),
        Some("") => invalid("", "Version id cannot be the empty string; leave it out."),
        Some(other) if !is_version(other) => invalid(
            other,
            "Invalid version id specified: the only version of an object here is `null`.",
        ),
        Some(other) => {
            let message =
                format!("The key {key} has no version {other}; its only version is `null`.");
            let error = fault(S3ErrorCode::NoSuchVersion, message);
            Err(error.with([("Key", key), ("VersionId", other)]))
        }
    }
}

/// Whether a text has the form of a version of S3: 32 letters, digits, dots, hyphens and underscores.
fn is_version(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    text.len() == 32 && text.bytes().all(fits)
}

/// Removes the quotes of an ETag; origins differ in them.
pub(crate) fn bare(e_tag: &str) -> &str {
    let e_tag = e_tag.trim();
    let e_tag = e_tag.strip_prefix("W/").unwrap_or(e_tag);
    e_tag
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(e_tag)
}

/// The part of a stored ETag that clients see.
pub(crate) fn client_e_tag(stored: &str) -> &str {
    client_etag(stored)
}

/// Whether a client's ETag without quotes names the version with the stored ETag `stored`: by the
/// ETag that clients see, or by the identity of the version, which they saw before there was
/// another.
pub(crate) fn names_version(stored: &str, tag: &str) -> bool {
    bare(stored) == tag || etag_matches(stored, tag)
}

/// Adds the ETag that clients compute to the attributes of an object.
pub(crate) fn keep_e_tag(attributes: &mut Attributes, e_tag: String) {
    attributes.insert(CLIENT_ETAG, e_tag.into());
}

/// Converts a stored ETag to the form clients see.
pub(crate) fn e_tag(stored: &str) -> ETag {
    let value = bare(client_e_tag(stored)).to_owned();
    if stored.starts_with("W/") {
        ETag::Weak(value)
    } else {
        ETag::Strong(value)
    }
}

/// Quotes a client's ETag in the style of the origin's ETag `known`.
pub(crate) fn e_tag_like(known: &str, value: &str) -> String {
    if known.ends_with('"') {
        format!("\"{}\"", bare(value))
    } else {
        bare(value).to_owned()
    }
}

pub(crate) fn timestamp(time: DateTime<Utc>) -> Timestamp {
    Timestamp::from(SystemTime::from(time))
}

pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .filter(|value| !value.is_empty())
}

/// The values of a header, joined by commas if it was sent several times. Bytes that are not UTF-8
/// are replaced.
pub(crate) fn joined<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    let mut values = headers.get_all(name).iter();
    let first = String::from_utf8_lossy(values.next()?.as_bytes());
    Some(values.fold(first, |all, value| {
        Cow::Owned(format!(
            "{all},{}",
            String::from_utf8_lossy(value.as_bytes())
        ))
    }))
}

/// Returns the text of a header that is stored with an object. Raw bytes that are not UTF-8 are refused.
fn stored_text(headers: &HeaderMap, name: &str) -> S3Result<Option<String>> {
    let text = joined(headers, name).filter(|text| !text.is_empty());
    let is_utf8 = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
    match text {
        Some(text) if !headers.get_all(name).iter().all(is_utf8) => {
            let message = format!("{name} is neither ASCII nor UTF-8; encode it.");
            Err(invalid_argument(name, &text, message))
        }
        text => Ok(text.map(Cow::into_owned)),
    }
}

/// Beginnings of headers that decide how a request is served.
const DECIDING: [&str; 2] = ["x-amz-", "x-goog-"];
/// Those among them that are text, or mean nothing here.
const TEXTS: [&str; 9] = [
    "x-amz-meta-",
    "x-goog-meta-",
    "x-amz-tagging",
    "x-amz-copy-source",
    "x-goog-copy-source",
    "x-amz-user-agent",
    "x-goog-api-client",
    "x-goog-request-reason",
    "x-goog-user-project",
];

/// Rejects a request with bytes that are not ASCII in a header that decides how it is served: it would be served as if it had no such
/// header.
pub(crate) fn refuse_unreadable(headers: &HeaderMap) -> S3Result<()> {
    let decides = |name: &str| {
        let begins = |beginning: &&str| name.starts_with(*beginning);
        let is_text = name != TAGGING_DIRECTIVE && TEXTS.iter().any(begins);
        (DECIDING.iter().any(begins) && !is_text) || name == "content-md5"
    };
    let mut unread = headers
        .iter()
        .filter(|(_, value)| value.to_str().is_err())
        .filter(|(name, _)| decides(name.as_str()));
    match unread.next() {
        None => Ok(()),
        Some((name, value)) => {
            let value = String::from_utf8_lossy(value.as_bytes());
            let message =
                format!("{name} has characters that are not ASCII; send it without them.");
            Err(invalid_argument(name.as_str(), &value, message))
        }
    }
}

/// Rejects a condition that the operation does not have: it would be served without it. S3 refuses them likewise.
pub(crate) fn refuse_unheeded(method: &Method, headers: &HeaderMap) -> S3Result<()> {
    let unheeded: &[&str] = match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => &[],
        Method::DELETE => &["If-None-Match", "If-Modified-Since", "If-Unmodified-Since"],
        _ => &["If-Modified-Since", "If-Unmodified-Since"],
    };
    match unheeded.iter().find(|name| headers.contains_key(**name)) {
        None => Ok(()),
        Some(name) => {
            let message =
                format!("The condition {name} is not supported here in a {method}; leave it out.");
            Err(not_implemented(message).with([("Header", *name)]))
        }
    }
}

const TAGGING_DIRECTIVE: &str = "x-amz-tagging-directive";

/// Headers of writes that are not implemented.
const UNSUPPORTED: [&str; 21] = [
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-context",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key",
    "x-amz-server-side-encryption-customer-key-md5",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-copy-source-server-side-encryption-customer-key",
    "x-amz-copy-source-server-side-encryption-customer-key-md5",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-event-hold",
    "x-amz-object-lock-event-hold-duration-days",
    "x-amz-object-lock-event-hold-duration-years",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write",
    "x-amz-grant-write-acp",
];

/// A switch of encryption by a key service.
const BUCKET_KEY: &str = "x-amz-server-side-encryption-bucket-key-enabled";

/// Rejects headers that would otherwise be silently ignored.
pub(crate) fn refuse_unsupported(headers: &HeaderMap) -> S3Result<()> {
    let bucket_key = text(headers, BUCKET_KEY).filter(|value| !value.eq_ignore_ascii_case("false"));
    let bucket_key = bucket_key.map(|_| BUCKET_KEY);
    if let Some(name) = UNSUPPORTED
        .into_iter()
        .find(|name| text(headers, name).is_some())
        .or(bucket_key)
    {
        let message = format!("The header {name} is not supported here; leave it out.");
        return Err(not_implemented(message).with([("Header", name)]));
    }
    match text(headers, STORAGE_CLASS) {
        Some(other) if !STORAGE_CLASSES.contains(&other) => {
            let message = format!("The storage class {other} does not exist; use STANDARD.");
            let error = fault(S3ErrorCode::InvalidStorageClass, message);
            Err(error.with([("StorageClassRequested", other)]))
        }
        _ => Ok(()),
    }
}

const STORAGE_CLASS: &str = "x-amz-storage-class";
/// Classes of S3. A folder and memory have one, which serves for all; an S3 origin gets the one of the request.
const STORAGE_CLASSES: [&str; 9] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
    "EXPRESS_ONEZONE",
];

/// Rejects content headers of an object that are not ASCII, for stores that do not take them.
pub(crate) fn refuse_text_for(bucket: &Bucket, attributes: &Attributes) -> S3Result<()> {
    let taken = bucket.text_headers() != TextHeaders::Nowhere;
    refuse_text(bucket, attributes, taken)
}

/// Rejects content headers of an upload in parts that are not ASCII, for stores that do not take them.
pub(crate) fn refuse_text_of_parts(bucket: &Bucket, attributes: &Attributes) -> S3Result<()> {
    let taken = bucket.text_headers() == TextHeaders::Everywhere;
    refuse_text(bucket, attributes, taken)
}

fn refuse_text(bucket: &Bucket, attributes: &Attributes, taken: bool) -> S3Result<()> {
    // Folders and memory return any text.
    if bucket.takes_late_attributes() {
        return Ok(());
    }
    // A date, which other stores keep as metadata.
    let expires = (header::EXPIRES, EXPIRES);
    let contents: &[_] = if taken { &[] } else { &CONTENT_HEADERS };
    let mut texts = contents.iter().chain([&expires]);
    let refused = texts.find(|(_, attribute)| {
        attributes
            .get(attribute)
            .is_some_and(|value| !value.is_ascii())
    });
    match refused {
        None => Ok(()),
        Some((name, attribute)) => {
            let message = format!(
                "{name} has characters that are not ASCII, which this bucket's origin does not take here; encode them (RFC 8187: filename*=UTF-8''...)."
            );
            let value = attributes.get(attribute).map_or("", |value| value.as_ref());
            Err(invalid_argument(name.as_str(), value, message))
        }
    }
}

/// Adds the storage class of a write to the attributes of an object at an origin that has classes.
pub(crate) fn keep_storage_class(
    headers: &HeaderMap,
    bucket: &Bucket,
    attributes: &mut Attributes,
) {
    if let Some(class) = text(headers, STORAGE_CLASS)
        && bucket.origin_kind() == "s3"
        && class != "STANDARD"
    {
        attributes.insert(Attribute::StorageClass, class.to_owned().into());
    }
}

const CONTENT_HEADERS: [(HeaderName, Attribute); 5] = [
    (header::CONTENT_TYPE, Attribute::ContentType),
    (header::CACHE_CONTROL, Attribute::CacheControl),
    (header::CONTENT_DISPOSITION, Attribute::ContentDisposition),
    (header::CONTENT_LANGUAGE, Attribute::ContentLanguage),
    (header::CONTENT_ENCODING, Attribute::ContentEncoding),
];

/// Whether metadata stored under this name is Bywash's own.
pub(crate) fn is_ours(stored: &str) -> bool {
    is_reserved(stored) && !stored.starts_with(FOREIGN)
}

/// Whether a client's metadata of this name is stored under another one. In any case: origins that keep metadata in headers have none.
fn is_reserved(name: &str) -> bool {
    let start = name.get(..RESERVED.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
        || [UPLOAD_MARK, METAGENERATION]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
}

fn metadata(name: impl Into<String>) -> Attribute {
    Attribute::Metadata(name.into().into())
}

/// The attribute that stores a client's metadata of this name.
pub(crate) fn user_attribute(name: impl Into<String>) -> Attribute {
    let name = name.into();
    if is_reserved(&name) {
        metadata(format!("{FOREIGN}{name}"))
    } else {
        metadata(name)
    }
}

/// The name by which a client knows stored metadata; `None` if it is Bywash's own.
fn client_name(attribute: &Attribute) -> Option<&str> {
    let Attribute::Metadata(stored) = attribute else {
        return None;
    };
    let foreign = stored.strip_prefix(FOREIGN);
    foreign.or_else(|| Some(stored.as_ref()).filter(|stored| !is_ours(stored)))
}

/// Converts the headers of a write to attributes.
pub(crate) fn attributes_of(headers: &HeaderMap) -> S3Result<Attributes> {
    let mut attributes = Attributes::new();
    for (name, attribute) in CONTENT_HEADERS {
        let Some(mut value) = stored_text(headers, name.as_str())? else {
            continue;
        };
        if name == header::CONTENT_ENCODING {
            // aws-chunked encodes the request, not the object. The spaces between others stay.
            let codings = value.split(',').filter(|coding| !is_aws_chunked(coding));
            value = codings.collect::<Vec<_>>().join(",").trim().to_owned();
        }
        if !value.is_empty() {
            attributes.insert(attribute, value.into());
        }
    }
    // Any text, as in S3: dates that are none too.
    if let Some(value) = stored_text(headers, header::EXPIRES.as_str())? {
        attributes.insert(EXPIRES, value.into());
    }
    let mut total = 0;
    for header in headers.keys() {
        let name = header.as_str().strip_prefix(USER_METADATA);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            continue;
        };
        // Stored unchanged, also encoded words (RFC 2047), valid or not: clients send them for text
        // that is not ASCII.
        let value = stored_text(headers, header.as_str())?.unwrap_or_default();
        total += name.len() + value.len();
        attributes.insert(user_attribute(name), value.into());
    }
    check_metadata_bytes(total)?;
    Ok(attributes)
}

/// Rejects user metadata with too many bytes in names and values.
fn check_metadata_bytes(total: usize) -> S3Result<()> {
    if total > MAX_METADATA_BYTES {
        let message =
            format!("The object's metadata has {total} bytes, more than {MAX_METADATA_BYTES}.");
        return Err(fault(S3ErrorCode::MetadataTooLarge, message).with([
            ("Size", total.to_string()),
            ("MaxSizeAllowed", MAX_METADATA_BYTES.to_string()),
        ]));
    }
    Ok(())
}

/// Adds a checksum to the attributes of an object.
pub(crate) fn keep_checksum(attributes: &mut Attributes, checksum: &Checksum) {
    let name = format!(
        "{CHECKSUM}{}",
        checksum.algorithm.name().to_ascii_lowercase()
    );
    attributes.insert(metadata(name), checksum.value.clone().into());
}

/// Removes the checksum from the attributes of an object.
pub(crate) fn forget_checksum(attributes: &mut Attributes) {
    for algorithm in Algorithm::ALL {
        let name = format!("{CHECKSUM}{}", algorithm.name().to_ascii_lowercase());
        attributes.remove(&metadata(name));
    }
}

/// The checksum stored with an object.
pub(crate) fn kept_checksum(attributes: &Attributes) -> Option<Checksum> {
    attributes.iter().find_map(|(attribute, value)| {
        let Attribute::Metadata(name) = attribute else {
            return None;
        };
        let algorithm = Algorithm::by_name(name.strip_prefix(CHECKSUM)?)?;
        Some(Checksum {
            algorithm,
            value: value.to_string(),
        })
    })
}

/// Adds the id of the upload that creates the object.
pub(crate) fn keep_upload_id(attributes: &mut Attributes, id: &str) {
    attributes.insert(metadata(UPLOAD_ID), id.to_owned().into());
}

/// The id of the upload that created the object.
pub(crate) fn kept_upload_id(attributes: &Attributes) -> Option<&str> {
    let id = attributes.get(&metadata(UPLOAD_ID));
    id.map(|id| id.as_ref())
}

/// Adds the mark of the upload that will create the object. Returns false if user metadata leaves no space: origins
/// limit the sum.
pub(crate) fn mark_upload(attributes: &mut Attributes, mark: &str) -> bool {
    let length = |(attribute, value): (&Attribute, &AttributeValue)| match attribute {
        Attribute::Metadata(name) => name.len() + value.len(),
        _ => 0,
    };
    let taken: usize = attributes.iter().map(length).sum();
    let fits = taken + UPLOAD_MARK.len() + mark.len() <= MAX_METADATA_BYTES;
    if fits {
        attributes.insert(metadata(UPLOAD_MARK), mark.to_owned().into());
    }
    fits
}

/// The mark of the upload that created the object.
pub(crate) fn upload_mark(attributes: &Attributes) -> Option<&str> {
    attributes
        .get(&metadata(UPLOAD_MARK))
        .map(|mark| mark.as_ref())
}

/// The number of an object's metadata: 1, unless it was changed since the object was written.
pub(crate) fn kept_metageneration(attributes: &Attributes) -> i64 {
    let kept = attributes.get(&metadata(METAGENERATION));
    let kept = kept.and_then(|kept| kept.parse().ok());
    kept.filter(|kept| *kept > 0).unwrap_or(1)
}

/// Sets the number of an object's metadata; the first one is not kept.
pub(crate) fn keep_metageneration(attributes: &mut Attributes, number: i64) {
    match number {
        1 => attributes.remove(&metadata(METAGENERATION)),
        _ => attributes.insert(metadata(METAGENERATION), number.to_string().into()),
    };
}

/// Encodes the user metadata of an object for a store that takes only ASCII there; other text would be lost on the way. Rejects metadata
/// that has too many bytes when it is encoded, as the store would.
pub(crate) fn encode_metadata_for(bucket: &Bucket, attributes: &mut Attributes) -> S3Result<()> {
    // Folders and memory keep any text.
    if bucket.takes_late_attributes() {
        return Ok(());
    }
    let metadata = attributes
        .iter()
        .filter(|(name, _)| matches!(name, Attribute::Metadata(_)));
    let odd = metadata.filter(|(_, value)| !value.is_ascii());
    let encoded: Vec<_> = odd
        .map(|(name, value)| (name.clone(), encode(value).into_owned()))
        .collect();
    if encoded.is_empty() {
        return Ok(());
    }
    for (name, value) in encoded {
        attributes.insert(name, value.into());
    }
    let length = |(name, value): (&str, &str)| name.len() + value.len();
    check_metadata_bytes(user_metadata_of(attributes).map(length).sum())
}

/// The user metadata among `attributes`, with the names that clients know.
pub(crate) fn user_metadata_of(attributes: &Attributes) -> impl Iterator<Item = (&str, &str)> {
    let all = attributes.iter();
    all.filter_map(|(attribute, value)| Some((client_name(attribute)?, value.as_ref())))
}

/// Removes the user metadata among `attributes` for which `matches` is true, given the name that
/// clients know.
pub(crate) fn remove_user_metadata(attributes: &mut Attributes, matches: impl Fn(&str) -> bool) {
    let names = attributes.iter().map(|(attribute, _)| attribute);
    let removed = names.filter(|name| client_name(name).is_some_and(&matches));
    let removed: Vec<Attribute> = removed.cloned().collect();
    for attribute in &removed {
        attributes.remove(attribute);
    }
}

/// Adds the user metadata among `attributes` to the headers of a response: in encoded words if it is not ASCII, as S3 documents. Raw
/// bytes are refused by clients that read headers as ASCII. Content headers stay raw: browsers read the file name in
/// Content-Disposition, and know no encoded words there.
fn user_metadata(attributes: &Attributes, headers: &mut HeaderMap) {
    for (name, value) in user_metadata_of(attributes) {
        if let Ok(name) = HeaderName::try_from(format!("{USER_METADATA}{name}"))
            && let Ok(value) = HeaderValue::from_str(&encode(value))
        {
            headers.insert(name, value);
        }
    }
}

const CACHE_OUTCOME: HeaderName = HeaderName::from_static("x-bywash-cache");
const VERSION: HeaderName = HeaderName::from_static("x-bywash-version");
/// The Warning of a version that could not be confirmed (RFC 7234, section 5.5.1).
const STALE: HeaderValue = HeaderValue::from_static("110 Bywash \"Response is Stale\"");

/// Response headers of an object: content headers, ETag, dates, cache status.
pub(crate) fn object_headers(result: &GetResult, with_checksum: bool) -> HeaderMap {
    let info = result.extensions.get::<ReadInfo>();
    let version = info.map(|info| info.version.as_str());
    let tags = info.map_or(0, |info| info.tags);
    let mut headers = version_headers(
        &result.meta,
        &result.attributes,
        version,
        tags,
        with_checksum,
    );
    if let Some(info) = info {
        put_read_info(&mut headers, info);
    }
    headers
}

/// Adds how a read was served: from which memory, and whether its version may be stale.
pub(crate) fn put_read_info(headers: &mut HeaderMap, info: &ReadInfo) {
    put_cache_outcome(headers, info.outcome);
    put_staleness(headers, info);
}

pub(crate) fn put_staleness(headers: &mut HeaderMap, info: &ReadInfo) {
    if info.stale {
        headers.append(header::WARNING, STALE);
    }
}

pub(crate) fn put_cache_outcome(headers: &mut HeaderMap, outcome: CacheOutcome) {
    headers.insert(CACHE_OUTCOME, HeaderValue::from_static(outcome.name()));
}

/// Response headers that are the same for all reads of a version: content headers, metadata, ETag,
/// dates. `tags`: number of tags that the origin keeps next to the object.
pub(crate) fn version_headers(
    meta: &ObjectMeta,
    attributes: &Attributes,
    version: Option<&str>,
    tags: u32,
    with_checksum: bool,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        // Omit stored values that are invalid in a header.
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.insert(name, value);
        }
    };
    put(header::CONTENT_TYPE, "binary/octet-stream");
    for (name, attribute) in CONTENT_HEADERS {
        if let Some(value) = attributes.get(&attribute) {
            put(name, value);
        }
    }
    if let Some(class) = attributes.get(&Attribute::StorageClass)
        && class.as_ref() != "STANDARD"
    {
        put(HeaderName::from_static(STORAGE_CLASS), class);
    }
    if let Some(value) = attributes.get(&EXPIRES) {
        put(header::EXPIRES, value);
    }
    if let Some(version) = version {
        put(VERSION, version);
    }
    put(header::ACCEPT_RANGES, "bytes");
    encryption::state_kept(attributes, &mut headers);
    user_metadata(attributes, &mut headers);
    headers.extend(validators(meta));
    let tags = Tags::kept(attributes).len().max(tags as usize);
    if tags > 0 {
        headers.insert("x-amz-tagging-count", HeaderValue::from(tags));
    }
    if with_checksum && let Some(checksum) = kept_checksum(attributes) {
        announce(&mut headers, &checksum);
    }
    headers
}

/// ETag and Last-Modified.
fn validators(meta: &ObjectMeta) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(value) = meta
        .e_tag
        .as_deref()
        .and_then(|found| e_tag(found).to_http_header().ok())
    {
        headers.insert(header::ETAG, value);
    }
    if let Ok(value) = HeaderValue::try_from(http_date(meta.last_modified)) {
        headers.insert(header::LAST_MODIFIED, value);
    }
    headers
}

/// Response headers of a version that the client has: validators and how long it may keep it (RFC 9110, section 15.4.5), as the response
/// with the bytes has them.
pub(crate) fn not_modified(whole: &HeaderMap) -> HeaderMap {
    let kept = [
        header::CACHE_CONTROL,
        header::ETAG,
        header::EXPIRES,
        header::LAST_MODIFIED,
        header::VARY,
    ];
    let values = kept.into_iter().filter_map(|name| {
        let value = whole.get(&name)?.clone();
        Some((name, value))
    });
    values.collect()
}

#[cfg(test)]
mod tests;
