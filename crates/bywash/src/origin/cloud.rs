//! Common part of the cloud origins: one client without retries, and a prefix before every key.
//!
//! Only the engine retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetResult, ObjectStore, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};

use super::network::install_tls_provider;

/// A cloud bucket or container, or the part of it below a prefix. `C` is the client for requests that object_store
/// lacks.
#[derive(Debug, Clone)]
pub struct Cloud<C> {
    objects: PrefixStore<Arc<dyn ObjectStore>>,
    prefix: Path,
    name: String,
    pub(super) client: C,
}

impl<C> Cloud<C> {
    /// `address` is the bucket's, as `s3://bucket`; `objects` is its client, without a prefix.
    pub(super) fn new(
        address: &str,
        objects: Arc<dyn ObjectStore>,
        prefix: &Path,
        client: C,
    ) -> Self {
        Self {
            objects: PrefixStore::new(objects, prefix.clone()),
            prefix: prefix.clone(),
            name: format!("{address}/{prefix}"),
            client,
        }
    }

    /// Returns the key in the bucket.
    pub(super) fn full_path(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }
}

impl<C> fmt::Display for Cloud<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

crate::forward_object_store! {
    impl[C: fmt::Debug + Send + Sync + 'static] ObjectStore for Cloud<C> => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.objects.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.objects.get_opts(path, options).await
        }
    }
}

/// Returns the client settings of all clouds. A whole request has no time limit: a large body on a slow line is not a
/// failure. The engine limits the time without progress instead.
pub(super) fn client_options() -> ClientOptions {
    install_tls_provider();
    ClientOptions::new()
        .with_allow_http(true)
        .with_timeout_disabled()
}

pub(super) fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        backoff: BackoffConfig::default(),
    }
}
