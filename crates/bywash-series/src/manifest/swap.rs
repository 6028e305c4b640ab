//! Conditional replacement of the manifest. After a lost response, reading it decides which manifest is current.

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutResult, UpdateVersion};

use super::format::{Manifest, ManifestError, PATH};
use crate::SeriesError;

/// A manifest with the version of its object, a precondition of the next swap.
#[derive(Debug, Clone)]
pub(crate) struct StoredManifest {
    pub(crate) manifest: Manifest,
    pub(crate) version: UpdateVersion,
}

/// Why a manifest was not replaced.
#[derive(Debug)]
pub(crate) enum SwapError {
    /// Another manifest than the expected one is current: this one.
    Conflict(Box<StoredManifest>),
    /// The put failed, or its outcome is unknown.
    Failed(SeriesError),
}

impl From<SeriesError> for SwapError {
    fn from(failed: SeriesError) -> Self {
        Self::Failed(failed)
    }
}

fn failed(operation: &str, source: Error) -> SeriesError {
    match source {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => SeriesError::NoConditionalPut,
        source => SeriesError::Store {
            operation: format!("{operation} {PATH}"),
            source,
        },
    }
}

/// Loads the manifest of a store, if it has one.
pub(crate) async fn load(store: &dyn ObjectStore) -> Result<Option<StoredManifest>, SeriesError> {
    let response = match store.get(&Path::from(PATH)).await {
        Ok(response) => response,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(failed("read", source)),
    };
    let version = UpdateVersion {
        e_tag: response.meta.e_tag.clone(),
        version: response.meta.version.clone(),
    };
    let bytes = response
        .bytes()
        .await
        .map_err(|source| failed("read", source))?;
    let manifest = Manifest::decode(&bytes).map_err(|wrong| match wrong {
        ManifestError::Newer(format) => SeriesError::NewerFormat { format },
        ManifestError::Damaged(reason) => SeriesError::DamagedFile {
            object: PATH.to_owned(),
            reason,
        },
    })?;
    Ok(Some(StoredManifest { manifest, version }))
}

/// Replaces the manifest of version `old`, or creates the first one.
///
/// After a lost response the manifest is read: the put succeeded if it is this one.
pub(crate) async fn swap(
    store: &dyn ObjectStore,
    old: Option<&UpdateVersion>,
    new: Manifest,
) -> Result<StoredManifest, SwapError> {
    let failure = match put_if(store, old, &new).await? {
        Ok(put) => {
            let version = put.into();
            return Ok(StoredManifest {
                manifest: new,
                version,
            });
        }
        Err(source) => source,
    };
    let conflict = is_conflict(&failure);
    match load(store).await? {
        Some(found)
            if found.manifest == new || planted!("series-lost-response-taken-for-success") =>
        {
            Ok(found)
        }
        Some(found) if conflict => Err(SwapError::Conflict(Box::new(found))),
        _ => Err(failed("replace", failure).into()),
    }
}

/// Puts the manifest if the stored one is `old`, or if none is stored.
async fn put_if(
    store: &dyn ObjectStore,
    old: Option<&UpdateVersion>,
    new: &Manifest,
) -> Result<object_store::Result<PutResult>, SeriesError> {
    let mode = match old {
        None => PutMode::Create,
        Some(UpdateVersion {
            e_tag: None,
            version: None,
        }) => {
            return Err(SeriesError::NoConditionalPut);
        }
        Some(old) => PutMode::Update(old.clone()),
    };
    let path = Path::from(PATH);
    let put = store.put_opts(&path, new.encode().into(), mode.into());
    Ok(put.await)
}

fn is_conflict(error: &Error) -> bool {
    matches!(
        error,
        Error::Precondition { .. } | Error::AlreadyExists { .. }
    )
}

/// Fails with [`SeriesError::NoConditionalPut`] if the store ignores conditions: puts the manifest `current` once more, on the
/// condition of `old`, which it has replaced. Some servers of the S3 protocol accept such a put.
pub(crate) async fn require_conditions(
    store: &dyn ObjectStore,
    old: Option<&UpdateVersion>,
    current: &Manifest,
) -> Result<(), SeriesError> {
    match put_if(store, old, current).await? {
        Ok(_) => Err(SeriesError::NoConditionalPut),
        Err(error) if is_conflict(&error) => Ok(()),
        Err(error) => Err(failed("replace", error)),
    }
}
