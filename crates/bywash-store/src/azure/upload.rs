//! Encoding of upload ids and block ids.
//!
//! All blocks of a blob have ids of one length, so ours have a fixed 48 bytes: 16 bytes that name the upload, the
//! part's number, and a tag that is new each time the part is sent. (A session's block ids encode more, see
//! `session.rs`.) So an earlier block of the same part stays distinct, and a completion names exactly the blocks it
//! lists.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::HeaderName;
use object_store::path::Path;
use object_store::{Attributes, Result};
use rand::RngExt;
use serde::Serialize;

use super::names::{encoded, renamed};
use crate::error::not_found_error;
use crate::http_client::Response;
use crate::multipart_xml::ErrorDocument;
use crate::stated_headers::AttributeNames;

/// Hexadecimal digits of an upload's name and of a part's tag.
const DIGITS: usize = 16;

/// One upload: its name among the blob's blocks, and the headers of the blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockUpload {
    name: String,
    headers: BTreeMap<String, String>,
}

fn random_hex() -> String {
    format!("{:0DIGITS$x}", rand::rng().random::<u64>())
}

pub(super) fn is_hex(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the tag of a part about to be sent: its ETag for the client.
pub(super) fn part_tag() -> String {
    random_hex()
}

impl BlockUpload {
    pub(super) fn begin(attributes: &Attributes) -> Self {
        Self {
            name: random_hex(),
            headers: blob_headers(attributes),
        }
    }

    /// Returns the upload that another process began under this name.
    pub(super) fn named(name: &str, attributes: &Attributes) -> Self {
        Self {
            name: name.to_owned(),
            headers: blob_headers(attributes),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn id(&self) -> String {
        // A map of strings always serialises.
        let headers = serde_json::to_vec(&self.headers).unwrap_or_default();
        format!("{}.{}", self.name, BASE64_URL_SAFE_NO_PAD.encode(headers))
    }

    /// # Errors
    /// `NotFound` if no upload has the id.
    pub(super) fn parse(path: &Path, id: &str) -> Result<Self> {
        let parsed = || {
            let (name, headers) = id.split_once('.').filter(|(name, _)| is_hex(name))?;
            let headers = BASE64_URL_SAFE_NO_PAD.decode(headers).ok()?;
            Some(Self {
                name: name.to_owned(),
                headers: serde_json::from_slice(&headers).ok()?,
            })
        };
        parsed().ok_or_else(|| not_found_error(path, "no upload has this id"))
    }

    /// Returns the block of a part, unless `tag` is not one of ours.
    pub(super) fn block(&self, number: u64, tag: &str) -> Option<String> {
        let tag = tag.trim_matches('"');
        is_hex(tag).then(|| BASE64_STANDARD.encode(format!("{}{number:08}{tag:0>24}", self.name)))
    }

    /// Returns number and tag of the part that is stored as the block `id`, if it is of this upload.
    pub(super) fn part_of(&self, id: &str) -> Option<(u16, String)> {
        let text = String::from_utf8(BASE64_STANDARD.decode(id).ok()?).ok()?;
        let rest = text.strip_prefix(&self.name)?;
        let (number, tag) = rest.split_at_checked(8)?;
        let tag = tag.strip_prefix("00000000").filter(|tag| is_hex(tag))?;
        Some((number.parse().ok()?, tag.to_owned()))
    }

    /// The headers of the commit.
    pub(super) fn headers(&self) -> Vec<(HeaderName, String)> {
        let headers = self.headers.iter().filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, value.clone()))
        });
        headers.collect()
    }
}

/// Returns content headers and metadata as headers of a commit.
pub(super) fn blob_headers(attributes: &Attributes) -> BTreeMap<String, String> {
    let names = AttributeNames {
        content: "x-ms-blob-",
        class: "x-ms-access-tier",
        metadata: "x-ms-meta-",
    };
    let attributes = renamed(attributes, encoded);
    let headers = attributes
        .iter()
        .filter_map(|(attribute, value)| Some((names.of(attribute)?, value.to_string())));
    headers.collect()
}

#[derive(Debug, Serialize)]
#[serde(rename = "BlockList")]
struct BlockList<'a> {
    #[serde(rename = "Latest")]
    blocks: &'a [String],
}

/// Returns the body of a commit. Blocks taken by an earlier commit may be named again if its response was lost.
pub(super) fn block_list(blocks: &[String]) -> String {
    let list = quick_xml::se::to_string(&BlockList { blocks }).expect("texts are XML");
    format!("<?xml version=\"1.0\" encoding=\"utf-8\"?>{list}")
}

/// Azure's error code; empty without one.
pub(super) fn error_code(response: &Response) -> String {
    match response.header("x-ms-error-code") {
        Some(code) => code.to_owned(),
        None => ErrorDocument::parse(&response.body).map_or_else(String::new, |error| error.code),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use object_store::{Attribute, Error};

    use super::*;

    #[test]
    fn upload_id_parses_without_other_state() {
        let attributes = Attributes::from_iter([
            (Attribute::ContentType, "text/plain"),
            (Attribute::Metadata("k".into()), "v"),
        ]);
        let upload = BlockUpload::begin(&attributes);
        let path = Path::from("a");
        assert_eq!(BlockUpload::parse(&path, &upload.id()).unwrap(), upload);
        let names: Vec<_> = upload
            .headers()
            .iter()
            .map(|(name, _)| name.to_string())
            .collect();
        assert_eq!(names, ["x-ms-blob-content-type", "x-ms-meta-k"]);
        for bad in [
            "",
            "x",
            "0123456789abcdef",
            "0123456789abcdef.!",
            "012345678.e30",
        ] {
            assert!(
                matches!(BlockUpload::parse(&path, bad), Err(Error::NotFound { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn block_ids_have_one_length_and_are_unique() {
        let upload = BlockUpload::begin(&Attributes::new());
        let (one, two) = (part_tag(), part_tag());
        let ids = [
            upload.block(1, &one),
            upload.block(10_000, &one),
            upload.block(1, &two),
        ];
        let ids: Vec<_> = ids.into_iter().map(Option::unwrap).collect();
        assert!(
            ids.iter()
                .all(|id| id.len() == ids[0].len() && id.len() <= 88)
        );
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        assert_eq!(upload.block(1, "\"wrong\""), None);
        assert_eq!(upload.part_of(&ids[1]), Some((10_000, one.clone())));
        let other = BlockUpload::begin(&Attributes::new());
        assert_eq!(other.part_of(&ids[1]), None);
        for foreign in ["", "AAAA", "!"] {
            assert_eq!(upload.part_of(foreign), None, "{foreign}");
        }
    }
}
