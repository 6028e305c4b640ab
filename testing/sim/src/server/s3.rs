//! S3, as far as uploads and their clients go: multipart uploads with CRC32C of parts and of the object, and whole objects.
//!
//! A part is kept whole or not at all. Signatures are not checked.

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

use super::objects::{Dialect, Objects, Stored, allowed, crc32c, escape, failure};
use super::{Asked, Protocol, Reply, ServerFault};

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-amz-meta-",
    copy_source: "x-amz-copy-source",
    version: "x-amz-version-id",
};
/// No part but the last is shorter, in bytes.
const LEAST_PART_BYTES: usize = 5 << 20;
/// Parts, or uploads, on a page of a list.
const PAGE: usize = 1000;

/// The store. Give it to [`super::Server::start`], and keep it to look at its objects.
#[derive(Debug)]
pub struct S3 {
    objects: Arc<Objects>,
    dialect: Dialect,
    uploads: Mutex<BTreeMap<String, Upload>>,
    checksums: bool,
    least_part: usize,
    page: usize,
}

#[derive(Debug)]
struct Upload {
    bucket: String,
    key: String,
    headers: BTreeMap<String, String>,
    /// It was started with `x-amz-checksum-type: FULL_OBJECT`.
    whole: bool,
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
    /// An empty store that keeps checksums as AWS does.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::keeping(true))
    }

    /// An empty store that knows no checksum but MD5, as many servers do.
    #[must_use]
    pub fn plain() -> Arc<Self> {
        Arc::new(Self::keeping(false))
    }

    fn keeping(checksums: bool) -> Self {
        Self {
            objects: Arc::default(),
            dialect: DIALECT,
            uploads: Mutex::default(),
            checksums,
            least_part: LEAST_PART_BYTES,
            page: PAGE,
        }
    }

    /// Multipart uploads of another store, which become objects there.
    pub(super) fn of(objects: &Arc<Objects>, dialect: Dialect) -> Self {
        Self {
            objects: Arc::clone(objects),
            dialect,
            ..Self::keeping(false)
        }
    }

    /// The same, empty, with so many parts or uploads on a page of a list, and parts from so many bytes.
    #[must_use]
    pub fn with_rules(self: &Arc<Self>, page: usize, least_part: usize) -> Arc<Self> {
        Arc::new(Self {
            page,
            least_part,
            ..Self::keeping(self.checksums)
        })
    }

    /// Its objects.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Uploads that were started and neither completed, aborted nor forgotten.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        let uploads = self.uploads.lock();
        uploads.values().filter(|upload| upload.open).count()
    }

    /// Forgets all uploads, as a bucket's rule may say.
    pub fn forget_uploads(&self) {
        for upload in self.uploads.lock().values_mut() {
            upload.open = false;
            upload.parts.clear();
        }
    }

    /// Keys of the open uploads of a bucket, in order.
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

    /// Makes uploads of this key older.
    pub fn age_uploads(&self, bucket: &str, key: &str, by: TimeDelta) {
        for upload in self.uploads.lock().values_mut() {
            if upload.bucket == bucket && upload.key == key {
                upload.initiated -= by;
            }
        }
    }

    /// The open uploads of a bucket, by key and id.
    fn list_uploads(&self, asked: &Asked, bucket: &str) -> Reply {
        let prefix = asked.query("prefix").unwrap_or_default();
        let marker = asked.query("key-marker").filter(|key| !key.is_empty());
        let upload_marker = asked.query("upload-id-marker").filter(|id| !id.is_empty());
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
        let most = asked
            .query("max-uploads")
            .and_then(|most| most.parse().ok());
        let page = most.unwrap_or(self.page).min(self.page);
        let encoded = asked.query("encoding-type") == Some("url");
        let name = |key: &str| match encoded {
            // As a form, which is how S3 does it.
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
        Reply::status(200).body(text)
    }

    fn start(&self, asked: &Asked) -> Reply {
        let (bucket, key) = asked.bucket_and_key();
        let mut headers = BTreeMap::new();
        for (name, value) in &asked.headers {
            let name = name.as_str();
            let kept =
                name.starts_with("content-") || name.starts_with(self.dialect.metadata_prefix);
            if kept
                && name != "content-length"
                && let Ok(value) = value.to_str()
            {
                headers.insert(name.to_owned(), value.to_owned());
            }
        }
        let whole = asked.header("x-amz-checksum-type") == Some("FULL_OBJECT");
        let mut uploads = self.uploads.lock();
        // Known by bucket and key, so that uploads side by side get the same ids in every run.
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
            whole,
            parts: BTreeMap::new(),
            open: true,
            initiated: Utc::now(),
        };
        uploads.insert(id, upload);
        let reply = Reply::status(200).body(text);
        if !self.checksums {
            return reply;
        }
        let kind = if whole { "FULL_OBJECT" } else { "COMPOSITE" };
        reply
            .with("x-amz-checksum-algorithm", "CRC32C")
            .with("x-amz-checksum-type", kind)
    }

    fn put_part(&self, asked: &Asked, upload: &mut Upload, number: u64) -> Reply {
        if !asked.complete {
            return failure(400, "IncompleteBody");
        }
        let part = Part::new(asked.body.clone());
        let crc = crc_text(part.crc32c);
        let md5 = BASE64_STANDARD.encode(Md5::digest(&asked.body));
        let wrong = |name, right: &str| asked.header(name).is_some_and(|told| told != right);
        if wrong("content-md5", &md5) || (self.checksums && wrong("x-amz-checksum-crc32c", &crc)) {
            return failure(400, "BadDigest");
        }
        let reply = Reply::status(200).with("etag", &part.e_tag);
        let kept = match asked.fault {
            // Kept wrong, though acknowledged; what the store says of it later is true.
            Some(ServerFault::Flip) => {
                let mut bytes = part.bytes.to_vec();
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 0x10;
                }
                Part::new(bytes.into())
            }
            _ => part,
        };
        upload.parts.insert(number, kept);
        if self.checksums {
            return reply.with("x-amz-checksum-crc32c", &crc);
        }
        reply
    }

    fn list_parts(&self, asked: &Asked, upload: &Upload, id: &str) -> Reply {
        let marker = asked
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
        Reply::status(200).body(text)
    }

    fn complete(&self, asked: &Asked, upload: &mut Upload) -> Reply {
        let text = String::from_utf8_lossy(&asked.body);
        let Some(named) = named_parts(&text).filter(|named| !named.is_empty()) else {
            return failure(400, "MalformedXML");
        };
        let (mut bytes, mut md5s, mut before) = (Vec::new(), Vec::new(), 0);
        for (index, (number, e_tag)) in named.iter().enumerate() {
            let Some(part) = upload.parts.get(number).filter(|part| part.e_tag == *e_tag) else {
                return failure(400, "InvalidPart");
            };
            if *number <= before {
                return failure(400, "InvalidPartOrder");
            }
            before = *number;
            if index + 1 < named.len() && part.bytes.len() < self.least_part {
                return failure(400, "EntityTooSmall");
            }
            bytes.extend_from_slice(&part.bytes);
            md5s.extend_from_slice(&Md5::digest(&part.bytes));
        }
        let crc = crc_text(crc32c(&bytes));
        let told = asked.header("x-amz-checksum-crc32c");
        if self.checksums && told.is_some_and(|told| told != crc) {
            return failure(400, "BadDigest");
        }
        let e_tag = format!("\"{}-{}\"", hex(&Md5::digest(&md5s)), named.len());
        let mut headers = upload.headers.clone();
        if self.checksums && upload.whole {
            headers.insert("x-amz-checksum-crc32c".to_owned(), crc.clone());
            headers.insert("x-amz-checksum-type".to_owned(), "FULL_OBJECT".to_owned());
        }
        // The ETag of an object of parts, which whole objects do not have.
        headers.insert("etag".to_owned(), e_tag.clone());
        let holds = |current: Option<&Stored>| allowed(asked, current);
        let put = self
            .objects
            .put(&upload.bucket, &upload.key, bytes.into(), headers, holds);
        let Some(stored) = put else {
            return failure(412, "PreconditionFailed");
        };
        upload.open = false;
        upload.parts.clear();
        let mut text = format!(
            "  <CompleteMultipartUploadResult><ETag>{}</ETag>",
            escape(&e_tag)
        );
        if self.checksums && upload.whole {
            let _ = write!(text, "<ChecksumCRC32C>{crc}</ChecksumCRC32C>");
        }
        text.push_str("</CompleteMultipartUploadResult>");
        Reply::status(200)
            .with("x-amz-version-id", &stored.generation.to_string())
            .body(text)
    }

    fn in_upload(&self, asked: &Asked, id: &str) -> Reply {
        let (bucket, key) = asked.bucket_and_key();
        let mut uploads = self.uploads.lock();
        let found = uploads
            .get_mut(id)
            .filter(|upload| upload.open && upload.bucket == bucket && upload.key == key);
        let Some(upload) = found else {
            return failure(404, "NoSuchUpload");
        };
        match asked.fault {
            Some(ServerFault::Forget) => {
                upload.open = false;
                upload.parts.clear();
                return failure(404, "NoSuchUpload");
            }
            Some(ServerFault::Lose(_)) => {
                upload.parts.pop_last();
            }
            _ => {}
        }
        let number = asked
            .query("partNumber")
            .and_then(|number| number.parse().ok());
        match (&asked.method, number) {
            (&Method::PUT, Some(number @ 1..=10_000)) => self.put_part(asked, upload, number),
            (&Method::PUT, _) => failure(400, "InvalidArgument"),
            (&Method::GET, _) => self.list_parts(asked, upload, id),
            (&Method::DELETE, _) => {
                upload.open = false;
                upload.parts.clear();
                Reply::status(204)
            }
            (&Method::POST, _) if asked.complete => self.complete(asked, upload),
            _ => failure(400, "IncompleteBody"),
        }
    }
}

/// Numbers and ETags of the parts that a completion names.
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
    fn answer(&self, asked: &Asked) -> Reply {
        if let Some(id) = asked.query("uploadId") {
            return self.in_upload(asked, id);
        }
        if asked.method == Method::POST && asked.query("uploads").is_some() {
            return self.start(asked);
        }
        let (bucket, key) = asked.bucket_and_key();
        if asked.method == Method::GET && key.is_empty() && asked.query("uploads").is_some() {
            return self.list_uploads(asked, &bucket);
        }
        self.objects.answer(asked, self.dialect)
    }
}
