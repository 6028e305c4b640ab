//! Multipart uploads of S3 as another process can take them over: what is asked, and what an answer means. No I/O, no clock.
//!
//! A chunk is the part of its index plus one. S3 does not say where a part begins, so only parts without a gap before them
//! have a place for who did not send them; others are sent again.

mod uploads;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest as _, Md5};
use object_store::{Attribute, Attributes, PutMode};
use serde::{Deserialize, Serialize};

pub(super) use self::uploads::{UploadsPage, uploads_query};
use super::super::multipart_xml::ErrorAnswer;
use crate::upload::http::Answer;
use crate::upload::{ChunkRule, Digest, Finished, Kept};

/// What S3 asks of parts.
pub(super) const RULE: ChunkRule = ChunkRule {
    granule: 1,
    least: 5 << 20,
    most: 5 << 30,
    chunks: Some(10_000),
    parallel: true,
};

/// What the store said at the start of an upload of the checksums it would keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// None that it named: parts come with their MD5, which every store checks.
    Md5,
    /// CRC32C of each part.
    Parts,
    /// CRC32C of each part and of the object.
    Object,
}

impl Checksums {
    /// What the answer to the start of an upload promises.
    pub(super) fn promised(answer: &Answer) -> Self {
        let is = |name, value: &str| {
            answer
                .header(name)
                .is_some_and(|have| have.eq_ignore_ascii_case(value))
        };
        match (
            is("x-amz-checksum-algorithm", "CRC32C"),
            is("x-amz-checksum-type", "FULL_OBJECT"),
        ) {
            (true, true) => Self::Object,
            (true, false) => Self::Parts,
            (false, _) => Self::Md5,
        }
    }
}

/// An upload as its token says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upload {
    pub(super) id: String,
    pub(super) checksums: Checksums,
}

impl Upload {
    /// A line for the upload, and one of JSON for each part that the store acknowledged.
    pub(super) fn token(&self, parts: &Parts) -> String {
        let checksums = match self.checksums {
            Checksums::Md5 => "md5",
            Checksums::Parts => "parts",
            Checksums::Object => "object",
        };
        let mut token = format!("{checksums} {}", self.id);
        for part in parts.values() {
            let part = serde_json::to_string(part).expect("numbers and texts are JSON");
            let _ = write!(token, "\n{part}");
        }
        token
    }

    pub(super) fn parse(token: &str) -> Option<(Self, Parts)> {
        let mut lines = token.split('\n');
        let (checksums, id) = lines.next()?.split_once(' ')?;
        let checksums = match checksums {
            "md5" => Checksums::Md5,
            "parts" => Checksums::Parts,
            "object" => Checksums::Object,
            _ => return None,
        };
        let parts = lines.map(|line| {
            let part: Part = serde_json::from_str(line).ok()?;
            Some((part.number, part))
        });
        let upload = Self {
            id: Some(id).filter(|id| !id.is_empty())?.to_owned(),
            checksums,
        };
        Some((upload, parts.collect::<Option<_>>()?))
    }
}

/// Whether two tokens are of one upload, whose id alone is a token too. A list of uploads may not tell of checksums what the
/// start of the upload did.
pub(super) fn same_upload(one: &str, other: &str) -> bool {
    let id = |token: &str| {
        Upload::parse(token).map_or_else(|| token.to_owned(), |(upload, _)| upload.id)
    };
    id(one) == id(other)
}

/// The headers of a request that starts an upload.
pub(super) fn start_headers(attributes: &Attributes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    };
    for (attribute, value) in attributes {
        match attribute {
            Attribute::CacheControl => set("cache-control", value),
            Attribute::ContentDisposition => set("content-disposition", value),
            Attribute::ContentEncoding => set("content-encoding", value),
            Attribute::ContentLanguage => set("content-language", value),
            Attribute::ContentType => set("content-type", value),
            Attribute::StorageClass => set("x-amz-storage-class", value),
            Attribute::Metadata(name) => set(&format!("x-amz-meta-{name}"), value),
            // None of object_store 0.14's.
            _ => {}
        }
    }
    set("x-amz-checksum-algorithm", "CRC32C");
    set("x-amz-checksum-type", "FULL_OBJECT");
    headers
}

#[derive(Debug, Deserialize)]
struct StartAnswer {
    #[serde(rename = "UploadId")]
    id: String,
}

