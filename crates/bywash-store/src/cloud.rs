//! Common part of the cloud origins: one client without retries, and a prefix before every key.
//!
//! Only the engine retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, try_unfold};
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, Method, StatusCode};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, CopyOptions, Error, GetOptions, GetResult, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, RetryConfig,
};

use super::access::Access;
use super::http_client::{Request, Response};
use super::interface::StoreIdentity;
use super::network::{LeftOutByServer, install_tls_provider};
use super::odd_keys::{check, folder_of_marker, is_odd, key_of, path_of_key, refused};
use super::odd_objects::{Names, OddRead};
use super::omissions::Omissions;
use super::page::{Keys, ListPage, Objects, Order, check_prefix};
use crate::error::StatusError;

/// Objects of a page: the most that any store returns.
const PAGE_KEYS: usize = 1000;

/// The client of one cloud: requests, whole objects, and keys that object_store cannot name.
/// Its keys are whole.
#[async_trait]
pub(crate) trait CloudClient: Clone + fmt::Debug + Send + Sync + 'static {
    /// Names in requests for odd keys, and in errors.
    const NAMES: Names;

    /// Sends a request about an object of the bucket, addressed and authorized with all its headers.
    async fn send(&self, key: &Path, request: Request) -> Result<Response>;

    /// Stores a whole object by one request, with a checksum.
    async fn put(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult>;

    /// Completes a response to a read.
    fn found(&self, found: GetResult) -> GetResult {
        found
    }

    /// See [`super::Capabilities::reads_odd_keys`].
    fn reads_odd(&self) -> bool {
        false
    }

    /// Sends a request for an object with an odd key; see [`super::odd_keys`].
    async fn send_odd(
        &self,
        _method: Method,
        key: &Path,
        _headers: HeaderMap,
    ) -> Result<reqwest::Response> {
        Err(refused(key))
    }
}

