//! Errors with several recipients: object_store's errors cannot be cloned.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bywash_mem::LoadError;
use object_store::Error;

/// An error shared by several readers; displays as the error it wraps.
#[derive(Debug, Clone)]
struct SharedError(Arc<Error>);

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for SharedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.0.as_ref())
    }
}

/// Returns an error of the same kind for one more recipient, with the original as its source.
#[must_use]
pub fn clone_error(error: &Arc<Error>) -> Error {
    let source = Box::new(SharedError(Arc::clone(error)));
    match error.as_ref() {
        Error::NotFound { path, .. } => Error::NotFound {
            path: path.clone(),
            source,
        },
        Error::AlreadyExists { path, .. } => Error::AlreadyExists {
            path: path.clone(),
            source,
        },
        Error::Precondition { path, .. } => Error::Precondition {
            path: path.clone(),
            source,
        },
        Error::NotModified { path, .. } => Error::NotModified {
            path: path.clone(),
            source,
        },
        Error::PermissionDenied { path, .. } => Error::PermissionDenied {
            path: path.clone(),
            source,
        },
        Error::Unauthenticated { path, .. } => Error::Unauthenticated {
            path: path.clone(),
            source,
        },
        Error::NotSupported { .. } => Error::NotSupported { source },
        _ => Error::Generic {
            store: "Bywash",
            source,
        },
    }
}

/// Converts an error of the engine for the waiters of a pool's load.
pub(super) fn load_error(error: Arc<Error>) -> LoadError {
    Arc::new(SharedError(error))
}

/// Converts a load's error back into the engine's.
pub(super) fn from_load_error(error: &LoadError) -> Error {
    match error.downcast_ref::<SharedError>() {
        Some(shared) => clone_error(&shared.0),
        None => Error::Generic {
            store: "Bywash",
            source: error.to_string().into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineError;

    #[test]
    fn clone_keeps_variant_and_source() {
        let error = Error::NotFound {
            path: "a".into(),
            source: "gone".into(),
        };
        assert!(
            matches!(clone_error(&Arc::new(error)), Error::NotFound { path, .. } if path == "a")
        );
        let error = Error::from(EngineError::VersionChanged { object: "a".into() });
        let converted = from_load_error(&load_error(Arc::new(error)));
        assert!(matches!(
            EngineError::find(&converted),
            Some(EngineError::VersionChanged { .. })
        ));
    }
}