/// The id of the upload that an answer says was started.
pub(super) fn started(answer: &Answer) -> Option<String> {
    let text = std::str::from_utf8(&answer.body).ok()?;
    let parsed: StartAnswer = quick_xml::de::from_str(text).ok()?;
    Some(parsed.id).filter(|id| answer.status.is_success() && !id.is_empty())
}

/// The header by which the store checks a part.
pub(super) fn part_headers(
    checksums: Checksums,
    crc32c: u32,
    pieces: &[bytes::Bytes],
) -> HeaderMap {
    let (name, value) = match checksums {
        Checksums::Md5 => {
            let mut md5 = Md5::new();
            pieces.iter().for_each(|piece| md5.update(piece));
            ("content-md5", BASE64_STANDARD.encode(md5.finalize()))
        }
        Checksums::Parts | Checksums::Object => ("x-amz-checksum-crc32c", crc_text(crc32c)),
    };
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&value) {
        headers.insert(HeaderName::from_static(name), value);
    }
    headers
}

/// The headers of a completion.
pub(super) fn complete_headers(
    checksums: Checksums,
    crc32c: u32,
    mode: &PutMode,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    match mode {
        PutMode::Overwrite => {}
        PutMode::Create => {
            headers.insert(http::header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        PutMode::Update(version) => {
            let e_tag = version
                .e_tag
                .as_deref()
                .ok_or("an ETag is needed to replace conditionally")?;
            let value = HeaderValue::from_str(e_tag).map_err(|error| error.to_string())?;
            headers.insert(http::header::IF_MATCH, value);
        }
    }
    if checksums == Checksums::Object {
        let value = HeaderValue::from_str(&crc_text(crc32c)).map_err(|error| error.to_string())?;
        headers.insert(HeaderName::from_static("x-amz-checksum-crc32c"), value);
        let name = HeaderName::from_static("x-amz-checksum-type");
        headers.insert(name, HeaderValue::from_static("FULL_OBJECT"));
    }
    Ok(headers)
}

fn crc_text(crc32c: u32) -> String {
    BASE64_STANDARD.encode(crc32c.to_be_bytes())
}

/// A CRC32C as S3 writes it. That of several parts' checksums, which ends in their count, is none.
pub(super) fn crc_of(text: &str) -> Option<u32> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The MD5 in a plain ETag. Whether the ETag is one, S3 does not say: an encrypted part's only looks like it.
fn md5_of(e_tag: &str) -> Option<[u8; 16]> {
    let hex = e_tag.trim_matches('"');
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut md5 = [0; 16];
    for (byte, digits) in md5.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(md5)
}

/// A part the store keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "PartNumber")]
    pub(super) number: u64,
    #[serde(rename = "Size")]
    pub(super) size: u64,
    #[serde(rename = "ETag")]
    pub(super) e_tag: String,
    #[serde(rename = "ChecksumCRC32C")]
    pub(super) crc32c: Option<String>,
}

/// One page of a list of parts.
#[derive(Debug, Deserialize)]
pub(super) struct PartsPage {
    /// There, so that something else than a list of parts is told from a list without parts.
    #[serde(rename = "UploadId")]
    _upload: String,
    #[serde(rename = "IsTruncated", default)]
    truncated: bool,
    #[serde(rename = "NextPartNumberMarker")]
    next: Option<String>,
    #[serde(rename = "Part", default)]
    pub(super) parts: Vec<Part>,
}

impl PartsPage {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        quick_xml::de::from_str(text).map_err(|error| error.to_string())
    }

    /// What to ask for next.
    pub(super) fn next(&self) -> Option<&str> {
        self.next.as_deref().filter(|_| self.truncated)
    }
}

/// The parts an upload has, by number.
pub(super) type Parts = BTreeMap<u64, Part>;

/// Where the parts lie that have no gap before them. Sizes are what the store says: a sum beyond any object ends them.
pub(super) fn kept(parts: &Parts) -> Vec<Kept> {
    let mut start = 0_u64;
    let contiguous = parts
        .values()
        .zip(1..)
        .take_while(|(part, n)| part.number == *n);
    contiguous
        .map_while(|(part, _)| {
            let range = start..start.checked_add(part.size)?;
            start = range.end;
            let crc32c = part.crc32c.as_deref().and_then(crc_of);
            Some(Kept {
                range,
                digest: crc32c
                    .map(Digest::Crc32c)
                    .or_else(|| md5_of(&part.e_tag).map(Digest::Md5)),
            })
        })
        .collect()
}

