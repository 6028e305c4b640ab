//! Range fetch: a fetch that fills neighbouring blocks.
//!
//! Each block is published when its last byte has arrived. A failure fails the missing blocks for their current
//! waiters only; later readers load them again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockOptions, Incomplete, Keep, Load};
use futures::future::join_all;
use object_store::{GetResult, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fetch::{End, Sink, fetch};
use super::ownership::is_foreign;
use super::peer_fetch::{NotedRate, Places};
use super::ranged;
use super::shared_error::load_error;
use crate::disk::DiskVersion;
use crate::shared::BucketShared;
use crate::versions::Version;

/// One fetch: blocks to fill, in order, each with its frame attached.
pub(super) struct RangeFetch {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    loads: VecDeque<Load>,
    /// A response that has begun and carries the blocks' bytes.
    first: Option<GetResult>,
    /// The version on the disk tier, which keeps the blocks.
    stored: Option<Arc<DiskVersion>>,
    /// Cancelled when the reader that needs these blocks is dropped.
    cancel: CancellationToken,
    unawaited: Option<Unawaited>,
    /// Where absent bytes may come from.
    places: Places,
}

/// State of a fetch without any waiter or follower, as far as was observed.
struct Unawaited {
    since: Instant,
    /// The block that was arriving when the first observation was made.
    block: u32,
    /// Number of such observations in a row.
    observations: u32,
}

/// Observations without a waiter, one after each piece, before a fetch is cancelled. A reader that moves from one
/// block to the next waits for neither for a moment.
const UNAWAITED_OBSERVATIONS: u32 = 5;
/// Time without a waiter after which a fetch is cancelled if no byte of its current block has arrived.
const UNAWAITED_PAUSE: Duration = Duration::from_millis(50);
/// Maximum time that the load of a partly received block continues without a waiter. Cancelling it at once would
/// waste bytes that a reader may already have taken; continuing it occupies a frame and a request permit.
const UNAWAITED_BLOCK: Duration = Duration::from_secs(1);

impl RangeFetch {
    pub(super) fn new(
        bucket: Arc<BucketShared>,
        version: Arc<Version>,
        loads: Vec<Load>,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            places: Places::All(NotedRate::of_fetch(&bucket)),
            bucket,
            version,
            loads: loads.into(),
            first: None,
            stored: None,
            cancel,
            unawaited: None,
        }
    }

    /// Asks no other node of the cluster.
    pub(super) fn only_from_origin(self) -> Self {
        let places = Places::Origin;
        Self { places, ..self }
    }

    /// Begins with a response that carries the blocks' bytes.
    pub(super) fn with_response(self, first: GetResult) -> Self {
        let first = Some(first);
        Self { first, ..self }
    }

    /// Fills the blocks in a task of its own.
    pub(super) fn spawn(self) {
        tokio::spawn(self.run());
    }

    /// Fills the blocks: from the disk tier if it has them, else from the origin.
    pub(super) async fn run(self) {
        let stored = self.bucket.disk_version(&self.version);
        let Some((_, stored)) = stored.filter(|_| self.first.is_none()) else {
            return self.fetch_absent().await;
        };
        let Self {
            bucket,
            version,
            loads,
            cancel,
            places,
            ..
        } = self;
        let Some(disk) = &bucket.engine.disk else {
            return;
        };
        let fetch = |loads| {
            let (bucket, version) = (Arc::clone(&bucket), Arc::clone(&version));
            let fetch = Self::new(bucket, version, loads, cancel.clone());
            let fetch = match places {
                Places::All(_) => fetch,
                Places::Origin => fetch.only_from_origin(),
            };
            fetch.fetch_absent()
        };
        let (on_disk, absent): (Vec<_>, Vec<_>) = loads
            .into_iter()
            .partition(|load| disk.offers(&stored, load.key()));
        let absent = join_all(runs(absent).into_iter().map(fetch));
        let read = async {
            let read = on_disk.into_iter().map(async |load| {
                let load = disk.read(&stored, load).await;
                if load.remaining() > 0 {
                    return Some(load);
                }
                // Complete, so it cannot fail. The waiters have their own pins.
                drop(load.publish());
                None
            });
            let missed = join_all(read).await.into_iter().flatten().collect();
            join_all(runs(missed).into_iter().map(fetch)).await;
        };
        tokio::join!(absent, read);
    }

    /// Fills the blocks by requests: in a cluster one for each stripe, at once. So a stripe that this node owns, for which other
    /// nodes may wait, does not wait behind one of theirs.
    async fn fetch_absent(mut self) {
        let cluster = self.bucket.cluster.as_ref();
        let is_shared = matches!(self.places, Places::All(_)) && self.first.is_none();
        let Some(cluster) = cluster.filter(|_| is_shared) else {
            return self.fetch_from_origin().await;
        };
        let block_size = self.bucket.block_size;
        let stripe = |load: &Load| {
            let at = u64::from(load.key().block) * block_size;
            cluster.peers.stripe_end(at)
        };
        let mut stripes: Vec<(u64, Vec<Load>)> = Vec::new();
        for load in self.loads.drain(..) {
            let end = stripe(&load);
            match stripes.last_mut() {
                Some((last, loads)) if *last == end => loads.push(load),
                _ => stripes.push((end, vec![load])),
            }
        }
        let fetches = stripes.into_iter().map(|(_, loads)| {
            let (bucket, version) = (Arc::clone(&self.bucket), Arc::clone(&self.version));
            Self::new(bucket, version, loads, self.cancel.clone()).fetch_from_origin()
        });
        join_all(fetches).await;
    }

    /// Fills the blocks by one request. Each is queued for the disk tier.
    async fn fetch_from_origin(mut self) {
        let stored = self.bucket.disk_version(&self.version);
        self.stored = stored.map(|(_, stored)| stored);
        let first = self.first.take();
        let (bucket, version) = (Arc::clone(&self.bucket), Arc::clone(&self.version));
        let object = &version.meta.location;
        match fetch(&bucket, &version, "read", &mut self, first).await {
            Ok(End::Complete) => {}
            // Dropped loads count as abandoned: a waiter claims the block again.
            Ok(End::Unwanted) => {
                tracing::debug!(%object, "load dropped: no reader waits for it")
            }
            Err(error) => {
                tracing::debug!(%object, %error, "load failed");
                let error = load_error(Arc::new(error));
                for load in self.loads.drain(..) {
                    load.fail(Arc::clone(&error));
                }
            }
        }
    }

    /// Returns whether the reader is gone, no waiter has been seen for a while, and the block then arriving is
    /// complete or takes too long.
    fn unwanted(&mut self) -> bool {
        let Some(load) = self.loads.front() else {
            return false;
        };
        if !self.cancel.is_cancelled() || self.loads.iter().any(Load::has_listeners) {
            self.unawaited = None;
            return false;
        }
        let block = load.key().block;
        let begun = load.remaining() < self.version.block_len(block, self.bucket.block_size);
        let limit = if begun {
            UNAWAITED_BLOCK
        } else {
            UNAWAITED_PAUSE
        };
        let unawaited = self.unawaited.get_or_insert_with(|| Unawaited {
            since: Instant::now(),
            block,
            observations: 0,
        });
        unawaited.observations += 1;
        let ended = unawaited.block < block && unawaited.observations >= UNAWAITED_OBSERVATIONS;
        ended || unawaited.since.elapsed() >= limit
    }
}

