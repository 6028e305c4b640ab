//! Protocol of resumable S3 multipart uploads: requests, and the outcome of responses. No I/O, no clock:
//! `client.rs` sends the requests.
//!
//! The part number of a chunk is its index plus one. S3 does not report where a part begins. So a process that takes
//! an upload over can only place parts without a gap before them; others are sent again.

mod uploads;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use md5::{Digest as _, Md5};
use object_store::{Attributes, PutMode};
use serde::Deserialize;

pub(super) use self::uploads::{UploadsPage, uploads_query};
use crate::digest::{
    ContentDigest, crc32c_of_base64, crc32c_to_base64, hex, md5_of_e_tag, pieces_md5,
};
use crate::http_client::Response;
pub(super) use crate::multipart_xml::Part;
use crate::multipart_xml::PartElement;
use crate::session::{ChunkRule, StoredRange};
use crate::stated_headers::{AttributeNames, header_of};

/// The operation that a store without copies of parts lacks.
pub(super) const NO_COPIES: &str = "copies of parts";
/// S3's rule for parts.
pub(super) const RULE: ChunkRule = ChunkRule {
    granule: 1,
    min: 5 << 20,
    max: 5 << 30,
    max_chunks: Some(10_000),
    parallel: true,
};

/// Checksums that the store announced at the start of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// None announced: parts are sent with their MD5, which every store checks.
    Md5,
    /// CRC32C of each part.
    Parts,
    /// CRC32C of each part and of the object.
    Object,
}

impl Checksums {
    /// Returns the checksums announced in the response to the start of an upload.
    pub(super) fn promised(response: &Response) -> Self {
        let is = |name, value: &str| {
            response
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

/// An upload, as encoded in its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct S3Upload {
    pub(super) id: String,
    pub(super) checksums: Checksums,
}

impl S3Upload {
    /// Upload of an id alone: no checksums were announced for it.
    pub(super) fn without_checksums(id: String) -> Self {
        let checksums = Checksums::Md5;
        Self { id, checksums }
    }

    /// Returns the token: a line for the upload, and a line of JSON for each acknowledged part.
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

/// Returns whether two tokens identify one upload; its id alone is a token too. ListMultipartUploads may omit
/// checksum settings.
pub(crate) fn same_upload(one: &str, other: &str) -> bool {
    let id = |token: &str| {
        S3Upload::parse(token).map_or_else(|| token.to_owned(), |(upload, _)| upload.id)
    };
    id(one) == id(other)
}

/// Returns the headers of a request that starts an upload.
pub(super) fn start_headers(attributes: &Attributes) -> HeaderMap {
    let mut headers = attribute_headers(attributes);
    for (name, value) in [
        ("x-amz-checksum-algorithm", "CRC32C"),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    ] {
        let name = HeaderName::from_static(name);
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
}

/// Returns content headers and user metadata as headers of a request.
pub(crate) fn attribute_headers(attributes: &Attributes) -> HeaderMap {
    let names = AttributeNames {
        content: "",
        class: "x-amz-storage-class",
        metadata: "x-amz-meta-",
    };
    let mut headers = names.headers(attributes);
    for (attribute, value) in attributes {
        if let (Some(name), Some(metadata)) = (header_of(attribute), names.of(attribute)) {
            headers.remove(metadata);
            headers.extend(HeaderValue::from_str(value).map(|value| (name, value)));
        }
    }
    headers
}

#[derive(Debug, Deserialize)]
struct StartDocument {
    #[serde(rename = "UploadId")]
    id: String,
}

/// Returns the id of the upload that was started.
pub(super) fn started(response: &Response) -> Option<String> {
    let text = std::str::from_utf8(&response.body).ok()?;
    let parsed: StartDocument = quick_xml::de::from_str(text).ok()?;
    Some(parsed.id).filter(|id| response.status.is_success() && !id.is_empty())
}

/// Returns the header with which the store checks a part.
pub(super) fn part_headers(
    checksums: Checksums,
    crc32c: u32,
    pieces: &[bytes::Bytes],
) -> HeaderMap {
    let (name, value) = match checksums {
        Checksums::Md5 => ("content-md5", pieces_md5(pieces)),
        Checksums::Parts | Checksums::Object => ("x-amz-checksum-crc32c", crc32c_to_base64(crc32c)),
    };
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&value) {
        headers.insert(HeaderName::from_static(name), value);
    }
    headers
}

/// Returns the headers of a completion.
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
        let value =
            HeaderValue::from_str(&crc32c_to_base64(crc32c)).map_err(|error| error.to_string())?;
        headers.insert(HeaderName::from_static("x-amz-checksum-crc32c"), value);
        let name = HeaderName::from_static("x-amz-checksum-type");
        headers.insert(name, HeaderValue::from_static("FULL_OBJECT"));
    }
    Ok(headers)
}

/// The parts of an upload, by number.
pub(super) type Parts = BTreeMap<u64, Part>;

/// Returns the ranges of the parts without a gap before them. Stops where the reported sizes exceed any object.
pub(super) fn stored_ranges(parts: &Parts) -> Vec<StoredRange> {
    let mut start = 0_u64;
    let contiguous = parts
        .values()
        .zip(1..)
        .take_while(|(part, n)| part.number == *n || planted!("s3-parts-with-a-gap"));
    contiguous
        .map_while(|(part, _)| {
            let range = start..start.checked_add(part.size)?;
            start = range.end;
            let crc32c = part.crc32c.as_deref().and_then(crc32c_of_base64);
            Some(StoredRange {
                range,
                digest: crc32c
                    .map(ContentDigest::Crc32c)
                    .or_else(|| md5_of_e_tag(&part.e_tag).map(ContentDigest::Md5)),
            })
        })
        .collect()
}

/// Returns the first parts that together are an object of `length` bytes; `None` if there are none.
pub(super) fn covering(parts: &Parts, length: u64) -> Option<Vec<Part>> {
    let (mut sum, mut found) = (0_u64, Vec::new());
    for (part, number) in parts.values().zip(1..) {
        if part.number != number || (sum == length && !found.is_empty()) {
            break;
        }
        sum = sum.checked_add(part.size)?;
        found.push(part.clone());
    }
    (sum == length && !found.is_empty()).then_some(found)
}

/// The parts as a completion names them.
pub(super) fn elements(
    parts: &[Part],
    checksums: Checksums,
) -> impl Iterator<Item = PartElement<'_>> {
    parts.iter().map(move |part| PartElement {
        e_tag: &part.e_tag,
        crc32c: part
            .crc32c
            .as_deref()
            .filter(|_| checksums != Checksums::Md5),
        number: part.number,
    })
}

/// Returns the ETag of the object of these parts, where ETags are MD5s: it verifies the object if the response was
/// lost.
pub(super) fn object_e_tag(parts: &[Part]) -> Option<String> {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(md5_of_e_tag(&part.e_tag)?);
    }
    let hex = hex(&md5.finalize());
    Some(format!("\"{hex}-{}\"", parts.len()))
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