/// The first parts that are an object of `length` bytes together; `None` if there are no such parts.
pub(super) fn covering(parts: &Parts, length: u64) -> Option<Vec<&Part>> {
    let (mut sum, mut found) = (0_u64, Vec::new());
    for (part, number) in parts.values().zip(1..) {
        if part.number != number || (sum == length && !found.is_empty()) {
            break;
        }
        sum = sum.checked_add(part.size)?;
        found.push(part);
    }
    (sum == length && !found.is_empty()).then_some(found)
}

/// The body of a completion.
pub(super) fn complete_body(parts: &[&Part], checksums: Checksums) -> String {
    let mut xml =
        String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        let e_tag = quick_xml::escape::escape(&part.e_tag);
        let _ = write!(xml, "<Part><ETag>{e_tag}</ETag>");
        if let Some(crc32c) = part.crc32c.as_ref().filter(|_| checksums != Checksums::Md5) {
            let _ = write!(xml, "<ChecksumCRC32C>{crc32c}</ChecksumCRC32C>");
        }
        let _ = write!(xml, "<PartNumber>{}</PartNumber></Part>", part.number);
    }
    xml.push_str("</CompleteMultipartUpload>");
    xml
}

/// The ETag that the object of these parts has, where ETags are MD5s: it proves the object when the answer was lost.
pub(super) fn object_e_tag(parts: &[&Part]) -> Option<String> {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(md5_of(&part.e_tag)?);
    }
    let hex: String = md5
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(format!("\"{hex}-{}\"", parts.len()))
}

#[derive(Debug, Deserialize)]
struct CompleteAnswer {
    #[serde(rename = "ETag")]
    e_tag: String,
    #[serde(rename = "ChecksumCRC32C")]
    crc32c: Option<String>,
}

/// What an answer means to an upload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The object is there.
    Finished(Finished),
    /// The store does not know the upload.
    Gone,
    /// A part is not what we believe it is.
    Stale,
    /// The bytes do not have the checksum that was sent with them.
    Damaged(String),
    /// It may be otherwise the next time, whatever the status says.
    Passing(String),
    /// The status says what to do; this is the store's reason.
    Refused(String),
}

/// What an answer other than the one hoped for means.
pub(super) fn failure(answer: &Answer) -> Meaning {
    let text = String::from_utf8_lossy(&answer.body);
    let Ok(ErrorAnswer { code, message }) = quick_xml::de::from_str(text.trim_start()) else {
        // A 404 alone does not tell a bucket that is missing from an upload that has ended.
        return match answer.status.is_success() || answer.status == 404 {
            true => Meaning::Passing("an answer that cannot be read".to_owned()),
            false => Meaning::Refused(String::new()),
        };
    };
    let reason = format!("{code}: {message}");
    match code.as_str() {
        "NoSuchUpload" => Meaning::Gone,
        "InvalidPart" | "InvalidPartOrder" => Meaning::Stale,
        "BadDigest" | "XAmzContentChecksumMismatch" => Meaning::Damaged(reason),
        // A body that was cut; a conditional write under way; an upload that another request ends.
        "IncompleteBody" | "ConditionalRequestConflict" | "OperationAborted" => {
            Meaning::Passing(reason)
        }
        _ if answer.status.is_success() => Meaning::Passing(reason),
        _ => Meaning::Refused(reason),
    }
}

/// What the answer to a completion means. It may be 200 and yet an error, since it begins before the work is done, and it may
/// have blanks before it, by which the store keeps the connection alive.
pub(super) fn completed(answer: &Answer, checksums: Checksums) -> Meaning {
    let text = String::from_utf8_lossy(&answer.body);
    let parsed: Result<CompleteAnswer, _> = quick_xml::de::from_str(text.trim_start());
    let Some(done) = parsed.ok().filter(|_| answer.status.is_success()) else {
        return failure(answer);
    };
    let crc32c = done.crc32c.as_deref().and_then(crc_of);
    Meaning::Finished(Finished {
        e_tag: Some(done.e_tag),
        version: answer.header("x-amz-version-id").map(str::to_owned),
        length: None,
        crc32c: crc32c.filter(|_| checksums == Checksums::Object),
    })
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
