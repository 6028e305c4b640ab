//! Attributes of an object, in a side file named after the version they belong to.
//!
//! `.bywash/attributes/<encoded key>/<mtime>-<size>.json` is written before the data is renamed into place, so data
//! and attributes change in one step. Before the rename readers use the old side file, after it the new one. A file
//! changed by another program has another mtime, hence no side file and no attributes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use object_store::path::Path;
use object_store::{Attribute, Attributes, Result};
use rustix::fs::AtFlags;
use serde::{Deserialize, Serialize};

use super::error::{FolderError, io_error};
use super::identity::Identity;
use super::names::{ATTRIBUTES, encode};
use super::root::Root;
use super::stage::Staged;
use crate::error::OriginError;

/// Attributes as JSON. Unknown fields of a newer version are ignored.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stored {
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_class: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl Stored {
    /// Copies attributes into their stored form; refuses one that it has no field for.
    pub fn new(attributes: &Attributes) -> Result<Self> {
        let mut stored = Self::default();
        for (attribute, value) in attributes {
            let value = value.to_string();
            let field = match attribute {
                Attribute::CacheControl => &mut stored.cache_control,
                Attribute::ContentDisposition => &mut stored.content_disposition,
                Attribute::ContentEncoding => &mut stored.content_encoding,
                Attribute::ContentLanguage => &mut stored.content_language,
                Attribute::ContentType => &mut stored.content_type,
                Attribute::StorageClass => &mut stored.storage_class,
                Attribute::Metadata(name) => {
                    stored.metadata.insert(name.to_string(), value);
                    continue;
                }
                other => return Err(FolderError::Attribute(format!("{other:?}")).not_supported()),
            };
            *field = Some(value);
        }
        Ok(stored)
    }
}

impl From<Stored> for Attributes {
    fn from(stored: Stored) -> Self {
        let fields = [
            (Attribute::CacheControl, stored.cache_control),
            (Attribute::ContentDisposition, stored.content_disposition),
            (Attribute::ContentEncoding, stored.content_encoding),
            (Attribute::ContentLanguage, stored.content_language),
            (Attribute::ContentType, stored.content_type),
            (Attribute::StorageClass, stored.storage_class),
        ];
        let metadata = stored
            .metadata
            .into_iter()
            .map(|(name, value)| (Attribute::Metadata(Cow::Owned(name)), value));
        fields
            .into_iter()
            .filter_map(|(attribute, value)| Some((attribute, value?)))
            .chain(metadata)
            .collect()
    }
}

fn side_file(key: &Path, identity: &Identity) -> String {
    format!(
        "{ATTRIBUTES}/{}/{}.json",
        encode(key.as_ref()),
        identity.stamp()
    )
}

impl Root {
    /// Writes the attributes of the version `identity` of `key`; the caller holds the key's lock.
    pub(super) fn write_attributes(
        &self,
        key: &Path,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<()> {
        let name = side_file(key, identity);
        let json = self.to_json(&name, &Stored::new(attributes)?)?;
        let failed =
            |source: std::io::Error| io_error("write the attributes of", key.as_ref(), source);
        let mut staged = Staged::create(self).map_err(|errno| failed(errno.into()))?;
        staged.write([json.into()]).map_err(failed)?;
        staged.finish().map_err(failed)?;
        self.put_at(&name, &mut staged, false, false)
            .map_err(|errno| failed(errno.into()))
    }

    /// Returns the attributes of that version; `None` without a side file.
    pub(super) fn read_attributes(
        &self,
        key: &Path,
        identity: &Identity,
    ) -> Result<Option<Attributes>> {
        let name = side_file(key, identity);
        let stored: Option<Stored> = self.read_json("read the attributes of", key, &name)?;
        Ok(stored.map(Attributes::from))
    }

    /// Removes the attributes of a version that was replaced. On failure the file only takes space: no later version
    /// uses its name.
    pub(super) fn remove_attributes(&self, key: &Path, identity: &Identity) {
        let name = side_file(key, identity);
        if let Ok((folder, file)) = self.parent(&name)
            && rustix::fs::unlinkat(&folder, file, AtFlags::empty()).is_ok()
        {
            self.prune(&name, ATTRIBUTES);
        }
    }

    pub(super) fn to_json(&self, name: &str, value: &impl Serialize) -> Result<Vec<u8>> {
        serde_json::to_vec(value).map_err(|source| {
            let name = name.to_owned();
            FolderError::SideFile { name, source }.generic()
        })
    }

    /// Reads one of the store's own JSON files; `None` if it is absent.
    pub(super) fn read_json<T: for<'de> Deserialize<'de>>(
        &self,
        operation: &'static str,
        key: &Path,
        name: &str,
    ) -> Result<Option<T>> {
        let opened = self.open_file(name);
        let Some((mut file, _)) =
            opened.map_err(|errno| io_error(operation, key.as_ref(), errno))?
        else {
            return Ok(None);
        };
        let mut json = Vec::new();
        file.read_to_end(&mut json)
            .map_err(|source| io_error(operation, key.as_ref(), source))?;
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            OriginError::DamagedSideFile {
                operation,
                object: key.to_string(),
                file: name.to_owned(),
                reason: error.to_string(),
            }
            .into()
        })
    }
}
/// Returns the attributes of an upload's manifest with those known at its end.
pub(super) fn with_late(begun: Stored, late: &Attributes) -> Attributes {
    let mut attributes = Attributes::from(begun);
    for (name, value) in late {
        attributes.insert(name.clone(), value.clone());
    }
    attributes
}