/// A cloud bucket or container, or the part of it below a prefix. `C` is the client for requests that object_store
/// lacks.
#[derive(Debug, Clone)]
pub struct Cloud<C> {
    objects: PrefixStore<Arc<dyn ObjectStore>>,
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
            prefix: prefix.clone(),
            name: format!("{address}/{prefix}"),
            endpoint,
            access: Arc::default(),
            client,
        }
    }

    /// Returns the store with more settings in the identity of its requests.
    pub(super) fn read_with(mut self, add: impl FnOnce(&mut Access)) -> Self {
        add(Arc::make_mut(&mut self.access));
        self
    }

    /// See [`StoreIdentity::address`].
    pub(super) fn address(&self) -> String {
        format!("{} {}", self.endpoint, self.name)
    }

    /// See [`super::interface::Origin::identity`].
    pub(super) fn names(&self) -> StoreIdentity {
        self.access.identity(self.address())
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
        let (omissions, mut order) = (Omissions::default(), Order::default());
        let pages = Pages {
            prefix: format!("{}{prefix}", self.own_prefix()),
            ours: self.own_prefix(),
            after: after.map(str::to_owned),
            max,
        };
        let mut token = None;
        loop {
            let each = |meta: &ObjectMeta| order.check(&meta.location);
            let (objects, next) = pages.get(store, token, &omissions, each).await?;
            // A store may send an empty page with more after it.
            if objects.is_empty() && next.is_some() {
                token = next;
                continue;
            }
            return Ok(ListPage {
                objects,
                more: next.is_some(),
                left_out: omissions.left_out(),
            });
        }
    }

    /// Lists by pages, which note the entries that a server has left out, as the store continues them: in any order.
    pub(super) fn by_pages<L>(
        &self,
        lister: &L,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects
    where
        L: PaginatedListStore + Clone + 'static,
    {
        let folder = prefix.filter(|prefix| !prefix.is_root());
        let folder = folder.map_or_else(String::new, |folder| format!("{folder}/"));
        let list = Arc::new(Pages {
            prefix: format!("{}{folder}", self.own_prefix()),
            ours: self.own_prefix(),
            after: after.map(|after| key_of(after).into_owned()),
            max: PAGE_KEYS,
        });
        let (lister, omissions) = (lister.clone(), omissions.clone());
        let pages = try_unfold(Some(None), move |token| {
            let (list, lister, omissions) = (Arc::clone(&list), lister.clone(), omissions.clone());
            async move {
                let Some(token) = token else {
                    return Ok(None);
                };
                let (objects, next) = list.get(&lister, token, &omissions, |_| Ok(())).await?;
                let objects = stream::iter(objects.into_iter().map(Ok));
                Ok::<_, Error>(Some((objects, next.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }
}

/// The pages of a listing, in keys of the bucket.
struct Pages {
    prefix: String,
    /// Begins all keys of the origin.
    ours: String,
    /// A key of the origin.
    after: Option<String>,
    max: usize,
}

impl Pages {
    /// Requests the objects of a page, with keys of the origin, and the token of the next page. `each` checks an object before.
    async fn get(
        &self,
        store: &impl PaginatedListStore,
        page_token: Option<String>,
        omissions: &Omissions,
        mut each: impl FnMut(&ObjectMeta) -> Result<()> + Send,
    ) -> Result<(Vec<ObjectMeta>, Option<String>)> {
        let (ours, after) = (&self.ours, self.after.as_deref());
        let options = PaginatedListOptions {
            offset: after.map(|after| format!("{ours}{after}")),
            max_keys: Some(self.max),
            page_token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(Some(&self.prefix), options).await?;
        let left_out = page.result.extensions.get::<LeftOutByServer>();
        omissions.note_unnamed(left_out.map_or(0, |left_out| left_out.0));
        let mut objects = page.result.objects;
        for meta in &objects {
            each(meta)?;
            check_prefix(&meta.location, &self.prefix)?;
        }
        objects.retain_mut(|meta| is_listed(meta, ours, after));
        Ok((objects, page.page_token))
    }
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

#[allow(private_bounds, reason = "only this crate implements clients")]
impl<C: CloudClient> Cloud<C> {
    /// Sends a request about an object of this origin.
    pub(super) async fn send(&self, path: &Path, request: Request) -> Result<Response> {
        check(path)?;
        self.client.send(&self.full_path(path), request).await
    }

    /// Reads by a key that object_store cannot name.
    async fn get_odd(&self, path: &Path, key: &Path, options: GetOptions) -> Result<GetResult> {
        if !self.client.reads_odd() {
            return Err(refused(path));
        }
        let (key, read) = (self.full_path(key), OddRead::new(&options)?);
        let sent = self
            .client
            .send_odd(read.method.clone(), &key, read.headers.clone());
        let mut found = read.read(&C::NAMES, &key, &options, sent.await?)?;
        found.meta.location = path.clone();
        Ok(found)
    }

    /// Deletes objects that object_store cannot name. Another program may have stored an object under a folder's key.
    async fn delete_odd(&self, path: &Path) -> Result<Path> {
        if !self.client.reads_odd() {
            return Err(refused(path));
        }
        let folder = folder_of_marker(path);
        let key = self.full_path(folder.as_ref().unwrap_or(path));
        let sent = self.client.send_odd(Method::DELETE, &key, HeaderMap::new());
        match sent.await?.status() {
            status if status.is_success() || status == StatusCode::NOT_FOUND => Ok(path.clone()),
            status => {
                let error = StatusError::new(status, format!("delete {key}"));
                Err(error.of(C::NAMES.store, key.as_ref()))
            }
        }
    }

    /// Reads by a key that object_store can name.
    async fn get_plain(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.objects.get_opts(path, options).await?;
        Ok(self.client.found(found))
    }

    /// Deletes objects: one by one if object_store cannot name them, and the others by its requests. Returns the results in order.
    async fn delete_chunk(&self, paths: Vec<Path>) -> Vec<Result<Path>> {
        let plain: Vec<Path> = paths.iter().filter(|path| !is_odd(path)).cloned().collect();
        let requested = stream::iter(plain.into_iter().map(Ok)).boxed();
        let deleted: Vec<_> = self.objects.delete_stream(requested).collect().await;
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
            let is_marker = || self.client.reads_odd() && folder_of_marker(&path).is_some();
            results.push(match plain {
                Ok(_) if is_odd(&path) || is_marker() => self.delete_odd(&path).await,
                result => result,
            });
        }
        results
    }
}

#[async_trait]
impl<C: CloudClient> ObjectStore for Cloud<C> {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        check(path)?;
        let key = self.full_path(path);
        self.client.put(&key, payload, options).await
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
        let folder = folder_of_marker(path).filter(|_| self.client.reads_odd());
        let Some(folder) = folder else {
            return self.get_plain(path, options).await;
        };
        match self.get_plain(path, options.clone()).await {
            Err(Error::NotFound { .. }) => self.get_odd(path, &folder, options).await,
            found => found,
        }
    }

    fn delete_stream(&self, paths: Keys) -> Keys {
        let store = self.clone();
        // A bulk request has at most as many.
        let chunks = paths.try_chunks(PAGE_KEYS).then(move |chunk| {
            let store = store.clone();
            async move { Ok::<_, Error>(store.delete_chunk(chunk.map_err(|error| error.1)?).await) }
        });
        chunks.map_ok(stream::iter).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> Objects {
        self.objects.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Objects {
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
