//! Listings that survive a hiccup, and refresh what is known of the objects they show.

use std::sync::Arc;

use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, ObjectStore, Result};
use tokio::time::Instant;

use crate::bucket::{Bucket, Shared};
use crate::error::EngineError;
use crate::origin::{Ability, Level, ListPage};
use crate::retry::{Retries, is_transient, stalled, unavailable, with_retries};

/// A listing in progress. It can continue after the last key seen, if the origin lists in order.
struct Listing {
    bucket: Arc<Shared>,
    prefix: Option<Path>,
    /// Keys after this one are still to come.
    after: Option<Path>,
    ordered: bool,
    /// A key seen before.
    seen: Option<Path>,
    /// Keys seen.
    count: u64,
    entries: Option<BoxStream<'static, Result<ObjectMeta>>>,
    /// When the request was sent that the entries answer.
    asked: Instant,
    retries: Retries,
}

/// Lists the objects below `prefix`, those after `after` if given.
pub(crate) fn list(
    bucket: &Arc<Shared>,
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
        asked: Instant::now(),
        retries: Retries::new(bucket.engine.retry),
    };
    try_unfold(listing, |mut listing| async move {
        Ok(listing.next().await?.map(|meta| (meta, listing)))
    })
    .boxed()
}

/// Refuses a key that a listing of `prefix` cannot have.
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
    EngineError::BadAnswer { object, detail }.into()
}

impl Listing {
    /// Refuses a key that is not below the prefix, and one that comes again: the listing would have no end.
    ///
    /// Remembers the key at each power of two (Brent's way to find a cycle), so that a cycle of n keys is found within 3n.
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
                none => none.insert(self.bucket.ask(
                    self.prefix.as_ref(),
                    self.after.as_ref(),
                    &mut self.asked,
                )),
            };
            let answer = tokio::time::timeout(policy.stall, entries.try_next()).await;
            let error = match answer.unwrap_or_else(|_| Err(stalled(policy))) {
                Ok(Some(meta)) if self.after.as_ref() == Some(&meta.location) => continue,
                Ok(Some(meta)) => {
                    self.check(&meta.location)?;
                    self.retries.progress();
                    let location = Some(meta.location.clone());
                    self.ordered &= self.after <= location;
                    self.after = location;
                    self.bucket.versions.listed(self.asked, &meta);
                    return Ok(Some(meta));
                }
                Ok(None) => return Ok(None),
                Err(error) => error,
            };
            self.entries = None;
            // What an origin without order would tell after a key is not what it has not told yet.
            if !is_transient(&error) || !self.ordered {
                return Err(error);
            }
            if !self.retries.again().await {
                let prefix = self.prefix.clone().unwrap_or_default();
                return Err(unavailable("list", &prefix, error));
            }
        }
    }
}

impl Bucket {
    /// The first `most` objects after `after` whose keys begin with `prefix`, in the order of their keys, and whether there are
    /// more. One request to the origin, where [`ObjectStore::list`] goes on to the end.
    ///
    /// # Errors
    /// Those of a listing.
    pub async fn list_page(
        &self,
        prefix: &str,
        after: Option<&Path>,
        most: usize,
    ) -> Result<ListPage> {
        let bucket = self.shared();
        bucket.counters.request();
        let asked = Instant::now();
        let place = Path::from(prefix);
        let page = with_retries(bucket.engine.retry, "list", &place, || {
            bucket.origin_request(Ability::List);
            bucket.origin.list_page(prefix, after, most)
        })
        .await?;
        for meta in &page.objects {
            bucket.versions.listed(asked, meta);
        }
        Ok(page)
    }
}

impl Bucket {
    /// One level of a listing: objects and common prefixes whose names begin with `prefix` and follow `after`, keys with a `/` after
    /// `prefix` folded into one. At most `max` of them, if the origin has such pages; else all.
    ///
    /// # Errors
    /// Those of a listing.
    pub async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let bucket = self.shared();
        bucket.counters.request();
        let asked = Instant::now();
        let place = Path::from(prefix);
        let level = with_retries(bucket.engine.retry, "list", &place, || {
            bucket.origin_request(Ability::List);
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
            bucket.versions.listed(asked, meta);
        }
        Ok(level)
    }
}

impl Shared {
    fn ask(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        asked: &mut Instant,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin_request(Ability::List);
        *asked = Instant::now();
        match after {
            None => self.origin.list(prefix),
            Some(after) => self.origin.list_with_offset(prefix, after),
        }
    }
}
