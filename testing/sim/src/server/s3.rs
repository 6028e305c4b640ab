//! The part of S3 that uploads need: multipart uploads with CRC32C of parts and of the object, and whole objects. Tags of
//! objects too.
//!
//! A part is stored completely or not at all. Signatures are not checked.

mod deletes;
mod tags;

pub(super) use tags::count as count_tags;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use http::Method;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::objects::{
    Dialect, Objects, StoredObject, TAGGING, byte_range, crc32c, error_response, escape,
    preconditions_hold,
};
use super::request::decode;
use super::{HttpRequest, HttpResponse, Protocol, ServerFault};

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-amz-meta-",
    copy_source: "x-amz-copy-source",
    version: "x-amz-version-id",
};
/// Minimum length of all parts except the last, in bytes.
const MIN_PART_BYTES: usize = 5 << 20;
/// Maximum number of parts or uploads on a page of a list.
const PAGE: usize = 1000;

/// The store. Pass it to [`super::Server::start`], and keep a reference to inspect its objects.
#[derive(Debug)]
pub struct S3 {
    objects: Arc<Objects>,
    dialect: Dialect,
    uploads: Mutex<BTreeMap<String, Upload>>,
    checksums: bool,
    min_part_len: usize,
    page: usize,
}

#[derive(Debug)]
struct Upload {
    bucket: String,
    key: String,
    headers: BTreeMap<String, String>,
    /// Whether it was created with `x-amz-checksum-type: FULL_OBJECT`.
    full_object: bool,
    parts: BTreeMap<u64, Part>,
    open: bool,
    initiated: DateTime<Utc>,
}

#[derive(Debug, Clone)]
struct Part {
    bytes: Bytes,
    e_tag: String,
    crc32c: u32,
}

