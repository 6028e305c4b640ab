//! Lists of the uploads that are open at a store.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{Checksums, Parts, Upload};
use crate::upload::{OpenSession, SessionToken};

/// The most uploads to ask for on a page of a list: S3's own limit.
const UPLOADS_PER_PAGE: u16 = 1000;

/// Where a list of uploads goes on: after this upload of this key, or after all of the key if there is no upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::origin::s3) struct UploadsMarker {
    key: String,
    upload: String,
}

/// The query that asks a bucket for one page of its uploads below `prefix`.
pub(in crate::origin::s3) fn uploads_query(
    prefix: &Path,
    marker: Option<&UploadsMarker>,
) -> Vec<(&'static str, String)> {
    let mut query = vec![
        ("uploads", String::new()),
        ("max-uploads", UPLOADS_PER_PAGE.to_string()),
        // XML cannot hold every key.
        ("encoding-type", "url".to_owned()),
    ];
    if !prefix.is_root() {
        query.push(("prefix", format!("{prefix}/")));
    }
    if let Some(UploadsMarker { key, upload }) = marker {
        query.push(("key-marker", key.clone()));
        if !upload.is_empty() {
            query.push(("upload-id-marker", upload.clone()));
        }
    }
    query
}

#[derive(Debug, Deserialize)]
struct UploadsAnswer {
    /// Always there, so that something else than a list of uploads is told from a list without uploads.
    #[serde(rename = "IsTruncated")]
    truncated: bool,
    #[serde(rename = "EncodingType")]
    encoding: Option<String>,
    #[serde(rename = "NextKeyMarker")]
    next_key: Option<String>,
    #[serde(rename = "NextUploadIdMarker")]
    next_upload: Option<String>,
    #[serde(rename = "Upload", default)]
    uploads: Vec<UploadAnswer>,
}

#[derive(Debug, Deserialize)]
struct UploadAnswer {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "UploadId")]
    id: String,
    #[serde(rename = "Initiated")]
    initiated: String,
    #[serde(rename = "ChecksumAlgorithm")]
    algorithm: Option<String>,
    #[serde(rename = "ChecksumType")]
    kind: Option<String>,
}

#[derive(Debug)]
struct ListedUpload {
    /// In the bucket.
    key: String,
    upload: Upload,
    initiated: DateTime<Utc>,
}

impl UploadAnswer {
    /// Without an age that can be read nobody knows whether it may go.
    fn read(self, key: String) -> Result<ListedUpload, String> {
        let is = |text: Option<String>, value: &str| {
            text.is_some_and(|text| text.eq_ignore_ascii_case(value))
        };
        let checksums = match (is(self.algorithm, "CRC32C"), is(self.kind, "FULL_OBJECT")) {
            (true, true) => Checksums::Object,
            (true, false) => Checksums::Parts,
            (false, _) => Checksums::Md5,
        };
        let initiated = DateTime::parse_from_rfc3339(&self.initiated)
            .map_err(|error| format!("{:?} is no time: {error}", self.initiated))?;
        Ok(ListedUpload {
            key,
            upload: Upload {
                id: self.id,
                checksums,
            },
            initiated: initiated.to_utc(),
        })
    }
}

/// One page of a list of uploads.
#[derive(Debug)]
pub(in crate::origin::s3) struct UploadsPage {
    uploads: Vec<ListedUpload>,
    /// What to ask for next.
    pub(in crate::origin::s3) next: Option<UploadsMarker>,
}

impl UploadsPage {
    pub(in crate::origin::s3) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        let answer: UploadsAnswer =
            quick_xml::de::from_str(text).map_err(|error| error.to_string())?;
        let encoded = answer.encoding.as_deref() == Some("url");
        let key_of = |text: &str| match encoded {
            true => decoded(text),
            false => Some(text.to_owned()),
        };
        let next = match answer.next_key.filter(|key| !key.is_empty()) {
            _ if !answer.truncated => None,
            None => return Err("the list is cut, and does not say where it goes on".to_owned()),
            Some(key) => Some(UploadsMarker {
                key: key_of(&key).ok_or("the list goes on at a key that is no UTF-8")?,
                upload: answer.next_upload.unwrap_or_default(),
            }),
        };
        let uploads = answer.uploads.into_iter();
        // What is no UTF-8 is no key of S3.
        let uploads = uploads.filter_map(|upload| {
            let key = key_of(&upload.key)?;
            Some(upload.read(key))
        });
        Ok(Self {
            uploads: uploads.collect::<Result<_, _>>()?,
            next,
        })
    }

    /// The uploads of the objects below `prefix`. What the store listed besides is passed by.
    pub(in crate::origin::s3) fn sessions(
        self,
        prefix: &Path,
    ) -> impl Iterator<Item = OpenSession> {
        self.uploads.into_iter().filter_map(move |listed| {
            Some(OpenSession {
                object: object_below(prefix, &listed.key)?,
                token: SessionToken(listed.upload.token(&Parts::new())),
                bytes: None,
                modified: listed.initiated,
            })
        })
    }
}

/// A key as S3 encodes it for XML: like a form, with a plus for a blank.
fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// The object of a key in the bucket. `None` for what is not below `prefix`, and for keys that a path would change, as `a//b`
/// or `a/`: an object of ours would be another key.
fn object_below(prefix: &Path, key: &str) -> Option<Path> {
    let whole = Path::parse(key).ok().filter(|path| path.as_ref() == key)?;
    let object: Path = whole.prefix_match(prefix)?.collect();
    (!object.is_root()).then_some(object)
}

#[cfg(test)]
mod tests;
