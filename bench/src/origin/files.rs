//! Real files as objects of the origin, all in memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use reqwest::Url;

use crate::Failure;

/// Max keys of a listing page, as in S3.
const PAGE_KEYS: usize = 1000;

/// Files by key.
///
/// The first segment of a requested key is ignored: `1/a` and `2/a` are the same bytes under two names. A new segment thus
/// measures a cold cache any number of times.
#[derive(Debug, Default)]
pub(super) struct Files(BTreeMap<String, Bytes>);

impl Files {
    pub(super) fn load(folder: &Path) -> Result<Self, Failure> {
        let mut files = Self::default();
        files.add(folder, "")?;
        Ok(files)
    }

    fn add(&mut self, folder: &Path, prefix: &str) -> Result<(), Failure> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let key = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.add(&entry.path(), &format!("{key}/"))?;
            } else {
                self.0.insert(key, std::fs::read(entry.path())?.into());
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<Bytes> {
        self.0.get(key.split_once('/')?.1).cloned()
    }

    /// Returns the response of ListObjectsV2, without delimiter, to a query string.
    pub(super) fn list(&self, query: &str) -> String {
        let url = Url::parse(&format!("http://origin/?{query}"));
        let parameter = |name: &str| {
            let url = url.as_ref().ok()?;
            let mut pairs = url.query_pairs();
            pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
        };
        let wanted = parameter("prefix").unwrap_or_default();
        let after = parameter("continuation-token").or_else(|| parameter("start-after"));
        let (round, prefix) = wanted.split_once('/').unwrap_or((&wanted, ""));
        let after = after.as_deref().and_then(|after| after.split_once('/'));
        let after = after.map_or("", |(_, key)| key);
        let mut keys = self
            .0
            .iter()
            .filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let mut contents = String::new();
        let mut last = String::new();
        for (key, bytes) in keys.by_ref().take(PAGE_KEYS) {
            last = format!("{round}/{key}");
            let _ = write!(
                contents,
                "<Contents><Key>{last}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>&quot;{}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                e_tag(&last),
                bytes.len()
            );
        }
        let more = keys.next().is_some();
        let next = if more {
            format!("<NextContinuationToken>{last}</NextContinuationToken>")
        } else {
            String::new()
        };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>bench</Name><Prefix>{wanted}</Prefix>\
             <MaxKeys>{PAGE_KEYS}</MaxKeys><IsTruncated>{more}</IsTruncated>{next}{contents}</ListBucketResult>"
        )
    }
}

/// Returns the ETag of a file: its name, because files never change.
pub(super) fn e_tag(key: &str) -> String {
    key.replace('/', "-")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn file_is_found_under_any_first_segment_and_listed_under_the_requested_one() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("small")).unwrap();
        for n in 0..1001 {
            std::fs::write(folder.path().join(format!("small/{n:04}")), [1; 3]).unwrap();
        }
        let files = Files::load(folder.path()).unwrap();
        assert_eq!(files.get("7/small/0000").unwrap().len(), 3);
        assert!(files.get("small").is_none());
        let first = files.list("list-type=2&prefix=7%2Fsmall%2F");
        assert_eq!(first.matches("<Key>7/small/").count(), PAGE_KEYS);
        let token = "<NextContinuationToken>7/small/0999</NextContinuationToken>";
        assert!(first.contains(token), "{first}");
        let rest = files.list("prefix=7/small/&continuation-token=7/small/0999");
        assert!(rest.contains("<Key>7/small/1000</Key>") && rest.contains("false"));
    }
}
