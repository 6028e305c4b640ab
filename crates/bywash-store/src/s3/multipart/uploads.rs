//! Lists of open multipart uploads.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{Checksums, Parts, S3Upload};
use crate::session::{OpenSession, SessionToken};

/// Uploads per page of a list: S3's own maximum.
const UPLOADS_PER_PAGE: u16 = 1000;

/// Position in a list of uploads: after this upload of this key, or after the whole key if there is no upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::s3) struct UploadsMarker {
    key: String,
    upload: String,
}

/// Returns the query for one page of a bucket's uploads below `prefix`.
pub(in crate::s3) fn uploads_query(
    prefix: &Path,
    marker: Option<&UploadsMarker>,
) -> Vec<(&'static str, String)> {
    let mut query = vec![
        ("uploads", String::new()),
        ("max-uploads", UPLOADS_PER_PAGE.to_string()),
        // XML cannot contain every key.
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
struct UploadsDocument {
    /// Required, to distinguish an empty list of uploads from another document.
    #[serde(rename = "IsTruncated")]
    truncated: bool,
    #[serde(rename = "EncodingType")]
    encoding: Option<String>,
    #[serde(rename = "NextKeyMarker")]
    next_key: Option<String>,
    #[serde(rename = "NextUploadIdMarker")]
    next_upload: Option<String>,
    #[serde(rename = "Upload", default)]
    uploads: Vec<UploadElement>,
}

#[derive(Debug, Deserialize)]
struct UploadElement {
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
struct ListedS3Upload {
    /// The key in the bucket.
    key: String,
    upload: S3Upload,
    initiated: DateTime<Utc>,
}

impl UploadElement {
    /// Fails without a valid start time: its age decides whether it may be aborted.
    fn read(self, key: String) -> Result<ListedS3Upload, String> {
        let is = |text: Option<String>, value: &str| {
            text.is_some_and(|text| text.eq_ignore_ascii_case(value))
        };
        let checksums = match (is(self.algorithm, "CRC32C"), is(self.kind, "FULL_OBJECT")) {
            (true, true) => Checksums::Object,
            (true, false) => Checksums::Parts,
            (false, _) => Checksums::Md5,
        };
        let initiated = DateTime::parse_from_rfc3339(&self.initiated)
            .map_err(|error| format!("{:?} is not a time: {error}", self.initiated))?;
        Ok(ListedS3Upload {
            key,
            upload: S3Upload {
                id: self.id,
                checksums,
            },
            initiated: initiated.to_utc(),
        })
    }
}

/// One page of a list of uploads.
#[derive(Debug)]
pub(in crate::s3) struct UploadsPage {
    uploads: Vec<ListedS3Upload>,
    /// The marker of the next page.
    pub(in crate::s3) next: Option<UploadsMarker>,
}

impl UploadsPage {
    pub(in crate::s3) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        let response: UploadsDocument =
            quick_xml::de::from_str(text).map_err(|error| error.to_string())?;
        let encoded = response.encoding.as_deref() == Some("url");
        let key_of = |text: &str| {
            if encoded {
                decoded(text)
            } else {
                Some(text.to_owned())
            }
        };
        let next = match response.next_key.filter(|key| !key.is_empty()) {
            _ if !response.truncated => None,
            None => {
                return Err(
                    "the list is not at its end and has no marker of the next page".to_owned(),
                );
            }
            Some(key) => Some(UploadsMarker {
                key: key_of(&key).ok_or("the marker of the next page is not UTF-8")?,
                upload: response.next_upload.unwrap_or_default(),
            }),
        };
        let uploads = response.uploads.into_iter();
        // A key that is not UTF-8 is not a key of S3.
        let uploads = uploads.filter_map(|upload| {
            let key = key_of(&upload.key)?;
            Some(upload.read(key))
        });
        Ok(Self {
            uploads: uploads.collect::<Result<_, _>>()?,
            next,
        })
    }

    /// Returns the uploads of the objects below `prefix`. Skips all others.
    pub(in crate::s3) fn sessions(self, prefix: &Path) -> impl Iterator<Item = OpenSession> {
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

/// Decodes a key from S3's encoding for XML: as in a form, with a plus for a space.
fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// Returns the object of a key in the bucket. `None` for keys not below `prefix`, and for keys that a path would
/// change, as `a//b` or `a/`: an object of ours would have another key.
fn object_below(prefix: &Path, key: &str) -> Option<Path> {
    let whole = Path::parse(key).ok().filter(|path| path.as_ref() == key)?;
    let object: Path = whole.prefix_match(prefix)?.collect();
    (!object.is_root()).then_some(object)
}

#[cfg(test)]
mod tests;
