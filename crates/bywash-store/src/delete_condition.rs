//! Conditions of deletes, and which servers heed them.

use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};

use crate::error::precondition_error;

/// How a version of an object is deleted, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionDeletes {
    /// By [`crate::Origin::delete_if`]: the store compares the version.
    ByStore,
    /// By a look at the object before its delete: it is not known whether the store compares versions.
    ByLook,
    /// Not at all: its settings state that the store does not compare versions.
    Never,
}

/// Condition of a delete; the default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteCondition {
    /// ETag of the version to delete, without quotes; `*`: any version.
    pub e_tag: Option<String>,
    /// Name of the version with that ETag at its store, as responses have it. Stores whose conditions name versions compare it;
    /// of two versions with the same ETag, others delete either.
    pub version: Option<String>,
    /// Its bytes.
    pub size: Option<u64>,
    /// Its modification time, to the second.
    pub modified: Option<DateTime<Utc>>,
}

impl DeleteCondition {
    /// Whether it always holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The ETag of the version to delete; `None` if any may be deleted.
    pub fn wanted_e_tag(&self) -> Option<&str> {
        self.e_tag.as_deref().filter(|e_tag| *e_tag != "*")
    }

    /// Returns whether size and time allow the deletion of this version.
    pub(crate) fn allows(&self, meta: &ObjectMeta) -> bool {
        let same_time = |time: DateTime<Utc>| time.timestamp() == meta.last_modified.timestamp();
        self.size.is_none_or(|size| size == meta.size) && self.modified.is_none_or(same_time)
    }

    /// Whether size or time have to be compared, which no store does.
    pub(super) fn has_size_or_time(&self) -> bool {
        self.size.is_some() || self.modified.is_some()
    }

    /// Checks a version that was found. The delete then has to name that version.
    pub fn check(&self, path: &Path, found: &ObjectMeta) -> Result<()> {
        let bare = |e_tag: &str| e_tag.trim_matches('"').to_owned();
        let e_tag = found.e_tag.as_deref().map(bare);
        let named = self
            .wanted_e_tag()
            .is_none_or(|wanted| e_tag.as_deref() == Some(wanted));
        let same = (self.version.as_ref()).is_none_or(|name| found.version.as_ref() == Some(name));
        if named && same && self.allows(found) {
            return Ok(());
        }
        Err(precondition_error(
            path,
            "the object is not the one of the condition",
        ))
    }

    /// Converts the result of a delete: without an ETag in its condition, an absent object counts as deleted.
    pub(super) fn ended(&self, deleted: Result<()>) -> Result<()> {
        match deleted {
            Err(Error::NotFound { .. }) if self.e_tag.is_none() => Ok(()),
            deleted => deleted,
        }
    }
}

/// Returns how a server deletes a version: as the setting `name` states, which is `yes` or `disabled`. Without it, `is_known` states
/// whether the server is one that compares versions.
pub(super) fn version_deletes(
    setting: Option<&str>,
    (name, yes): (&str, &str),
    is_known: bool,
) -> std::result::Result<VersionDeletes, String> {
    match setting {
        None if is_known => Ok(VersionDeletes::ByStore),
        None => Ok(VersionDeletes::ByLook),
        Some("disabled") => Ok(VersionDeletes::Never),
        Some(value) if value == yes => Ok(VersionDeletes::ByStore),
        Some(other) => Err(format!("{name} is {yes} or disabled, not {other:?}")),
    }
}
