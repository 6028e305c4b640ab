//! Listings page by page with retries, which also confirm the known versions of the objects they return.

use std::sync::Arc;

use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, ObjectStore, Result};
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::origin::interface::Capability;
use crate::origin::page::{Level, ListPage};
use crate::retry::{Retries, is_transient, stalled, unavailable, with_retries};
use crate::shared::BucketShared;

/// A listing in progress. It can resume after its last key if the origin lists in order.
struct Listing {
    bucket: Arc<BucketShared>,
    prefix: Option<Path>,
    /// The last key returned; later ones are still to come.
    after: Option<Path>,
    ordered: bool,
    /// A key returned before, to find cycles.
    seen: Option<Path>,
    /// Number of keys returned.
    count: u64,
    entries: Option<BoxStream<'static, Result<ObjectMeta>>>,
    /// Send time of the request for `entries`.
    sent_at: Instant,
    retries: Retries,
}

/// Lists the objects below `prefix`, those after `after` if given.
pub(crate) fn list(
    bucket: &Arc<BucketShared>,
    prefix: Option<&Path>,
    after: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    bucket.counters.request();
    let listing = Listing {
        bucket: Arc::clone(bucket),
        prefix: prefix.cloned(),
        after: after.cloned(),
        ordered: true,
        seen: None,
        count: 0,
        entries: None,
        sent_at: Instant::now(),
        retries: Retries::new(bucket.retry()),
    };
    try_unfold(listing, |mut listing| async move {
        Ok(listing.next().await?.map(|meta| (meta, listing)))
    })
    .boxed()
}

/// Rejects a key that is not below `prefix`.
pub(crate) fn check_below(key: &Path, prefix: &Path) -> Result<()> {
    match key.prefix_matches(prefix) {
        true => Ok(()),
        false => Err(bad_listing(
            prefix,
            format!("a listing of it has the key {key}"),
        )),
    }
}

fn bad_listing(prefix: &Path, detail: String) -> Error {
    let object = prefix.to_string();
    EngineError::BadResponse { object, detail }.into()
}

impl Listing {
    /// Rejects a key that is not below the prefix, and a repeated one: the listing would not end.
    ///
    /// Keeps the key at each power of two (Brent's cycle detection), so that a cycle of n keys is found within 3n.
    fn check(&mut self, key: &Path) -> Result<()> {
        let prefix = self.prefix.clone().unwrap_or_default();
        check_below(key, &prefix)?;
        if self.seen.as_ref() == Some(key) {
            let detail = format!("a listing of it has the key {key} twice");
            return Err(bad_listing(&prefix, detail));
        }
        self.count += 1;
        if self.count.is_power_of_two() {
            self.seen = Some(key.clone());
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        loop {
            let policy = self.bucket.engine.retry;
            let entries = match &mut self.entries {
                Some(entries) => entries,
                none => none.insert(self.bucket.list_after(
                    self.prefix.as_ref(),
                    self.after.as_ref(),
                    &mut self.sent_at,
                )),
            };
            let entry = tokio::time::timeout(policy.stall, entries.try_next()).await;
            let error = match entry.unwrap_or_else(|_| Err(stalled(policy))) {
                Ok(Some(meta)) if self.after.as_ref() == Some(&meta.location) => continue,
                Ok(Some(meta)) => {
                    self.check(&meta.location)?;
                    self.retries.progress();
                    let location = Some(meta.location.clone());
                    self.ordered &= self.after <= location;
                    self.after = location;
                    self.bucket.versions.record_listed(self.sent_at, &meta);
                    return Ok(Some(meta));
                }
                Ok(None) => return Ok(None),
                Err(error) => error,
            };
            self.entries = None;
            // Resuming an unordered listing could skip keys.
            if !is_transient(&error) || !self.ordered {
                return Err(error);
            }
            if !self.retries.back_off().await {
                let prefix = self.prefix.clone().unwrap_or_default();
                return Err(unavailable("list", &prefix, error));
            }
        }
    }
}

impl Bucket {
    /// Returns at most `max` objects after `after` with keys that begin with `prefix`, in key order, and whether there
    /// are more. Sends one request, where [`ObjectStore::list`] continues to the end.
    ///
    /// # Errors
    /// Errors of a listing.
    pub async fn list_page(
        &self,
        prefix: &str,
        after: Option<&Path>,
        max: usize,
    ) -> Result<ListPage> {
        let bucket = self.shared();
        bucket.counters.request();
        let sent_at = Instant::now();
        let place = Path::from(prefix);
        let page = with_retries(bucket.retry(), "list", &place, || {
            bucket.origin_request(Capability::List);
            bucket.origin.list_page(prefix, after, max)
        })
        .await?;
        for meta in &page.objects {
            bucket.versions.record_listed(sent_at, meta);
        }
        Ok(page)
    }
}

impl Bucket {
    /// Returns one level of a listing: objects and common prefixes with names that begin with `prefix` and sort after
    /// `after`. Keys with a `/` after `prefix` are folded into one. Returns at most `max` entries if the origin has such
    /// pages, else all.
    ///
    /// # Errors
    /// Errors of a listing.
    pub async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let bucket = self.shared();
        bucket.counters.request();
        let sent_at = Instant::now();
        let place = Path::from(prefix);
        let level = with_retries(bucket.retry(), "list", &place, || {
            bucket.origin_request(Capability::List);
            bucket.origin.list_level(prefix, after, max)
        })
        .await?;
        let ListResult {
            common_prefixes,
            objects,
            ..
        } = &level.entries;
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = Path::parse(folder)?;
        for key in common_prefixes {
            check_below(key, &folder)?;
        }
        for meta in objects {
            check_below(&meta.location, &folder)?;
            bucket.versions.record_listed(sent_at, meta);
        }
        Ok(level)
    }
}

impl BucketShared {
    fn list_after(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        sent_at: &mut Instant,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin_request(Capability::List);
        *sent_at = Instant::now();
        match after {
            None => self.origin.list(prefix),
            Some(after) => self.origin.list_with_offset(prefix, after),
        }
    }
}