impl Part {
    fn new(bytes: Bytes) -> Self {
        Self {
            e_tag: format!("\"{}\"", hex(&Md5::digest(&bytes))),
            crc32c: crc32c(&bytes),
            bytes,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn crc_text(crc32c: u32) -> String {
    BASE64_STANDARD.encode(crc32c.to_be_bytes())
}

impl S3 {
    /// Creates an empty store that stores checksums as AWS does.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::with_checksums(true))
    }

    /// Creates an empty store without checksums except MD5, like many servers.
    #[must_use]
    pub fn plain() -> Arc<Self> {
        Arc::new(Self::with_checksums(false))
    }

    fn with_checksums(checksums: bool) -> Self {
        Self {
            objects: Arc::default(),
            dialect: DIALECT,
            uploads: Mutex::default(),
            checksums,
            min_part_len: MIN_PART_BYTES,
            page: PAGE,
        }
    }

    /// Creates the multipart uploads of another store, which owns the objects.
    pub(super) fn of(objects: &Arc<Objects>, dialect: Dialect) -> Self {
        Self {
            objects: Arc::clone(objects),
            dialect,
            ..Self::with_checksums(false)
        }
    }

    /// Creates an empty store of the same kind, with other limits: parts or uploads on a page of a list, and minimum part
    /// length in bytes.
    #[must_use]
    pub fn with_limits(self: &Arc<Self>, page: usize, min_part_len: usize) -> Arc<Self> {
        Arc::new(Self {
            page,
            min_part_len,
            ..Self::with_checksums(self.checksums)
        })
    }

    /// Returns the objects of the store.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the number of uploads that are neither completed, aborted nor forgotten.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        let uploads = self.uploads.lock();
        uploads.values().filter(|upload| upload.open).count()
    }

    /// Forgets all uploads, like a lifecycle rule.
    pub fn forget_uploads(&self) {
        for upload in self.uploads.lock().values_mut() {
            upload.open = false;
            upload.parts.clear();
        }
    }

    /// Returns the keys of the open uploads of a bucket, in order.
    #[must_use]
    pub fn open_keys(&self, bucket: &str) -> Vec<String> {
        let uploads = self.uploads.lock();
        let open = uploads
            .values()
            .filter(|upload| upload.open && upload.bucket == bucket);
        let mut keys: Vec<_> = open.map(|upload| upload.key.clone()).collect();
        keys.sort();
        keys
    }

    /// Moves the start of the uploads of this key into the past.
    pub fn age_uploads(&self, bucket: &str, key: &str, by: TimeDelta) {
        for upload in self.uploads.lock().values_mut() {
            if upload.bucket == bucket && upload.key == key {
                upload.initiated -= by;
            }
        }
    }

    /// ListMultipartUploads: the open uploads of a bucket, ordered by key and id.
    fn list_uploads(&self, request: &HttpRequest, bucket: &str) -> HttpResponse {
        let prefix = request.query("prefix").unwrap_or_default();
        let marker = request.query("key-marker").filter(|key| !key.is_empty());
        let upload_marker = request
            .query("upload-id-marker")
            .filter(|id| !id.is_empty());
        let uploads = self.uploads.lock();
        let mut found: Vec<_> = uploads
            .iter()
            .filter(|(_, upload)| upload.open && upload.bucket == bucket)
            .map(|(id, upload)| (&*upload.key, &**id, upload.initiated))
            .filter(|(key, id, _)| {
                key.starts_with(prefix)
                    && match (marker, upload_marker) {
                        (None, _) => true,
                        (Some(marker), None) => *key > marker,
                        (Some(marker), Some(last)) => (*key, *id) > (marker, last),
                    }
            })
            .collect();
        found.sort_unstable();
        let max = request
            .query("max-uploads")
            .and_then(|max| max.parse().ok());
        let page = max.unwrap_or(self.page).min(self.page);
        let encoded = request.query("encoding-type") == Some("url");
        let name = |key: &str| match encoded {
            // S3 uses the encoding of forms.
            true => utf8_percent_encode(key, NON_ALPHANUMERIC)
                .to_string()
                .replace("%2F", "/")
                .replace("%20", "+"),
            false => escape(key),
        };
        let mut text = format!("<ListMultipartUploadsResult><Bucket>{bucket}</Bucket>");
        if encoded {
            text.push_str("<EncodingType>url</EncodingType>");
        }
        let more = found.len() > page;
        found.truncate(page);
        if let (true, Some((key, id, _))) = (more, found.last()) {
            let _ = write!(
                text,
                "<NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>",
                name(key)
            );
        }
        let _ = write!(text, "<IsTruncated>{more}</IsTruncated>");
        for (key, id, initiated) in found {
            let _ = write!(
                text,
                "<Upload><Key>{}</Key><UploadId>{id}</UploadId><Initiated>{}</Initiated></Upload>",
                name(key),
                initiated.to_rfc3339_opts(SecondsFormat::Millis, true)
            );
        }
        text.push_str("</ListMultipartUploadsResult>");
        HttpResponse::status(200).body(text)
    }

    fn start(&self, request: &HttpRequest) -> HttpResponse {
        let (bucket, key) = request.bucket_and_key();
        let mut headers = BTreeMap::new();
        for (name, value) in &request.headers {
            let name = name.as_str();
            let stored = name.starts_with("content-")
                || name == "cache-control"
                || name.starts_with(self.dialect.metadata_prefix)
                || name == TAGGING;
            if stored
                && name != "content-length"
                && let Ok(value) = std::str::from_utf8(value.as_bytes())
            {
                headers.insert(name.to_owned(), value.to_owned());
            }
        }
        let full_object = request.header("x-amz-checksum-type") == Some("FULL_OBJECT");
        let mut uploads = self.uploads.lock();
        // Ids depend on bucket and key, so that concurrent uploads get the same ids in every run.
        let same = |upload: &&Upload| upload.bucket == bucket && upload.key == key;
        let nth = uploads.values().filter(same).count();
        let id = format!("{:08x}-{nth}", crc32c(format!("{bucket}/{key}").as_bytes()));
        let text = format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        let upload = Upload {
            bucket,
            key,
            headers,
            full_object,
            parts: BTreeMap::new(),
            open: true,
            initiated: Utc::now(),
        };
        uploads.insert(id, upload);
        let response = HttpResponse::status(200).body(text);
        if !self.checksums {
            return response;
        }
        let kind = if full_object {
            "FULL_OBJECT"
        } else {
            "COMPOSITE"
        };
        response
            .with("x-amz-checksum-algorithm", "CRC32C")
            .with("x-amz-checksum-type", kind)
    }

    fn put_part(&self, request: &HttpRequest, upload: &mut Upload, number: u64) -> HttpResponse {
        if !request.complete {
            return error_response(400, "IncompleteBody");
        }
        let part = Part::new(request.body.clone());
        let crc = crc_text(part.crc32c);
        let md5 = BASE64_STANDARD.encode(Md5::digest(&request.body));
        let wrong = |name, right: &str| request.header(name).is_some_and(|value| value != right);
        if wrong("content-md5", &md5) || (self.checksums && wrong("x-amz-checksum-crc32c", &crc)) {
            return error_response(400, "BadDigest");
        }
        let response = HttpResponse::status(200).with("etag", &part.e_tag);
        let stored = match request.fault {
            // StoredObject corrupt, although acknowledged; later responses describe the corrupt part.
            Some(ServerFault::FlipBit) => {
                let mut bytes = part.bytes.to_vec();
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 0x10;
                }
                Part::new(bytes.into())
            }
            _ => part,
        };
        upload.parts.insert(number, stored);
        if self.checksums {
            return response.with("x-amz-checksum-crc32c", &crc);
        }
        response
    }

