//! Listings page by page with retries, which also confirm the known versions of the objects they return.

mod omitted;

use std::sync::Arc;

use bywash_store::{
    Capability, LeftOut, Level, ListPage, Omission, Omissions, OriginError,
    odd_keys::{is_odd, key_of},
};
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, Result};
use tokio::time::Instant;

use self::omitted::CountedOmissions;
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::left_out::note_odd;
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
    /// Entries that it leaves out.
    omissions: Omissions,
    counted: CountedOmissions,
}

/// Lists the objects below `prefix`, only those after `after` if given, and notes the entries left out. Objects with odd keys are among these:
/// the callers take a path for the key.
pub(crate) fn list(
    bucket: &Arc<BucketShared>,
    prefix: Option<&Path>,
    after: Option<&Path>,
    omissions: Omissions,
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
        omissions,
        counted: CountedOmissions::default(),
    };
    try_unfold(listing, |mut listing| async move {
        Ok(listing.next().await?.map(|meta| (meta, listing)))
    })
    .boxed()
}

/// Takes objects and common prefixes with odd keys out of a listing, whose caller takes a path for the key. Its extensions then have
/// the entries left out.
pub(crate) fn leave_out_odd(bucket: &BucketShared, result: &mut ListResult) -> Result<()> {
    let omissions = Omissions::of(result.extensions.remove::<LeftOut>());
    let keep = |path: &Path| {
        let is_odd = is_odd(path);
        if is_odd {
            note_odd(&omissions, path);
        }
        !is_odd
    };
    result.objects.retain(|meta| keep(&meta.location));
    result.common_prefixes.retain(|path| keep(path));
    let left_out = omissions.left_out();
    bucket.count_page_left_out(&left_out)?;
    result.extensions.insert(left_out);
    Ok(())
}

/// Rejects a key that is not below `prefix`.
pub(crate) fn check_below(key: &Path, prefix: &Path) -> Result<()> {
    if key.prefix_matches(prefix) {
        Ok(())
    } else {
        Err(bad_listing(
            prefix,
            format!("a listing of it has the key {key}"),
        ))
    }
}

fn bad_listing(prefix: &Path, detail: String) -> Error {
    let object = prefix.to_string();
    OriginError::bad_response(object, detail)
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
            let next = self.next_with_odd().await?;
            self.bucket
                .count_left_out(&self.omissions, &mut self.counted)?;
            match next {
                Some(meta) if is_odd(&meta.location) => {
                    note_odd(&self.omissions, &meta.location);
                    self.bucket
                        .count_left_out(&self.omissions, &mut self.counted)?;
                }
                next => return Ok(next),
            }
        }
    }

    async fn next_with_odd(&mut self) -> Result<Option<ObjectMeta>> {
        loop {
            let policy = self.bucket.engine.retry;
            let entries = match &mut self.entries {
                Some(entries) => entries,
                none => none.insert(self.bucket.list_after(
                    self.prefix.as_ref(),
                    self.after.as_ref(),
                    &self.omissions,
                    &mut self.sent_at,
                )),
            };
            let entry = tokio::time::timeout(policy.stall, entries.try_next()).await;
            let error = match entry.unwrap_or_else(|_| Err(stalled(policy))) {
                Ok(Some(meta)) if self.after.as_ref() == Some(&meta.location) => continue,
                Ok(Some(meta)) => {
                    self.check(&meta.location)?;
                    self.retries.progress();
                    let after = self.after.as_ref().map(key_of);
                    self.ordered &= after <= Some(key_of(&meta.location));
                    self.after = Some(meta.location.clone());
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
    /// Lists as [`object_store::ObjectStore::list`], or [`object_store::ObjectStore::list_with_offset`] if `after` is given. The entries left out so far are in the
    /// second value; all, once the stream has ended without an error.
    pub fn list_with_omissions(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
    ) -> (BoxStream<'static, Result<ObjectMeta>>, Omissions) {
        let omissions = Omissions::default();
        let listed = list(self.shared(), prefix, after, omissions.clone());
        (listed, omissions)
    }

    /// Counts and warns of an entry that a caller leaves out of a listing of the bucket.
    ///
    /// # Errors
    /// If the bucket's listings are to fail for it.
    pub fn leave_out(&self, name: &str, omission: Omission) -> Result<(), EngineError> {
        let omissions = Omissions::default();
        omissions.note(name, omission);
        self.shared().count_page_left_out(&omissions.left_out())
    }

    /// Whether objects with odd keys are read and deleted by the paths that [`Self::list_page`] has for them; see
    /// [`bywash_store::odd_keys`].
    #[must_use]
    pub fn reads_odd_keys(&self) -> bool {
        self.shared().origin.capabilities().reads_odd_keys
    }

    /// Returns at most `max` objects after `after` with keys that begin with `prefix`, in key order, and whether there
    /// are more. Sends one request, where [`object_store::ObjectStore::list`] continues to the end. Has odd keys, by the paths that
    /// [`bywash_store::odd_keys`] gives them. `after` is a key, or another text to begin at.
    ///
    /// # Errors
    /// Errors of a listing.
    pub async fn list_page(
        &self,
        prefix: &str,
        after: Option<&str>,
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
        bucket.count_page_left_out(&page.left_out)?;
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
        bucket.count_page_left_out(&level.left_out)?;
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
        omissions: &Omissions,
        sent_at: &mut Instant,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin_request(Capability::List);
        *sent_at = Instant::now();
        self.origin.list_noting(prefix, after, omissions)
    }
}
