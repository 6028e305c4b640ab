//! The write-ahead log: segments of frames in a folder of its own (`docs/formats.md`).
//!
//! An append queues a frame in memory under a short lock, which fixes its position. A thread that needs the log
//! written becomes the leader of a group commit. It takes all pending frames, writes them at once, and syncs if a
//! waiter requires that. A segment is complete on disk before the next one begins.
//!
//! After a failed write or sync the bytes on disk are unknown, so the failure is final: all waiters and all later
//! callers get the error.

mod disk;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod read;
mod segment;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use self::disk::LogFile;
pub(crate) use self::disk::{FileSystemStorage, LogFolder, LogStorage};
pub(crate) use self::frame::{
    Frame, Kind, LoggedRows, NamesDecoder, RowsDecoder, put_name_entry, put_rows,
};
pub(crate) use self::read::read_segment;
pub(crate) use self::segment::{SEGMENT_HEADER, list, path_of};
use self::segment::{SegmentWriter, header};
use crate::SeriesError;
use crate::limits::{MAX_FRAME_BYTES, MAX_PENDING_LOG_BYTES};

/// Rounds in which a writer watches for the end of another's write before it sleeps: some ten
/// microseconds, a few times the duration of a small write, and about the time to wake a thread.
const SPINS: u32 = 400;

/// Pending bytes from which a writer under `Ack::Memory` writes the log itself.
const WRITE_BEHIND_BYTES: u64 = 256 << 10;

/// The log of an open database.
#[derive(Debug)]
pub(crate) struct Wal {
    folder: Arc<LogFolder>,
    segment_bytes: u64,
    state: Mutex<LogState>,
    /// Bytes were written, or the log failed.
    progress: Condvar,
    /// Writes that ended. Written by leaders, watched by waiters before they sleep.
    ended_writes: AtomicU64,
}

/// Position in the log: bytes of frames since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

#[derive(Debug)]
struct LogState {
    /// Segment of the next frame; its file is created with the first frame.
    current: Segment,
    /// Completed segments, oldest first.
    ended: Vec<Segment>,
    /// Frames not taken by a leader yet.
    pending: Vec<PendingWrite>,
    pending_bytes: u64,
    /// Bytes of all segments, including pending ones.
    bytes: u64,
    appended: Position,
    written: Position,
    synced: Position,
    /// `None` while a leader uses it.
    writer: Option<SegmentWriter>,
    /// First segment that the leader writes to.
    writing: Option<u64>,
    /// Error that ended the log.
    failed: Option<String>,
}

/// A segment of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// Bytes up to the end of its last frame; 0 before it is begun.
    pub(crate) bytes: u64,
    /// Newest generation of its frames.
    pub(crate) newest: u64,
    /// Whether parts are unreadable. Such a segment is renamed, not deleted.
    pub(crate) damaged: bool,
}

