//! Versions of files and objects: as read or listed, and whether a place still has it.

use std::io;
use std::path::Path as FsPath;

use bywash::origin::folder::FileIdentity;
use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Version of a file or of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Version {
    File(FileVersion),
    Object(ObjectVersion),
}

/// A file at one moment, and the symbolic link by which it was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileVersion {
    pub(crate) file: FileIdentity,
    /// The link at the last name of the path, if there is one.
    pub(crate) link: Option<FileIdentity>,
}

impl FileVersion {
    /// Returns the version at `path`; `file` are the metadata behind it. Blocks.
    pub(crate) fn at(path: &FsPath, file: FileIdentity) -> io::Result<Self> {
        let link = link_at(path)?;
        Ok(Self { file, link })
    }

    /// Identity of the entry that has the name: the link, or else the file.
    pub(crate) fn named(&self) -> &FileIdentity {
        self.link.as_ref().unwrap_or(&self.file)
    }

    /// Returns whether `path` still leads to this version by the same link. Blocks.
    pub(crate) fn is_at(&self, path: &FsPath) -> io::Result<bool> {
        let named = FileIdentity::of(&rustix::fs::lstat(path)?);
        if !named.has_bytes_of(self.named()) {
            return Ok(false);
        }
        if self.link.is_none() {
            return Ok(true);
        }
        let file = FileIdentity::of(&rustix::fs::stat(path)?);
        Ok(file.has_bytes_of(&self.file))
    }
}

/// Returns the identity of the symbolic link at `path`; `None` if it is something else.
pub(crate) fn link_at(path: &FsPath) -> io::Result<Option<FileIdentity>> {
    let found = rustix::fs::lstat(path)?;
    let is_link = rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink();
    Ok(is_link.then(|| FileIdentity::of(&found)))
}

/// Version of an object, as a listing or a response has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectVersion {
    pub(crate) e_tag: Option<String>,
    /// Name of the version, where the store has names.
    pub(crate) version: Option<String>,
    bytes: u64,
    modified: DateTime<Utc>,
}

impl From<&ObjectMeta> for ObjectVersion {
    fn from(meta: &ObjectMeta) -> Self {
        Self {
            e_tag: meta.e_tag.clone(),
            version: meta.version.clone(),
            bytes: meta.size,
            modified: meta.last_modified,
        }
    }
}

impl ObjectVersion {
    pub(crate) fn modified(&self) -> DateTime<Utc> {
        self.modified
    }

    /// Whether it can be distinguished from other versions: by an ETag or a date. Stores without
    /// dates report the epoch.
    pub(crate) fn is_known(&self) -> bool {
        self.e_tag.is_some() || self.modified.timestamp() > 0
    }

    /// Whether two responses are about one version. Times are compared to the second, which all
    /// responses have.
    pub(crate) fn is(&self, now: &Self) -> bool {
        let same_e_tag = match (&self.e_tag, &now.e_tag) {
            (Some(then), Some(now)) => bare(then) == bare(now),
            (None, None) => true,
            _ => false,
        };
        let same_name =
            self.version.is_none() || now.version.is_none() || self.version == now.version;
        let same_time = self.modified.timestamp() == now.modified.timestamp();
        same_e_tag && same_name && same_time && self.bytes == now.bytes
    }

    /// The ETag without quotes; `None` without one, or with only a weak one, which conditions do
    /// not match.
    pub(crate) fn strong_e_tag(&self) -> Option<&str> {
        let e_tag = self.e_tag.as_deref()?;
        (!e_tag.starts_with("W/")).then(|| bare(e_tag))
    }
}

/// Listings of some stores have ETags without quotes, and their responses with them.
fn bare(e_tag: &str) -> &str {
    e_tag.trim_matches('"')
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    fn meta(e_tag: Option<&str>, version: Option<&str>, size: u64, millis: i64) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("key"),
            last_modified: DateTime::from_timestamp_millis(millis).unwrap_or_default(),
            size,
            e_tag: e_tag.map(str::to_owned),
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn objects_differ_in_e_tag_name_size_or_second() {
        let then = ObjectVersion::from(&meta(Some("\"a\""), Some("1"), 3, 5_200));
        for (now, same) in [
            (meta(Some("\"a\""), Some("1"), 3, 5_200), true),
            // As listings of other stores, and with a time to the second.
            (meta(Some("a"), None, 3, 5_000), true),
            (meta(Some("\"b\""), Some("1"), 3, 5_200), false),
            (meta(None, Some("1"), 3, 5_200), false),
            (meta(Some("\"a\""), Some("2"), 3, 5_200), false),
            (meta(Some("\"a\""), Some("1"), 4, 5_200), false),
            (meta(Some("\"a\""), Some("1"), 3, 6_000), false),
        ] {
            assert_eq!(then.is(&ObjectVersion::from(&now)), same, "{now:?}");
        }
    }

    #[test]
    fn objects_without_e_tag_and_date_are_not_known() {
        for (e_tag, millis, known) in [(Some("a"), 0, true), (None, 1_000, true), (None, 0, false)]
        {
            let version = ObjectVersion::from(&meta(e_tag, None, 3, millis));
            assert_eq!(version.is_known(), known, "{version:?}");
        }
        let weak = ObjectVersion::from(&meta(Some("W/\"a\""), None, 3, 0));
        assert_eq!(weak.strong_e_tag(), None);
    }
}
