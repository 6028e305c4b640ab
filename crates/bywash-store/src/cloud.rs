//! Common part of the cloud origins: one client without retries, and a prefix before every key.
//!
//! Only the engine retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, CopyOptions, Error, GetOptions, GetResult, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};

use super::access::Access;
use super::network::{LeftOutByServer, install_tls_provider};
use super::odd_keys::{check, folder_of_marker, is_odd, key_of, path_of_key, refused};
use super::omissions::Omissions;
use super::page::{ListPage, Order, check_prefix};

/// Objects of a page: the most that any store returns.
const PAGE_KEYS: usize = 1000;

/// A cloud bucket or container, or the part of it below a prefix. `C` is the client for requests that object_store
/// lacks.
#[derive(Debug, Clone)]
pub struct Cloud<C> {
    objects: PrefixStore<Arc<dyn ObjectStore>>,
    odd: Option<Arc<dyn OddObjects>>,
    prefix: Path,
    name: String,
    /// Address of the service, to distinguish two services with a bucket of one name.
    endpoint: String,
    access: Arc<Access>,
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
            odd: None,
            prefix: prefix.clone(),
            name: format!("{address}/{prefix}"),
            endpoint,
            access: Arc::default(),
            client,
        }
    }

    /// Returns the store with a client for objects with odd keys.
    pub(super) fn with_odd(self, odd: Option<Arc<dyn OddObjects>>) -> Self {
        Self { odd, ..self }
    }

    /// Returns the store with more settings in the identity of its requests.
    pub(super) fn read_with(mut self, add: impl FnOnce(&mut Access)) -> Self {
        add(Arc::make_mut(&mut self.access));
        self
    }

    /// See [`Capabilities::reads_odd_keys`].
    pub(super) fn has_odd(&self) -> bool {
        self.odd.is_some()
    }

    /// Reads by a key that object_store cannot name.
    async fn get_odd(&self, path: &Path, key: &Path, options: GetOptions) -> Result<GetResult> {
        let odd = self.odd.as_ref().ok_or_else(|| refused(path))?;
        let mut found = odd.get(&self.full_path(key), options).await?;
        found.meta.location = path.clone();
        Ok(found)
    }

    /// Deletes objects that object_store cannot name. Another program may have stored an object under a folder's key.
    async fn delete_odd(&self, path: &Path) -> Result<Path> {
        let folder = folder_of_marker(path);
        let key = folder.as_ref().unwrap_or(path);
        let odd = self.odd.as_ref().ok_or_else(|| refused(path))?;
        odd.delete(&self.full_path(key)).await?;
        Ok(path.clone())
    }

    /// See [`super::interface::Origin::durable_address`].
    pub(super) fn address(&self) -> String {
        format!("{} {}", self.endpoint, self.name)
    }

    /// See [`super::interface::Origin::cache_identity`].
    pub(super) fn identity(&self) -> String {
        self.access.identity(&self.address())
    }

    /// Returns the key in the bucket.
    pub(super) fn full_path(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }

    /// Begins all keys of this origin.
    fn own_prefix(&self) -> String {
        match self.prefix.as_ref() {
            "" => String::new(),
            ours => format!("{ours}/"),
        }
    }

    /// Returns one page of `store`, which does not know this origin's prefix.
    pub(super) async fn page_of(
        &self,
        store: &impl PaginatedListStore,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<ListPage> {
        let ours = self.own_prefix();
        let prefix = format!("{ours}{prefix}");
        let (mut page_token, mut order) = (None, Order::default());
        let omissions = Omissions::default();
        loop {
            let options = PaginatedListOptions {
                offset: after.map(|after| format!("{ours}{after}")),
                max_keys: Some(max),
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = store.list_paginated(Some(&prefix), options).await?;
            page_token = page.page_token;
            let left_out = page.result.extensions.get::<LeftOutByServer>();
            omissions.note_unnamed(left_out.map_or(0, |left_out| left_out.0));
            let mut objects = page.result.objects;
            for meta in &objects {
                order.check(&meta.location)?;
                check_prefix(&meta.location, &prefix)?;
            }
            objects.retain_mut(|meta| is_listed(meta, &ours, after));
            // A store may send an empty page with more after it.
            if objects.is_empty() && page_token.is_some() {
                continue;
            }
            return Ok(ListPage {
                objects,
                more: page_token.is_some(),
                left_out: omissions.left_out(),
            });
        }
    }
}

/// Lists by pages, which note the entries that a server has left out, as the store continues them: in any order.
pub(super) fn by_pages<C, L>(
    store: &Cloud<C>,
    lister: &L,
    (prefix, after): (Option<&Path>, Option<&Path>),
    omissions: &Omissions,
) -> BoxStream<'static, Result<ObjectMeta>>
where
    L: PaginatedListStore + Clone + 'static,
{
    let folder = prefix.filter(|prefix| !prefix.is_root());
    let folder = folder.map_or_else(String::new, |folder| format!("{folder}/"));
    let ours = store.own_prefix();
    let after = after.map(|after| key_of(after).into_owned());
    let (lister, omissions) = (lister.clone(), omissions.clone());
    let pages = try_unfold(Some(None), move |token| {
        let (lister, omissions) = (lister.clone(), omissions.clone());
        let (ours, folder, after) = (ours.clone(), folder.clone(), after.clone());
        async move {
            let Some(page_token) = token else {
                return Ok(None);
            };
            let options = PaginatedListOptions {
                offset: after.as_ref().map(|after| format!("{ours}{after}")),
                max_keys: Some(PAGE_KEYS),
                page_token,
                ..PaginatedListOptions::default()
            };
            let prefix = format!("{ours}{folder}");
            let page = lister.list_paginated(Some(&prefix), options).await?;
            let left_out = page.result.extensions.get::<LeftOutByServer>();
            omissions.note_unnamed(left_out.map_or(0, |left_out| left_out.0));
            let mut objects = page.result.objects;
            for meta in &objects {
                check_prefix(&meta.location, &prefix)?;
            }
            objects.retain_mut(|meta| is_listed(meta, &ours, after.as_deref()));
            let objects = stream::iter(objects.into_iter().map(Ok));
            Ok::<_, Error>(Some((objects, page.page_token.map(Some))))
        }
    });
    pages.try_flatten().boxed()
}

/// Takes the origin's prefix from the key of a listed object. Returns whether it is one: the marker of our folder is not an object in
/// it, and some stores ignore the offset.
fn is_listed(meta: &mut ObjectMeta, ours: &str, after: Option<&str>) -> bool {
    let key = key_of(&meta.location);
    let Some(key) = key.strip_prefix(ours) else {
        return false;
    };
    let is_listed = !key.is_empty() && after.is_none_or(|after| key > after);
    meta.location = path_of_key(key);
    is_listed
}

impl<C> fmt::Display for Cloud<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Requests for objects whose keys object_store cannot name; see [`super::odd_keys`]. The paths have the whole key.
#[async_trait]
pub(super) trait OddObjects: fmt::Debug + Send + Sync {
    async fn get(&self, path: &Path, options: GetOptions) -> Result<GetResult>;

    async fn delete(&self, path: &Path) -> Result<()>;
}

#[async_trait]
impl<C> ObjectStore for Cloud<C>
where
    C: Clone + fmt::Debug + Send + Sync + 'static,
{
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        check(path)?;
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        check(path)?;
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if is_odd(path) {
            return self.get_odd(path, path, options).await;
        }
        let folder = folder_of_marker(path).filter(|_| self.has_odd());
        let Some(folder) = folder else {
            return self.objects.get_opts(path, options).await;
        };
        match self.objects.get_opts(path, options.clone()).await {
            Err(Error::NotFound { .. }) => self.get_odd(path, &folder, options).await,
            found => found,
        }
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        // A bulk request has at most as many.
        let chunks = paths.try_chunks(PAGE_KEYS).then(move |chunk| {
            let store = store.clone();
            async move { delete_chunk(&store, chunk.map_err(|error| error.1)?).await }
        });
        chunks.map_ok(stream::iter).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        check(from)?;
        check(to)?;
        self.objects.copy_opts(from, to, options).await
    }
}

/// Deletes objects: one by one if object_store cannot name them, and the others by its requests. Returns the results in order.
async fn delete_chunk<C>(store: &Cloud<C>, paths: Vec<Path>) -> Result<Vec<Result<Path>>>
where
    C: Clone + fmt::Debug + Send + Sync + 'static,
{
    let plain: Vec<Path> = paths.iter().filter(|path| !is_odd(path)).cloned().collect();
    let requested = stream::iter(plain.into_iter().map(Ok)).boxed();
    let deleted: Vec<_> = store.objects.delete_stream(requested).collect().await;
    let (mut deleted, mut results) = (deleted.into_iter(), Vec::with_capacity(paths.len()));
    for path in paths {
        let plain = match is_odd(&path) {
            true => Ok(path.clone()),
            // One error may stand for all that are left.
            false => match deleted.next() {
                Some(result) => result,
                None => break,
            },
        };
        let has_more = is_odd(&path) || (store.has_odd() && folder_of_marker(&path).is_some());
        results.push(match plain {
            Ok(_) if has_more => store.delete_odd(&path).await,
            result => result,
        });
    }
    Ok(results)
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
