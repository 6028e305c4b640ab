//! Sequential detector: read-ahead across the ranged GETs of one client.
//!
//! S3 clients fetch a large object in ranges of 5 to 16 MiB, one by one or several at once. A read that begins at the
//! byte where another ended continues its *stream*. From the third read on, as many bytes as the stream has read so
//! far are loaded beyond its end, so the amount doubles while the client keeps up. This read-ahead is bounded like
//! read-ahead of bodies ([`super::readahead`]): it uses only memory that no request waits for, and is released when one
//! does. Random reads form no streams.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::readahead::ReadaheadWindow;
use crate::limits::MAX_STREAMS;
use crate::versions::Version;

/// Reads in a row before read-ahead begins. Two are often chance: neighbouring columns of a table, a footer and its
/// length.
const MIN_SEQUENTIAL_READS: u32 = 3;
/// Time after which a stream without a new read is dropped. A client this slow gains nothing from read-ahead.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// The sequential streams of one bucket.
#[derive(Debug, Default)]
pub(crate) struct SequentialDetector {
    streams: Mutex<Vec<StreamState>>,
    /// Number of streams, so that reads can avoid the lock. A hint, hence relaxed.
    count: AtomicUsize,
}

/// Reads that each began where the previous one ended.
#[derive(Debug)]
struct StreamState {
    version: u64,
    /// End of its last read, where the next one is expected to begin.
    end: u64,
    reads: u32,
    bytes: u64,
    last: Instant,
    readahead: Option<Arc<StreamReadahead>>,
}

/// The stream that a read continues.
pub(super) struct Stream {
    /// Bytes to load beyond the end of the read.
    pub(super) lookahead_bytes: u64,
    pub(super) readahead: Arc<StreamReadahead>,
}

/// Read-ahead beyond the end of a stream; shared by the stream and its reads in progress.
#[derive(Debug)]
pub(super) struct StreamReadahead {
    /// Holds the blocks until a read needs them. Declared before the guard, so that the loads have no waiter when it
    /// cancels them.
    pub(super) window: ReadaheadWindow,
    /// The first block not considered yet.
    pub(super) next: Mutex<u32>,
    pub(super) cancel: CancellationToken,
    _cancel_on_drop: DropGuard,
}

impl SequentialDetector {
    /// Returns whether a read from `start` may continue a stream. False while another read has the lock: warm reads do
    /// not wait for it.
    pub(super) fn continues(&self, version: &Version, start: u64) -> bool {
        let follows = |stream: &StreamState| stream.version == version.id() && stream.end == start;
        self.count.load(Relaxed) > 0
            && self
                .streams
                .try_lock()
                .is_some_and(|streams| streams.iter().any(follows))
    }

    /// Records a read of `range`, and returns the stream it continues, if it is long enough for read-ahead. `warm`:
    /// all of the range is in memory, so the read begins no stream. `window` is called when read-ahead begins.
    pub(super) fn record(
        &self,
        version: &Version,
        range: &Range<u64>,
        warm: bool,
        window: impl FnOnce() -> ReadaheadWindow,
    ) -> Option<Stream> {
        if warm && self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut streams = if warm {
            // Warm reads are frequent and do not wait for the lock.
            self.streams.try_lock()?
        } else {
            self.streams.lock()
        };
        let found = streams
            .iter()
            .position(|stream| stream.version == version.id() && stream.end == range.start);
        if warm && found.is_none() {
            return None;
        }
        let now = Instant::now();
        let before = found.map(|at| streams.remove(at));
        let mut dropped: Vec<_> = streams
            .extract_if(.., |stream| now - stream.last > STREAM_TIMEOUT)
            .collect();
        let mut stream = before.unwrap_or(StreamState {
            version: version.id(),
            end: 0,
            reads: 0,
            bytes: 0,
            last: now,
            readahead: None,
        });
        stream.end = range.end;
        stream.reads += 1;
        stream.bytes += range.end - range.start;
        stream.last = now;
        if stream.reads >= MIN_SEQUENTIAL_READS && stream.readahead.is_none() {
            stream.readahead = Some(StreamReadahead::new(window()));
        }
        let continued = stream.readahead.clone().map(|readahead| Stream {
            lookahead_bytes: stream.bytes,
            readahead,
        });
        if range.end < version.meta.size {
            if streams.len() >= MAX_STREAMS {
                dropped.push(streams.remove(0));
            }
            streams.push(stream);
        }
        self.count.store(streams.len(), Relaxed);
        drop(streams);
        // After the lock: dropping a stream takes locks of its own.
        drop(dropped);
        continued
    }
}

impl StreamReadahead {
    fn new(window: ReadaheadWindow) -> Arc<Self> {
        let cancel = CancellationToken::new();
        Arc::new(Self {
            window,
            next: Mutex::new(0),
            _cancel_on_drop: cancel.clone().drop_guard(),
            cancel,
        })
    }
}
