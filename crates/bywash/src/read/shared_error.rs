//! One failure told to many: object_store's errors cannot be cloned.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bywash_mem::LoadError;
use object_store::Error;

/// An error owned by several readers; shows itself as the one it wraps.
#[derive(Debug, Clone)]
struct Told(Arc<Error>);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Told {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.0.as_ref())
    }
}

/// An error of the same meaning for one more reader, with the original as its source.
pub(crate) fn retell(error: &Arc<Error>) -> Error {
    let source = Box::new(Told(Arc::clone(error)));
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

/// Gives an error of the engine to the pool's waiters.
pub(super) fn load_error(error: Arc<Error>) -> LoadError {
    Arc::new(Told(error))
}

/// Takes the engine's error back from the pool.
pub(super) fn from_load_error(error: &LoadError) -> Error {
    match error.downcast_ref::<Told>() {
        Some(told) => retell(&told.0),
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
    fn keeps_the_meaning_and_the_cause() {
        let error = Error::NotFound {
            path: "a".into(),
            source: "gone".into(),
        };
        assert!(matches!(retell(&Arc::new(error)), Error::NotFound { path, .. } if path == "a"));
        let error = Error::from(EngineError::VersionChanged { object: "a".into() });
        let told = from_load_error(&load_error(Arc::new(error)));
        assert!(matches!(
            EngineError::find(&told),
            Some(EngineError::VersionChanged { .. })
        ));
    }
}
