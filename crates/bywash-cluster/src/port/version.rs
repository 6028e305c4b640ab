//! Encoding of an object's version.

use bywash::ContentDigest;
use bywash::cluster::ObjectVersion;
use chrono::DateTime;
use object_store::path::Path;
use object_store::{Attribute, AttributeValue, Attributes, ObjectMeta};
use serde::{Deserialize, Serialize};

/// JSON of an [`ObjectVersion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionRecord {
    path: String,
    size: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: (i64, u32),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<(AttributeName, String)>,
    #[serde(default)]
    tags: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<DigestRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AttributeName {
    ContentDisposition,
    ContentEncoding,
    ContentLanguage,
    ContentType,
    CacheControl,
    StorageClass,
    Metadata(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DigestRecord {
    Crc32(u32),
    Crc32c(u32),
    Crc64nvme(u64),
    Md5([u8; 16]),
    Sha256([u8; 32]),
}

impl VersionRecord {
    /// `None` if the version has an attribute or a digest that the protocol has no name for.
    pub(super) fn of(version: &ObjectVersion) -> Option<Self> {
        let attributes = version.attributes.iter();
        let attributes: Option<Vec<_>> = attributes
            .map(|(name, value)| Some((attribute_name(name)?, value.as_ref().to_owned())))
            .collect();
        let digest = match &version.digest {
            Some(digest) => Some(digest_record(digest)?),
            None => None,
        };
        let meta = &version.meta;
        let modified = meta.last_modified;
        Some(Self {
            path: meta.location.as_ref().to_owned(),
            size: meta.size,
            modified: (modified.timestamp(), modified.timestamp_subsec_nanos()),
            e_tag: meta.e_tag.clone(),
            version: meta.version.clone(),
            attributes: attributes?,
            tags: version.tag_count,
            digest,
        })
    }

    /// `None` if path or date are none.
    pub(super) fn into_version(self) -> Option<ObjectVersion> {
        let (seconds, nanoseconds) = self.modified;
        let mut attributes = Attributes::with_capacity(self.attributes.len());
        for (name, value) in self.attributes {
            attributes.insert(attribute(name), AttributeValue::from(value));
        }
        Some(ObjectVersion {
            meta: ObjectMeta {
                location: Path::parse(&self.path).ok()?,
                last_modified: DateTime::from_timestamp(seconds, nanoseconds)?,
                size: self.size,
                e_tag: self.e_tag,
                version: self.version,
            },
            attributes,
            tag_count: self.tags,
            digest: self.digest.map(digest),
        })
    }
}

fn attribute_name(attribute: &Attribute) -> Option<AttributeName> {
    Some(match attribute {
        Attribute::ContentDisposition => AttributeName::ContentDisposition,
        Attribute::ContentEncoding => AttributeName::ContentEncoding,
        Attribute::ContentLanguage => AttributeName::ContentLanguage,
        Attribute::ContentType => AttributeName::ContentType,
        Attribute::CacheControl => AttributeName::CacheControl,
        Attribute::StorageClass => AttributeName::StorageClass,
        Attribute::Metadata(name) => AttributeName::Metadata(name.clone().into_owned()),
        _ => return None,
    })
}

fn attribute(name: AttributeName) -> Attribute {
    match name {
        AttributeName::ContentDisposition => Attribute::ContentDisposition,
        AttributeName::ContentEncoding => Attribute::ContentEncoding,
        AttributeName::ContentLanguage => Attribute::ContentLanguage,
        AttributeName::ContentType => Attribute::ContentType,
        AttributeName::CacheControl => Attribute::CacheControl,
        AttributeName::StorageClass => Attribute::StorageClass,
        AttributeName::Metadata(name) => Attribute::Metadata(name.into()),
    }
}

fn digest_record(digest: &ContentDigest) -> Option<DigestRecord> {
    Some(match *digest {
        ContentDigest::Crc32(crc) => DigestRecord::Crc32(crc),
        ContentDigest::Crc32c(crc) => DigestRecord::Crc32c(crc),
        ContentDigest::Crc64Nvme(crc) => DigestRecord::Crc64nvme(crc),
        ContentDigest::Md5(md5) => DigestRecord::Md5(md5),
        ContentDigest::Sha256(sha256) => DigestRecord::Sha256(sha256),
        _ => return None,
    })
}

fn digest(record: DigestRecord) -> ContentDigest {
    match record {
        DigestRecord::Crc32(crc) => ContentDigest::Crc32(crc),
        DigestRecord::Crc32c(crc) => ContentDigest::Crc32c(crc),
        DigestRecord::Crc64nvme(crc) => ContentDigest::Crc64Nvme(crc),
        DigestRecord::Md5(md5) => ContentDigest::Md5(md5),
        DigestRecord::Sha256(sha256) => ContentDigest::Sha256(sha256),
    }
}
