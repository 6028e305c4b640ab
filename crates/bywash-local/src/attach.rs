//! Origins that clients have mounted by their address.

use std::fmt;
use std::time::Duration;

use bywash::Bucket;
use object_store::path::Path;

/// Mounts origins for clients. The program that serves has one: it knows which addresses it may open, and with which credentials.
pub trait Attacher: fmt::Debug + Send + Sync {
    /// Returns the bucket over the origin at `address`, mounting it if no bucket has that origin.
    /// `options` are the options of a `[[bucket]]` in the settings, by name and value.
    ///
    /// # Errors
    /// [`AttachError`] with the reason and the next step.
    fn attach(&self, address: &str, options: &[(String, String)]) -> Result<Bucket, AttachError>;

    /// Returns an address of the S3 endpoint that is signed for one request. `None` without a key to sign with, and for methods that are
    /// not signed for.
    fn sign(&self, bucket: &str, path: &Path, method: &str, expires: Duration) -> Option<String>;
}

/// An origin was not mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachError(pub String);

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AttachError {}
