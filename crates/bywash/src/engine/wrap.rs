//! Buckets over stores that the program has configured itself.

use std::fmt;
use std::sync::Arc;

use bywash_store::WrappedStore;
use object_store::ObjectStore;
use object_store::multipart::MultipartStore;

use super::Engine;
use crate::bucket::Bucket;
use crate::bucket_options::BucketOptions;
use crate::consistency::Consistency;
use crate::error::EngineError;

/// Options of [`Engine::wrap`]. A [`Consistency`] or [`BucketOptions`] can be given instead; the others are then the defaults.
#[derive(Clone, Default)]
pub struct WrapOptions {
    /// Options of the bucket, as of [`Engine::mount`].
    pub bucket: BucketOptions,
    /// The store's client for uploads in numbered parts: mostly the same value as the store. It must write the same keys: of a
    /// [`object_store::prefix::PrefixStore`] give the prefixed one, not the store below. Without one an object of more than one chunk
    /// is sent as one stream of parts: a part that failed ends the upload with an error, and [`Bucket::create_upload`] and tags of
    /// such objects are refused by name.
    pub multipart: Option<Arc<dyn MultipartStore>>,
    /// Name of the store that every process gives it, with its endpoint, bucket and prefix, and of no other store. With it, objects with
    /// strong ETags are kept on the disk tier for later processes ([`crate::EngineBuilder::disk`]). Only for stores whose strong ETags
    /// always name the same bytes, and whose credentials all see the same objects.
    pub address: Option<String>,
}

impl fmt::Debug for WrapOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrapOptions")
            .field("bucket", &self.bucket)
            .field("multipart", &self.multipart.is_some())
            .field("address", &self.address)
            .finish()
    }
}

impl From<BucketOptions> for WrapOptions {
    fn from(bucket: BucketOptions) -> Self {
        Self {
            bucket,
            ..Self::default()
        }
    }
}

impl From<Consistency> for WrapOptions {
    fn from(consistency: Consistency) -> Self {
        BucketOptions::from(consistency).into()
    }
}

impl Engine {
    /// Mounts `store`, which the program has configured, as the bucket `name`. The bucket implements [`ObjectStore`] and can take the
    /// place of the store in the program. Sends no request.
    ///
    /// The engine retries a request that failed for a transient reason, for up to [`crate::RetryPolicy::deadline`]. Turn the retries
    /// of a store off, or each of its own is repeated. Operations that the store lacks fail with its own error, mostly
    /// `NotImplemented`; a response that does not match its request is [`bywash_store::OriginError::BadResponse`]. An object without a strong ETag
    /// is known by its date and size, and one without a date either is not cached.
    ///
    /// Cancellation: a dropped read drops the store's request, unless other readers wait for it; requests for a version may continue
    /// without readers for as long as a request may take (64 a bucket). Requests of a write are not cancelled: the store may have
    /// applied it.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn wrap(
        &self,
        name: &str,
        store: Arc<dyn ObjectStore>,
        options: impl Into<WrapOptions>,
    ) -> Result<Bucket, EngineError> {
        let WrapOptions {
            bucket,
            multipart,
            address,
        } = options.into();
        let origin = Arc::new(WrappedStore::new(store, multipart, address));
        self.mount(name, origin, bucket)
    }
}
