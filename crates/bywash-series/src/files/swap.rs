//! Replacing the manifest: only the one that was read, and never without knowing afterwards which one holds.

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

use super::manifest::{Manifest, NoManifest, PATH};
use crate::SeriesError;

/// A manifest and the version of its object, which the next one replaces.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) manifest: Manifest,
    pub(super) version: UpdateVersion,
}

/// Why a manifest was not put.
#[derive(Debug)]
pub(super) enum SwapError {
    /// It was not the expected one that was to be replaced, but this.
    Found(Box<Stored>),
    /// Whether it was put is unknown, or it was not.
    Failed(SeriesError),
}

impl From<SeriesError> for SwapError {
    fn from(failed: SeriesError) -> Self {
        Self::Failed(failed)
    }
}

fn failed(doing: &str, source: Error) -> SeriesError {
    match source {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => SeriesError::NoConditionalPut,
        source => SeriesError::Store {
            doing: format!("{doing} {PATH}"),
            source,
        },
    }
}

/// The manifest of a store, if it has one.
pub(super) async fn load(store: &dyn ObjectStore) -> Result<Option<Stored>, SeriesError> {
    let answer = match store.get(&Path::from(PATH)).await {
        Ok(answer) => answer,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(failed("read", source)),
    };
    let version = UpdateVersion {
        e_tag: answer.meta.e_tag.clone(),
        version: answer.meta.version.clone(),
    };
    let bytes = answer
        .bytes()
        .await
        .map_err(|source| failed("read", source))?;
    let manifest = Manifest::decode(&bytes).map_err(|wrong| match wrong {
        NoManifest::Newer(format) => SeriesError::NewerFormat { format },
        NoManifest::Damaged(reason) => SeriesError::DamagedFile {
            object: PATH.to_owned(),
            reason,
        },
    })?;
    Ok(Some(Stored { manifest, version }))
}

/// Puts a manifest in the place of the version `old`, or of none.
///
/// An answer that does not come is found out by reading: the manifest that is there is this one, or it is not.
pub(super) async fn swap(
    store: &dyn ObjectStore,
    old: Option<&UpdateVersion>,
    new: Manifest,
) -> Result<Stored, SwapError> {
    let mode = match old {
        None => PutMode::Create,
        Some(UpdateVersion {
            e_tag: None,
            version: None,
        }) => {
            return Err(SeriesError::NoConditionalPut.into());
        }
        Some(old) => PutMode::Update(old.clone()),
    };
    let put = store
        .put_opts(&Path::from(PATH), new.encode().into(), mode.into())
        .await;
    let refused = match put {
        Ok(put) => {
            let version = put.into();
            return Ok(Stored {
                manifest: new,
                version,
            });
        }
        Err(source) => source,
    };
    let clash = matches!(
        refused,
        Error::Precondition { .. } | Error::AlreadyExists { .. }
    );
    match load(store).await? {
        Some(found) if found.manifest == new => Ok(found),
        Some(found) if clash => Err(SwapError::Found(Box::new(found))),
        _ => Err(failed("replace", refused).into()),
    }
}
