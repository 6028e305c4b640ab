//! Which version is current: known, or asked of the origin by one flight a path.

mod flights;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bywash_mem::{BlockPool, Claim, Frame, Share};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, Result};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ahead::Reader;
use super::hedge::hedged;
use super::ranged;
use super::shard::Shard;
use super::shared_error::retell;
use crate::bucket::Shared;
use crate::retry::{is_out_of_range, with_retries};
use crate::versions::{Asked, SharedFile, Version};
use flights::{Flight, Outcome};

pub(crate) use flights::{AbandonedMemory, Opens};

/// The version to read, and what asking for it brought, if it was asked for.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) version: Arc<Version>,
    pub(super) asked: Option<Arc<Opened>>,
}

impl Resolved {
    fn known(version: Arc<Version>) -> Self {
        Self {
            version,
            asked: None,
        }
    }

    /// The answer already begun, if nobody took it yet.
    pub(super) fn take_body(&self) -> Option<GetResult> {
        self.asked.as_ref()?.body.lock().take()
    }

    /// The hold on what was loaded ahead, if nobody took it yet.
    pub(super) fn take_ahead(&self) -> Option<Reader> {
        self.asked.as_ref()?.ahead.lock().take()
    }

    /// Whether asking began to load `block`. Whoever is given this answer waited for it, even if it is here by now.
    pub(super) fn loaded(&self, block: u32) -> bool {
        self.asked
            .as_ref()
            .is_some_and(|asked| asked.loading.contains(&block))
    }
}

/// What asking the origin brought.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) version: Arc<Version>,
    /// The body that came with an object that cannot be cached: for whoever takes it first.
    body: Mutex<Option<GetResult>>,
    /// Blocks that asking began to load.
    loading: Range<u32>,
    /// Holds those of them after the first, for the first reader that takes it.
    ahead: Mutex<Option<Reader>>,
    /// Keeps what the origin opened until its readers do.
    file: Arc<SharedFile>,
    /// Ends the load when the last reader that was given this answer left.
    _left_on_drop: Option<DropGuard>,
}

impl Opened {
    /// An answer that brought no data.
    fn known(version: Arc<Version>) -> Arc<Self> {
        Self::with_body(version, None)
    }

    fn with_body(version: Arc<Version>, body: Option<GetResult>) -> Arc<Self> {
        Arc::new(Self {
            file: version.file(),
            version,
            body: Mutex::new(body),
            loading: 0..0,
            ahead: Mutex::new(None),
            _left_on_drop: None,
        })
    }
}

/// The current version of `path`: from memory if it was confirmed lately, else from the origin.
///
/// A response is as old as its request. One to a request sent before `not_before` is not used, nor one to a request that was
/// older than the bucket's window when this read began.
///
/// If the read needs data that is not here, asking also begins to load it.
pub(super) async fn resolve(
    bucket: &Arc<Shared>,
    path: &Path,
    options: &GetOptions,
    not_before: Option<Instant>,
) -> Result<Resolved> {
    let began = Instant::now();
    let window = bucket.consistency.max_age();
    let known = bucket.versions.get(path, window);
    let known = match known {
        Some((version, true)) => return Ok(Resolved::known(version)),
        // Every read of it asks the origin anyway.
        Some((version, false)) if !version.cacheable() && !options.head => {
            return Ok(Resolved::known(version));
        }
        Some((version, false)) => Some(version),
        None if bucket.versions.is_absent(path) => {
            bucket.counters.absence();
            return Err(Error::NotFound {
                path: path.to_string(),
                source: "the origin said so within the window of the bucket's consistency".into(),
            });
        }
        None => None,
    };
    // `None` too if that is before the clock's beginning.
    let mut oldest = window.and_then(|window| began.checked_sub(window));
    oldest = oldest.max(not_before);
    loop {
        let ask = match known.clone() {
            _ if options.head => Ask::Head,
            // What is stale is mostly unchanged: if its data is here, a HEAD is all it takes.
            Some(version) if first_block_present(bucket, &version, options.range.as_ref()) => {
                Ask::Head
            }
            known => Ask::Data(options.range.clone(), known),
        };
        let joined = bucket.opens.join(path, oldest, || begin(bucket, path, ask));
        let opened = match joined.outcome().await {
            Outcome::Opened(opened) => opened,
            // It ended before this read joined it.
            Outcome::Abandoned => continue,
            // Objects of this bucket never change, but one that was absent may be there by now.
            Outcome::Failed(error)
                if window.is_none()
                    && matches!(*error, Error::NotFound { .. })
                    && joined.sent_before(began)
                    && oldest < Some(began) =>
            {
                oldest = Some(began);
                continue;
            }
            Outcome::Failed(error) => return Err(retell(&error)),
        };
        return Ok(Resolved {
            version: Arc::clone(&opened.version),
            asked: Some(opened),
        });
    }
}

enum Ask {
    Head,
    /// The range wanted, and the version last known.
    Data(Option<GetRange>, Option<Arc<Version>>),
}

