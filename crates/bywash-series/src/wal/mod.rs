//! The write-ahead log: files of frames in a folder of its own (`docs/formats.md`).
//!
//! A frame is put behind the others in memory, which takes a moment under a lock, and has its place from then on. Who needs it
//! written becomes the leader of all that wait: takes what is pending, writes it with one call, and syncs it if someone waits
//! for that. A file is whole on disk before the next one is begun.
//!
//! When a write or a sync fails, nobody knows what is on disk: that is final. All who waited get the error, and so does
//! everyone after them.

mod disk;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod read;
mod segment;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

#[cfg(test)]
pub(crate) use self::disk::LogFile;
pub(crate) use self::disk::{Disk, Files, Folder};
pub(crate) use self::frame::{Frame, Kind, LoggedTurn, Names, Turns, put_names, put_turn};
pub(crate) use self::read::read_segment;
use self::segment::{HEADER, Writer, header};
pub(crate) use self::segment::{list, path_of};
use crate::SeriesError;
use crate::limits::{MAX_FRAME_BYTES, MAX_PENDING_LOG_BYTES};

/// What may wait in memory to be written behind those who need not wait for it, in bytes.
const BEHIND: u64 = 256 << 10;

/// The log of an open database.
#[derive(Debug)]
pub(crate) struct Wal {
    folder: Arc<Folder>,
    segment_bytes: u64,
    state: Mutex<State>,
    /// Something was written, or the log failed.
    progress: Condvar,
}

/// Bytes of frames since the log was opened: the end of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

#[derive(Debug)]
struct State {
    /// Where the next frame goes; there is no file before the first.
    current: Segment,
    /// Ends before it, oldest first.
    ended: Vec<Segment>,
    /// Frames that no leader has taken yet.
    pending: Vec<Piece>,
    pending_bytes: u64,
    /// Of all files, pending ones included.
    bytes: u64,
    appended: Position,
    written: Position,
    synced: Position,
    /// Absent while a leader has it.
    writer: Option<Writer>,
    /// The first file that the leader writes to.
    writing: Option<u64>,
    /// Why the log takes no more.
    failed: Option<String>,
}

/// A file of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// Bytes up to the end of its last frame; 0: not begun.
    pub(crate) bytes: u64,
    /// The highest generation of its frames.
    pub(crate) newest: u64,
    /// Some of it could not be read, and it is kept.
    pub(crate) damaged: bool,
}

/// Bytes that belong together in one file.
#[derive(Debug)]
struct Piece {
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Wal {
    /// Goes on behind the files that were found.
    pub(crate) fn new(folder: Arc<Folder>, segment_bytes: u64, found: Vec<Segment>) -> Self {
        let number = found.last().map_or(1, |last| last.number + 1);
        Self {
            state: Mutex::new(State {
                current: Segment::new(number),
                bytes: found.iter().map(|segment| segment.bytes).sum(),
                ended: found,
                pending: Vec::new(),
                pending_bytes: 0,
                appended: Position(0),
                written: Position(0),
                synced: Position(0),
                writer: Some(Writer::new(Arc::clone(&folder), segment_bytes)),
                writing: None,
                failed: None,
            }),
            folder,
            segment_bytes,
            progress: Condvar::new(),
        }
    }

    /// Puts a frame behind the others, and answers where, and the bytes of all files then. Does no I/O: see [`Self::commit`].
    pub(crate) fn append(
        &self,
        kind: Kind,
        generation: u64,
        body: &[u8],
    ) -> Result<(Position, u64), SeriesError> {
        debug_assert!(body.len() <= MAX_FRAME_BYTES, "batches are cut before");
        // What does not need the place is done before there is one.
        let frame = Frame::new(kind, generation, body);
        let mut state = self.state.lock();
        state.check()?;
        state.put(&frame, self.segment_bytes);
        Ok((state.appended, state.bytes))
    }

    /// Returns when the log is written, or synced, up to this position; blocks the thread.
    pub(crate) fn commit(&self, position: Position, sync: bool) -> Result<(), SeriesError> {
        let mut state = self.state.lock();
        loop {
            let done = if sync { state.synced } else { state.written };
            if done >= position {
                return Ok(());
            }
            state.check()?;
            let Some(mut writer) = state.writer.take() else {
                self.progress.wait(&mut state);
                continue;
            };
            let pieces = std::mem::take(&mut state.pending);
            let until = state.appended;
            state.writing = pieces.first().map(|piece| piece.segment);
            state.pending_bytes = 0;
            drop(state);
            let outcome = writer.write(&pieces, sync);
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

    /// Writes what is pending if it has become much: for those who do not wait for the log.
    pub(crate) fn relieve(&self) -> Result<(), SeriesError> {
        // While a leader writes, a writer need not wait for it until much more is pending.
        self.write_pending(|busy| if busy { MAX_PENDING_LOG_BYTES } else { BEHIND })
    }

    /// Writes what is pending if it is as much as may be: for a batch, which waits for the log at its end.
    pub(crate) fn write_if_large(&self) -> Result<(), SeriesError> {
        self.write_pending(|_| MAX_PENDING_LOG_BYTES)
    }

    /// Writes what is pending from `limit` bytes on, which depends on whether a leader writes now.
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

    /// Writes, and syncs if asked, all there is.
    pub(crate) fn write_out(&self, sync: bool) -> Result<(), SeriesError> {
        let position = {
            let state = self.state.lock();
            state.check()?;
            state.appended
        };
        self.commit(position, sync)
    }

    /// Bytes of all files, pending ones included.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Removes the files whose frames are all of generations below this one, and which are not written to any more. Damaged
    /// ones get another name instead.
    pub(crate) fn drop_below(&self, generation: u64) -> Result<(), SeriesError> {
        let dropped: Vec<Segment> = {
            let mut state = self.state.lock();
            // From here on files are still to be written.
            let unwritten = state
                .writing
                .or(state.pending.first().map(|piece| piece.segment));
            let droppable = |segment: &mut Segment| {
                segment.newest < generation && unwritten.is_none_or(|from| segment.number < from)
            };
            let dropped: Vec<Segment> = state.ended.extract_if(.., droppable).collect();
            state.bytes -= dropped.iter().map(|segment| segment.bytes).sum::<u64>();
            dropped
        };
        self.folder.drop_segments(&dropped)
    }

    /// Whether it takes no more, and why.
    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }
}

impl State {
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
            self.pending.push(Piece {
                segment: current.number,
                offset: current.bytes,
                bytes: Vec::new(),
            });
        }
        let piece = self.pending.last_mut().expect("pushed if there was none");
        if current.bytes == 0 {
            piece.bytes.extend_from_slice(&header(current.number));
            current.bytes = HEADER as u64;
            self.bytes += HEADER as u64;
        }
        frame.put((current.number, current.bytes), &mut piece.bytes);
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

/// An error of the file system.
pub(crate) fn io_error(
    doing: &'static str,
    path: &Path,
) -> impl Fn(std::io::Error) -> SeriesError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| SeriesError::Log {
        doing,
        path: path.clone(),
        source,
    }
}
