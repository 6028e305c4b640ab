//! The setting `at-rest-encryption`: the encryption of a bucket's objects.

use std::str::FromStr;

use bywash_gateway::EncryptedDisks;

use super::settings::{BucketSettings, Settings};
use crate::failure::Failure;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AtRestEncryption {
    /// Nothing that the server knows of.
    #[default]
    Unknown,
    /// The operator's disk.
    Disk,
}

impl FromStr for AtRestEncryption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "disk" => Ok(Self::Disk),
            other => Err(format!("{other:?} is not known; write disk")),
        }
    }
}

impl AtRestEncryption {
    /// Parses the setting of a bucket.
    pub(super) fn of_bucket(text: Option<&str>, bucket: &BucketSettings) -> Result<Self, Failure> {
        let name = &bucket.name;
        let wrong = |problem: String| {
            Failure::usage(format!(
                "at-rest-encryption of [[bucket]] {name}: {problem}"
            ))
        };
        let Some(text) = text else {
            return Ok(Self::Unknown);
        };
        let parsed = text.parse().map_err(wrong)?;
        if bucket.url.to_string().starts_with("s3://") {
            let problem = "the store of an s3:// address encrypts by itself; leave it out";
            return Err(wrong(problem.to_owned()));
        }
        Ok(parsed)
    }
}

/// The buckets whose disks are encrypted.
pub(super) fn encrypted_disks(settings: &Settings) -> EncryptedDisks {
    let is_encrypted = |bucket: &&BucketSettings| bucket.at_rest == AtRestEncryption::Disk;
    let buckets = settings.buckets.iter().filter(is_encrypted);
    EncryptedDisks {
        all: settings.at_rest == AtRestEncryption::Disk,
        buckets: buckets.map(|bucket| bucket.name.clone()).collect(),
    }
}