/// An answer this short mostly comes with its headers: whoever asked is then told when it is stored, and wakes once.
const EARLY_BYTES: u64 = 64 << 10;

/// Sends the request in a task of its own: a reader that leaves must not take the response from those that wait with it. The
/// same task then stores the bytes that came with the response.
fn begin(bucket: &Arc<Shared>, path: &Path, ask: Ask) -> Flight {
    let (flight, mut landing) = Flight::new(bucket, path);
    tokio::spawn(async move {
        let (bucket, path) = (Arc::clone(landing.bucket()), landing.path().clone());
        let sent = landing.sent();
        let bytes = match ask {
            Ask::Head => 0,
            Ask::Data(..) => bucket.block_size,
        };
        let asking = async {
            match ask {
                Ask::Head => head_sent(&bucket, &path, || sent.asking(&bucket, &path))
                    .await
                    .map(Begun::told),
                Ask::Data(range, known) => {
                    let range = first_range(&bucket, range, known.as_deref());
                    open(&bucket, &path, range, || sent.asking(&bucket, &path)).await
                }
            }
        };
        let Some(answer) = landing.unless_abandoned(bytes, asking).await else {
            return;
        };
        let (outcome, storing) = match answer {
            Ok(Begun { opened, storing }) => (Outcome::Opened(opened), storing),
            Err(error) => (Outcome::Failed(Arc::new(error)), None),
        };
        let tell = landing.end();
        let Some(Storing {
            shard,
            first,
            short,
        }) = storing
        else {
            // No reader may be left.
            let _ = tell.send(outcome);
            return;
        };
        let mut storing = pin!(shard.run(Some(first)));
        let stored = short && futures::poll!(&mut storing).is_ready();
        let _ = tell.send(outcome);
        if !stored {
            // On this worker the reader would wait for the first pieces to be stored.
            tokio::task::yield_now().await;
            storing.await;
        }
    });
    flight
}

/// What a question began: the answer, and bytes of it to be stored.
struct Begun {
    opened: Arc<Opened>,
    storing: Option<Storing>,
}

impl Begun {
    fn told(opened: Arc<Opened>) -> Self {
        Self {
            opened,
            storing: None,
        }
    }
}

struct Storing {
    shard: Shard,
    first: GetResult,
    short: bool,
}

/// Whether the first block wanted is in memory, or on its way there.
fn first_block_present(bucket: &Shared, version: &Version, range: Option<&GetRange>) -> bool {
    let size = version.meta.size;
    let range = range.map_or(Some(0..size), |range| range.as_range(size).ok());
    match range {
        Some(range) if range.start < range.end => {
            let block = (range.start / bucket.block_size) as u32;
            is_present(&bucket.engine.pool, version, block)
        }
        // Nothing to read: metadata is all that is needed.
        _ => true,
    }
}

/// Whether a block is resident or being loaded. Does not count as a use.
pub(super) fn is_present(pool: &Arc<BlockPool>, version: &Version, block: u32) -> bool {
    let key = version.key(block);
    // A load that ends between the first two calls has published the block by the third.
    pool.contains(key) || pool.is_loading(key) || pool.contains(key)
}

/// Asks for the metadata only.
pub(super) async fn head(bucket: &Arc<Shared>, path: &Path) -> Result<Arc<Opened>> {
    head_sent(bucket, path, || bucket.versions.asking(path)).await
}

/// As [`head`]; `asking` is called when the request is sent.
async fn head_sent(
    bucket: &Arc<Shared>,
    path: &Path,
    asking: impl FnOnce() -> Asked,
) -> Result<Arc<Opened>> {
    let asked = asking();
    let result = with_retries(bucket.engine.retry, "head", path, || {
        bucket.counters.origin_request();
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        bucket.origin.get_opts(path, options)
    })
    .await;
    match result {
        Ok(result) => {
            let meta = at(path, result.meta.clone());
            let attributes = result.attributes.clone();
            let opened = Opened::known(bucket.versions.learn(asked, meta, attributes));
            opened.file.keep_from(&result);
            Ok(opened)
        }
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.gone(asked, path);
            }
            Err(error)
        }
    }
}

/// The origin's own idea of the path may differ in spelling (a prefix, an encoding); ours is the key.
pub(super) fn at(path: &Path, mut meta: ObjectMeta) -> ObjectMeta {
    meta.location = path.clone();
    meta
}