/// Contiguous bytes to write to one segment.
#[derive(Debug)]
struct PendingWrite {
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Wal {
    /// Continues after the segments found at open.
    pub(crate) fn new(folder: Arc<LogFolder>, segment_bytes: u64, found: Vec<Segment>) -> Self {
        let number = found.last().map_or(1, |last| last.number + 1);
        Self {
            state: Mutex::new(LogState {
                current: Segment::new(number),
                bytes: found.iter().map(|segment| segment.bytes).sum(),
                ended: found,
                pending: Vec::new(),
                pending_bytes: 0,
                appended: Position(0),
                written: Position(0),
                synced: Position(0),
                writer: Some(SegmentWriter::new(Arc::clone(&folder), segment_bytes)),
                writing: None,
                failed: None,
            }),
            folder,
            segment_bytes,
            progress: Condvar::new(),
            ended_writes: AtomicU64::new(0),
        }
    }

    /// Queues a frame. Returns its end position and the bytes of all segments. Does no I/O: see [`Self::commit`].
    pub(crate) fn append(
        &self,
        kind: Kind,
        generation: u64,
        body: &[u8],
    ) -> Result<(Position, u64), SeriesError> {
        debug_assert!(body.len() <= MAX_FRAME_BYTES, "batches are cut before");
        // Compute checksums before taking the lock.
        let frame = Frame::new(kind, generation, body);
        let mut state = self.state.lock();
        state.check()?;
        state.put(&frame, self.segment_bytes);
        Ok((state.appended, state.bytes))
    }

    /// Blocks until the log is written, or synced, up to this position.
    pub(crate) fn commit(&self, position: Position, sync: bool) -> Result<(), SeriesError> {
        let mut state = self.state.lock();
        let mut has_spun = sync;
        loop {
            let done = if sync { state.synced } else { state.written };
            if done >= position {
                return Ok(());
            }
            state.check()?;
            let Some(mut writer) = state.writer.take() else {
                if std::mem::replace(&mut has_spun, true) {
                    self.progress.wait(&mut state);
                } else {
                    self.spin_until_write_ends(&mut state);
                }
                continue;
            };
            let writes = std::mem::take(&mut state.pending);
            let until = state.appended;
            state.writing = writes.first().map(|write| write.segment);
            state.pending_bytes = 0;
            drop(state);
            let outcome = writer.write(&writes, sync);
            // Relaxed: a hint; waiters read the state under the lock.
            self.ended_writes.fetch_add(1, Ordering::Relaxed);
            state = self.state.lock();
            state.writer = Some(writer);
            state.writing = None;
            match outcome {
                Ok(()) => {
                    state.written = until;
                    if sync {
                        state.synced = until;
                    }
                }
                Err(failure) => state.failed = Some(failure.to_string()),
            }
            self.progress.notify_all();
        }
    }

    /// Releases the lock for a moment, at most until the write in progress ends.
    fn spin_until_write_ends(&self, state: &mut MutexGuard<'_, LogState>) {
        // Relaxed: a hint. A missed end costs the rest of the rounds.
        let ended = || self.ended_writes.load(Ordering::Relaxed);
        let before = ended();
        MutexGuard::unlocked(state, || {
            for _ in 0..SPINS {
                if ended() != before {
                    return;
                }
                std::hint::spin_loop();
            }
        });
    }

    /// Writes pending frames if there are many: for writers that do not wait for the log.
    pub(crate) fn flush_if_large(&self) -> Result<(), SeriesError> {
        // While a leader writes, a writer waits for it only once far more is pending.
        self.write_pending(|busy| {
            if busy {
                MAX_PENDING_LOG_BYTES
            } else {
                WRITE_BEHIND_BYTES
            }
        })
    }

    /// Writes pending frames at the limit: for a batch, which waits for the log at its end.
    pub(crate) fn write_if_at_limit(&self) -> Result<(), SeriesError> {
        self.write_pending(|_| MAX_PENDING_LOG_BYTES)
    }

    /// Writes pending frames from `limit` bytes on. Its argument is whether a leader is writing.
    fn write_pending(&self, limit: impl FnOnce(bool) -> u64) -> Result<(), SeriesError> {
        let position = {
            let state = self.state.lock();
            state.check()?;
            if state.pending_bytes < limit(state.writer.is_none()) {
                return Ok(());
            }
            state.appended
        };
        self.commit(position, false)
    }

    /// Writes, and syncs if `sync`, all pending frames.
    pub(crate) fn write_all(&self, sync: bool) -> Result<(), SeriesError> {
        let position = {
            let state = self.state.lock();
            state.check()?;
            state.appended
        };
        self.commit(position, sync)
    }

    /// Bytes of all segments, including pending ones.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Deletes completed segments that have only generations below this one. Damaged ones are renamed instead.
    pub(crate) fn delete_below(&self, generation: u64) -> Result<(), SeriesError> {
        let dropped: Vec<Segment> = {
            let mut state = self.state.lock();
            // First segment that is still to be written.
            let unwritten = state
                .writing
                .or(state.pending.first().map(|write| write.segment));
            let droppable = |segment: &mut Segment| {
                (segment.newest < generation || planted!("series-log-deleted-too-early"))
                    && unwritten.is_none_or(|from| segment.number < from)
            };
            let dropped: Vec<Segment> = state.ended.extract_if(.., droppable).collect();
            state.bytes -= dropped.iter().map(|segment| segment.bytes).sum::<u64>();
            dropped
        };
        self.folder.delete_segments(&dropped)
    }

    /// Error that ended the log.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }
}

impl LogState {
    fn check(&self) -> Result<(), SeriesError> {
        match &self.failed {
            None => Ok(()),
            Some(cause) => Err(SeriesError::LogFailed {
                cause: cause.clone(),
            }),
        }
    }

    fn put(&mut self, frame: &Frame<'_>, segment_bytes: u64) {
        if self.current.bytes + frame.bytes() > segment_bytes {
            let next = Segment::new(self.current.number + 1);
            self.ended.push(std::mem::replace(&mut self.current, next));
        }
        let current = &mut self.current;
        if current.bytes == 0
            || self
                .pending
                .last()
                .is_none_or(|last| last.segment != current.number)
        {
            self.pending.push(PendingWrite {
                segment: current.number,
                offset: current.bytes,
                bytes: Vec::new(),
            });
        }
        let write = self.pending.last_mut().expect("pushed if there was none");
        if current.bytes == 0 {
            write.bytes.extend_from_slice(&header(current.number));
            current.bytes = SEGMENT_HEADER as u64;
            self.bytes += SEGMENT_HEADER as u64;
        }
        frame.put((current.number, current.bytes), &mut write.bytes);
        current.bytes += frame.bytes();
        current.newest = current.newest.max(frame.generation);
        self.bytes += frame.bytes();
        self.pending_bytes += frame.bytes();
        self.appended.0 += frame.bytes();
    }
}

impl Segment {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            bytes: 0,
            newest: 0,
            damaged: false,
        }
    }
}

/// Converts an error of the file system.
pub(crate) fn log_error(
    operation: &'static str,
    path: &Path,
) -> impl Fn(std::io::Error) -> SeriesError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| SeriesError::Log {
        operation,
        path: path.clone(),
        source,
    }
}