    /// Copies a part from another object, if that has the stated ETag.
    fn copy_part(
        &self,
        request: &HttpRequest,
        upload: &mut Upload,
        (number, source): (u64, &str),
    ) -> HttpResponse {
        let source = decode(source.trim_start_matches('/'));
        let (bucket, key) = source.split_once('/').unwrap_or((&source, ""));
        let Some(stored) = self.objects.get(bucket, key) else {
            return error_response(404, "NoSuchKey");
        };
        let wanted = request.header("x-amz-copy-source-if-match");
        if wanted.is_some_and(|wanted| wanted != stored.e_tag) {
            return error_response(412, "PreconditionFailed");
        }
        let length = stored.bytes.len();
        let range = request.header("x-amz-copy-source-range");
        let bytes = match range.map(|range| byte_range(range, length)) {
            None => stored.bytes,
            Some(Some(range)) => stored.bytes.slice(range),
            Some(None) => return error_response(416, "InvalidRange"),
        };
        let part = Part::new(bytes);
        let e_tag = escape(&part.e_tag);
        upload.parts.insert(number, part);
        let text = format!("<CopyPartResult><ETag>{e_tag}</ETag></CopyPartResult>");
        HttpResponse::status(200).body(text)
    }

    fn list_parts(&self, request: &HttpRequest, upload: &Upload, id: &str) -> HttpResponse {
        let marker = request
            .query("part-number-marker")
            .and_then(|text| text.parse::<u64>().ok());
        let after = marker.unwrap_or(0) + 1;
        let mut text = format!("<ListPartsResult><UploadId>{id}</UploadId>");
        let mut last = 0;
        for (number, part) in upload.parts.range(after..).take(self.page) {
            last = *number;
            let _ = write!(
                text,
                "<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag><Size>{}</Size>",
                escape(&part.e_tag),
                part.bytes.len()
            );
            if self.checksums {
                let _ = write!(
                    text,
                    "<ChecksumCRC32C>{}</ChecksumCRC32C>",
                    crc_text(part.crc32c)
                );
            }
            text.push_str("</Part>");
        }
        let more = last > 0 && upload.parts.range(last + 1..).next().is_some();
        let _ = write!(
            text,
            "<NextPartNumberMarker>{last}</NextPartNumberMarker><IsTruncated>{more}</IsTruncated></ListPartsResult>"
        );
        HttpResponse::status(200).body(text)
    }

    fn complete(&self, request: &HttpRequest, upload: &mut Upload) -> HttpResponse {
        let text = String::from_utf8_lossy(&request.body);
        let Some(named) = named_parts(&text).filter(|named| !named.is_empty()) else {
            return error_response(400, "MalformedXML");
        };
        let (mut bytes, mut md5s, mut before) = (Vec::new(), Vec::new(), 0);
        for (index, (number, e_tag)) in named.iter().enumerate() {
            let Some(part) = upload.parts.get(number).filter(|part| part.e_tag == *e_tag) else {
                return error_response(400, "InvalidPart");
            };
            if *number <= before {
                return error_response(400, "InvalidPartOrder");
            }
            before = *number;
            if index + 1 < named.len() && part.bytes.len() < self.min_part_len {
                return error_response(400, "EntityTooSmall");
            }
            bytes.extend_from_slice(&part.bytes);
            md5s.extend_from_slice(&Md5::digest(&part.bytes));
        }
        let crc = crc_text(crc32c(&bytes));
        let checksum = request.header("x-amz-checksum-crc32c");
        if self.checksums && checksum.is_some_and(|checksum| checksum != crc) {
            return error_response(400, "BadDigest");
        }
        let e_tag = format!("\"{}-{}\"", hex(&Md5::digest(&md5s)), named.len());
        let mut headers = upload.headers.clone();
        if self.checksums && upload.full_object {
            headers.insert("x-amz-checksum-crc32c".to_owned(), crc.clone());
            headers.insert("x-amz-checksum-type".to_owned(), "FULL_OBJECT".to_owned());
        }
        // The ETag format of objects from multipart uploads.
        headers.insert("etag".to_owned(), e_tag.clone());
        let holds = |current: Option<&StoredObject>| preconditions_hold(request, current);
        let put = self
            .objects
            .put(&upload.bucket, &upload.key, bytes.into(), headers, holds);
        let Some(stored) = put else {
            return error_response(412, "PreconditionFailed");
        };
        upload.open = false;
        upload.parts.clear();
        let mut text = format!(
            "  <CompleteMultipartUploadResult><ETag>{}</ETag>",
            escape(&e_tag)
        );
        if self.checksums && upload.full_object {
            let _ = write!(text, "<ChecksumCRC32C>{crc}</ChecksumCRC32C>");
        }
        text.push_str("</CompleteMultipartUploadResult>");
        HttpResponse::status(200)
            .with("x-amz-version-id", &stored.generation.to_string())
            .body(text)
    }