/// Learns the version by the first ranged GET, whose body a shard then stores.
/// `asking` is called when the request is sent.
async fn open(
    bucket: &Arc<Shared>,
    path: &Path,
    range: GetRange,
    asking: impl FnOnce() -> Asked,
) -> Result<Begun> {
    let engine = &bucket.engine;
    // The minimum, before anything is asked: one block. More is only tried for once the object's
    // length is known.
    let frame = engine
        .frame(bucket.block_size as usize, "read", path)
        .await?;
    let asked = asking();
    let options = GetOptions {
        range: Some(range),
        ..GetOptions::default()
    };
    let began = Instant::now();
    let result = with_retries(engine.retry, "read", path, || {
        hedged(bucket, || {
            bucket.counters.origin_data_request();
            bucket.origin.get_opts(path, options.clone())
        })
    })
    .await;
    match result {
        Ok(result) => {
            let named = ranged::encoding_of_range(&result);
            ranged::confirm_encoding(bucket, path, named).await?;
            let meta = at(path, result.meta.clone());
            let version = bucket
                .versions
                .learn(asked, meta, result.attributes.clone());
            version.cost.request();
            version.cost.time(began.elapsed());
            if !version.cacheable() {
                return Ok(Begun::told(Opened::with_body(version, Some(result))));
            }
            Ok(store(bucket, version, frame, result))
        }
        // An empty object, or a range beyond the end: only the length can tell.
        Err(error) if is_out_of_range(&error) => {
            drop(frame);
            head(bucket, path).await.map(Begun::told)
        }
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.gone(asked, path);
            }
            Err(error)
        }
    }
}

/// What the first GET asks for: whole blocks around what is wanted, at most one shard, and no
/// block that is here already if the object turns out to be unchanged.
fn first_range(bucket: &Shared, wanted: Option<GetRange>, known: Option<&Version>) -> GetRange {
    let block = bucket.block_size;
    let shard = bucket.shard_blocks();
    let shard = u64::from(bucket.engine.ahead.room(block, shard - 1).free + 1) * block;
    let from = |start: u64, end: u64| {
        let first = start / block;
        let last = end.div_ceil(block).min(first.saturating_add(shard / block));
        let present = |at: &u64| {
            known.is_some_and(|known| is_present(&bucket.engine.pool, known, *at as u32))
        };
        let last = (first.saturating_add(1)..last)
            .find(present)
            .unwrap_or(last);
        GetRange::Bounded(first.saturating_mul(block)..last.saturating_mul(block))
    };
    match wanted {
        None => from(0, shard),
        Some(GetRange::Bounded(range)) => {
            from(range.start, range.end.max(range.start.saturating_add(1)))
        }
        Some(GetRange::Offset(start)) => from(start, start.saturating_add(shard)),
        // So much more that each wanted block comes whole, wherever the end lies in its block.
        Some(GetRange::Suffix(length)) => {
            GetRange::Suffix(length.min(shard).saturating_add(block - 1))
        }
    }
}

/// Prepares to put the first answer's body into the blocks it covers whole, as far as there is room to read ahead.
fn store(bucket: &Arc<Shared>, version: Arc<Version>, frame: Frame, result: GetResult) -> Begun {
    let size = bucket.block_size;
    let range = result.range.clone();
    let first = range.start.div_ceil(size) as u32;
    // The object's end ends its last block, wherever that is.
    let end = if range.end >= version.meta.size {
        version.blocks(size)
    } else {
        (range.end / size) as u32
    };
    let ahead =
        (end > first.saturating_add(1)).then(|| bucket.engine.ahead.reader(bucket.block_size));
    let room = ahead
        .as_ref()
        .map_or(0, |reader| reader.room(bucket.shard_blocks()).free);
    let mut loads = Vec::new();
    let mut spare = Some(frame);
    for block in first..end.min(first.saturating_add(1).saturating_add(room)) {
        // Someone may be loading this version already: the run ends there.
        let Claim::Vacant(mut load) = bucket.engine.pool.claim(version.key(block)) else {
            break;
        };
        let length = version.block_len(block, size);
        let Some(frame) = fitting_frame(bucket, &mut spare, length) else {
            break;
        };
        load.attach(frame, length);
        if let Some(reader) = ahead.as_ref().filter(|_| block > first) {
            reader.hold(block, load.flight().join());
        }
        loads.push(load);
    }
    drop(spare);
    let left = CancellationToken::new();
    let file = version.file();
    file.keep_from(&result);
    let opened = Arc::new(Opened {
        file,
        version: Arc::clone(&version),
        body: Mutex::new(None),
        loading: first..first + loads.len() as u32,
        ahead: Mutex::new(ahead),
        _left_on_drop: Some(left.clone().drop_guard()),
    });
    let storing = (!loads.is_empty()).then(|| Storing {
        short: range.end - range.start <= EARLY_BYTES,
        first: result,
        shard: Shard::new(Arc::clone(bucket), version, loads, left),
    });
    Begun { opened, storing }
}

/// A frame for `length` bytes: the smallest class if there is memory, else the one in hand.
fn fitting_frame(bucket: &Shared, spare: &mut Option<Frame>, length: usize) -> Option<Frame> {
    let in_hand = spare.as_ref().map_or(0, Frame::capacity);
    if in_hand >= length && length > in_hand / 2 {
        return spare.take();
    }
    let small = bucket.engine.pool.try_frames(Share::Download, length, 1, 1);
    small
        .and_then(|mut frames| frames.pop())
        .or_else(|| spare.take())
}