/// Makes a filled block resident and queues it for the disk tier. `stored`: the name of its version there, if the tier
/// keeps it. `rate`: requests a second for it at the node that owns it.
pub(super) fn publish(
    bucket: &BucketShared,
    version: &Version,
    mut load: Load,
    stored: Option<&Arc<DiskVersion>>,
    rate: u32,
) -> Result<(), Incomplete> {
    let (engine, key) = (&bucket.engine, load.key());
    let is_foreign = is_foreign(bucket, version, key.block);
    let stored = stored.filter(|_| !is_foreign);
    if is_foreign {
        load.set_options(engine.foreign.options(rate));
    }
    if stored.is_some() {
        load.set_options(BlockOptions {
            keep: Keep::Spill,
            ..load.options()
        });
    }
    // The waiters have their own pins.
    drop(load.publish()?);
    if is_foreign {
        engine.foreign.add(&engine.pool, key);
    }
    if let (Some(stored), Some(disk)) = (stored, &engine.disk) {
        disk.keep(stored, key, version.block_len(key.block, bucket.block_size));
    }
    Ok(())
}

/// Splits loads, in order, into runs of neighbouring blocks.
fn runs(loads: Vec<Load>) -> Vec<Vec<Load>> {
    let mut runs: Vec<Vec<Load>> = Vec::new();
    for load in loads {
        let block = load.key().block;
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.key().block + 1 == block) => {
                run.push(load);
            }
            _ => runs.push(vec![load]),
        }
    }
    runs
}

impl Sink for RangeFetch {
    fn places(&self) -> Places {
        self.places.clone()
    }

    fn missing(&self) -> Range<u64> {
        let size = self.bucket.block_size;
        let block = |load: &Load| load.key().block;
        let start = self.loads.front().map_or(0, |load| {
            let length = self.version.block_len(block(load), size);
            u64::from(block(load)) * size + (length - load.remaining()) as u64
        });
        let end = self.loads.back().map_or(0, |load| {
            u64::from(block(load)) * size + self.version.block_len(block(load), size) as u64
        });
        start..end
    }

    /// Publishes each block when it is complete.
    fn write(&mut self, mut bytes: &[u8]) -> Result<bool> {
        while let Some(load) = self.loads.front_mut() {
            if !bytes.is_empty() {
                let written = load.write(bytes);
                bytes = &bytes[written..];
            }
            if load.remaining() > 0 {
                return Ok(false);
            }
            if let Some(load) = self.loads.pop_front() {
                self.version.cost.block();
                let rate = match &self.places {
                    Places::All(rate) => rate.get(),
                    Places::Origin => 0,
                };
                publish(
                    &self.bucket,
                    &self.version,
                    load,
                    self.stored.as_ref(),
                    rate,
                )
                .map_err(|error| ranged::bad_response(&self.version, error.to_string()))?;
            }
        }
        Ok(true)
    }

    async fn until_unwanted(&mut self) {
        self.cancel.clone().cancelled_owned().await;
        while !self.unwanted() {
            tokio::time::sleep(UNAWAITED_PAUSE).await;
        }
    }
}