    fn in_upload(&self, request: &HttpRequest, id: &str) -> HttpResponse {
        let (bucket, key) = request.bucket_and_key();
        let mut uploads = self.uploads.lock();
        let found = uploads
            .get_mut(id)
            .filter(|upload| upload.open && upload.bucket == bucket && upload.key == key);
        let Some(upload) = found else {
            return error_response(404, "NoSuchUpload");
        };
        match request.fault {
            Some(ServerFault::ForgetUpload) => {
                upload.open = false;
                upload.parts.clear();
                return error_response(404, "NoSuchUpload");
            }
            Some(ServerFault::LoseBytes(_)) => {
                upload.parts.pop_last();
            }
            _ => {}
        }
        let number = request
            .query("partNumber")
            .and_then(|number| number.parse().ok());
        match (&request.method, number) {
            (&Method::PUT, Some(number @ 1..=10_000)) => {
                match request.header(self.dialect.copy_source) {
                    Some(source) => self.copy_part(request, upload, (number, source)),
                    None => self.put_part(request, upload, number),
                }
            }
            (&Method::PUT, _) => error_response(400, "InvalidArgument"),
            (&Method::GET, _) => self.list_parts(request, upload, id),
            (&Method::DELETE, _) => {
                upload.open = false;
                upload.parts.clear();
                HttpResponse::status(204)
            }
            (&Method::POST, _) if request.complete => self.complete(request, upload),
            _ => error_response(400, "IncompleteBody"),
        }
    }
}

/// Parses the numbers and ETags of the parts in a completion.
fn named_parts(text: &str) -> Option<Vec<(u64, String)>> {
    let inside = |text: &str, tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once(&format!("</{tag}>"))?.0.to_owned())
    };
    text.split("</Part>")
        .filter(|piece| piece.contains("<Part>"))
        .map(|piece| {
            let e_tag = inside(piece, "ETag")?.replace("&quot;", "\"");
            Some((inside(piece, "PartNumber")?.parse().ok()?, e_tag))
        })
        .collect()
}

impl Protocol for S3 {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if let Some(id) = request.query("uploadId") {
            return self.in_upload(request, id);
        }
        if let Some(refused) = tags::refused(request) {
            return refused;
        }
        if request.method == Method::POST && request.query("uploads").is_some() {
            return self.start(request);
        }
        if request.query("tagging").is_some() {
            return tags::respond(&self.objects, request);
        }
        let (bucket, key) = request.bucket_and_key();
        if request.method == Method::POST && key.is_empty() && request.query("delete").is_some() {
            return deletes::respond(&self.objects, request, &bucket);
        }
        if request.method == Method::GET && key.is_empty() && request.query("uploads").is_some() {
            return self.list_uploads(request, &bucket);
        }
        if self.checksums || self.dialect.version != DIALECT.version {
            return self.objects.respond(request, self.dialect);
        }
        // As servers that ignore the header; then nothing would tell that they have other bytes.
        let mut request = request.clone();
        request.headers.remove("x-amz-checksum-crc32c");
        request.fault = request.fault.filter(|fault| *fault != ServerFault::FlipBit);
        self.objects.respond(&request, self.dialect)
    }
}
