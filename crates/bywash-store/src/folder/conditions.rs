//! Conditions of writes and deletes, checked against the current file while the key is locked.

use object_store::path::Path;
use object_store::{Error, PutMode, Result};

use super::error::FolderError;
use super::held::Located;
use super::root::Root;
use crate::client_etag::etag_matches;
use crate::interface::DeleteCondition;

impl Root {
    /// Checks whether `mode` allows the existing object, if any, to be replaced.
    pub(super) fn check(
        &self,
        key: &Path,
        current: Option<&Located>,
        mode: &PutMode,
    ) -> Result<()> {
        match (mode, current) {
            (PutMode::Overwrite, _) | (PutMode::Create, None) => Ok(()),
            (PutMode::Create, Some(_)) if planted!("folder-create-not-checked") => Ok(()),
            (PutMode::Create, Some(_)) => Err(Error::AlreadyExists {
                path: key.to_string(),
                source: Box::new(FolderError::Exists),
            }),
            (PutMode::Update(_), None) => Err(FolderError::NoSuchObject.precondition(key)),
            (PutMode::Update(version), Some(located)) => match &version.e_tag {
                None => Err(FolderError::NoETag.generic()),
                Some(expected) => self.check_e_tag(key, located, expected).map(drop),
            },
        }
    }

    /// Checks that an open file is the version `expected`, by the version's ETag or the client's, and returns its ETag.
    pub(super) fn check_e_tag(
        &self,
        key: &Path,
        located: &Located,
        expected: &str,
    ) -> Result<String> {
        let found = self.current_e_tag(key, located)?;
        if etag_matches(&found, expected) || planted!("folder-etag-not-compared") {
            return Ok(found);
        }
        let expected = expected.to_owned();
        Err(FolderError::WrongETag { found, expected }.precondition(key))
    }

    /// Checks whether the current object, if any, may be deleted.
    pub(super) fn check_delete(
        &self,
        key: &Path,
        current: Option<&Located>,
        condition: &DeleteCondition,
    ) -> Result<()> {
        let Some(located) = current else {
            return match &condition.e_tag {
                Some(_) => Err(FolderError::NoSuchObject.not_found(key)),
                None => Ok(()),
            };
        };
        match condition.e_tag.as_deref() {
            None | Some("*") => {}
            Some(expected) => self.check_e_tag(key, located, expected).map(drop)?,
        }
        if condition.allows(&located.identity.meta(key.clone())) {
            Ok(())
        } else {
            Err(FolderError::OtherSizeOrTime.precondition(key))
        }
    }
}
