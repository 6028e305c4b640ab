//! Errors, by what the caller can do.

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesError {
    /// The storage below failed. Nothing acknowledged is lost; try again.
    #[error("the series store failed at {doing}")]
    Store {
        /// The operation and the object.
        doing: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
}
