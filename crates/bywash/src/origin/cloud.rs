//! Common part of the cloud origins: one client without retries, and a prefix before every key.
//!
//! Only the engine retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetResult, ObjectStore, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};

use super::network::install_tls_provider;
use super::page::{ListPage, Order, check_prefix};

/// A cloud bucket or container, or the part of it below a prefix. `C` is the client for requests that object_store
/// lacks.
#[derive(Debug, Clone)]
pub struct Cloud<C> {
    objects: PrefixStore<Arc<dyn ObjectStore>>,
    prefix: Path,
    name: String,
    /// Address of the service, to distinguish two services with a bucket of one name.
    endpoint: String,
    pub(super) client: C,
}

impl<C> Cloud<C> {
    /// `address` is the bucket's, as `s3://bucket`; `endpoint` the service's; `objects` is its client, without a prefix.
    pub(super) fn new(
        address: &str,
        endpoint: String,
        objects: Arc<dyn ObjectStore>,
        prefix: &Path,
        client: C,
    ) -> Self {
        Self {
            objects: PrefixStore::new(objects, prefix.clone()),
            prefix: prefix.clone(),
            name: format!("{address}/{prefix}"),
            endpoint,
            client,
        }
    }

    /// See [`super::interface::Origin::durable_address`].
    pub(super) fn address(&self) -> String {
        format!("{} {}", self.endpoint, self.name)
    }

    /// Returns the key in the bucket.
    pub(super) fn full_path(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }

    /// Returns one page of `store`, which does not know this origin's prefix.
    pub(super) async fn page_of(
        &self,
        store: &impl PaginatedListStore,
        prefix: &str,
        after: Option<&Path>,
        max: usize,
    ) -> Result<ListPage> {
        let ours = self.full_path(&Path::default());
        let prefix = match ours.as_ref() {
            "" => prefix.to_owned(),
            ours => format!("{ours}/{prefix}"),
        };
        let (mut page_token, mut order) = (None, Order::default());
        loop {
            let options = PaginatedListOptions {
                offset: after.map(|after| self.full_path(after).into()),
                max_keys: Some(max),
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = store.list_paginated(Some(&prefix), options).await?;
            page_token = page.page_token;
            let mut objects = page.result.objects;
            for meta in &objects {
                order.check(&meta.location)?;
                check_prefix(&meta.location, &prefix)?;
            }
            objects.retain_mut(|meta| {
                let Some(rest) = meta.location.prefix_match(&ours) else {
                    return false;
                };
                meta.location = rest.collect();
                // The marker of our folder is not an object in it, and some stores ignore the offset.
                !meta.location.is_root() && after.is_none_or(|after| meta.location > *after)
            });
            // A store may send an empty page with more after it.
            if objects.is_empty() && page_token.is_some() {
                continue;
            }
            return Ok(ListPage {
                objects,
                more: page_token.is_some(),
            });
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
