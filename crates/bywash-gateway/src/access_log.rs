//! The access log: one line a request, written by a thread of its own.
//!
//! The thread of a request formats its line, appends it to a batch in memory and never waits for the disk. The log's
//! thread writes whole batches: it wakes for the first line, for a full batch, and when the delay ends. Lines that exceed
//! the queue or that the file rejects are dropped and counted.

mod line;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use bywash::traffic::Traffic;
use bywash::{Engine, EngineError, Reservation, Share};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

pub(crate) use line::{AccessRecord, ClientTexts, Peer};

use crate::limits::{
    MAX_LOG_BUFFER_BYTES, MAX_LOG_CLOSE, MAX_LOG_DELAY, MAX_LOGGED_TEXT_BYTES,
    MAX_QUEUED_RECORD_BYTES, MAX_RECORDS_MEMORY_DIVISOR,
};

/// Permissions of a new log: it names objects and keys.
const MODE: u32 = 0o600;

/// Destination of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Standard output.
    Stdout,
    /// A file, appended to; created readable to its owner only.
    File(PathBuf),
}

impl FromStr for AccessLogTarget {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "-" => Self::Stdout,
            path => Self::File(path.into()),
        })
    }
}

/// Format of the lines of an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessLogFormat {
    /// A JSON object.
    #[default]
    Json,
    /// The combined log format of Apache and NCSA.
    Combined,
}

impl FromStr for AccessLogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "combined" => Ok(Self::Combined),
            other => Err(format!("{other:?} is no format; write json or combined")),
        }
    }
}

/// The access log could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessLogError {
    /// The file could not be opened.
    #[error("access log: cannot write to {}: {source}; give another file", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The thread could not be started.
    #[error("access log: cannot start its thread: {0}")]
    Thread(io::Error),
    /// There is no memory for its queue.
    #[error("access log: no memory for its queue: {0}")]
    Memory(#[from] EngineError),
}

/// An access log. A cheap handle; clones share one log.
#[derive(Debug, Clone)]
pub struct AccessLog(Arc<LogShared>);

#[derive(Debug)]
struct LogShared {
    format: AccessLogFormat,
    queue: Mutex<LogQueue>,
    /// Signals the thread: the first line, a full batch, or a flag.
    work: Condvar,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    traffic: Arc<Traffic>,
    /// Memory of the queue.
    _charge: Reservation,
}

/// Formatted lines that wait to be written.
#[derive(Debug, Default)]
struct LogQueue {
    /// Full batches, oldest first, then the one being filled.
    batches: VecDeque<LogBatch>,
    /// Bytes of all batches, the ones being written included.
    bytes: usize,
    limit: usize,
    reopen: bool,
    closing: bool,
}

/// Lines written together.
#[derive(Debug, Default)]
struct LogBatch {
    text: Vec<u8>,
    lines: u64,
}

impl LogQueue {
    /// Adds a line, in a new batch if the last one is full. Returns false if there is no room.
    fn push(&mut self, line: &[u8]) -> bool {
        if self.closing {
            return false;
        }
        let fits = |batch: &LogBatch| batch.text.capacity() - batch.text.len() >= line.len();
        if !self.batches.back().is_some_and(fits) {
            let bytes = MAX_LOG_BUFFER_BYTES.min(self.limit).max(line.len());
            if self.bytes + bytes > self.limit {
                return false;
            }
            self.bytes += bytes;
            self.batches.push_back(LogBatch {
                text: Vec::with_capacity(bytes),
                lines: 0,
            });
        }
        if let Some(batch) = self.batches.back_mut() {
            batch.text.extend_from_slice(line);
            batch.lines += 1;
        }
        true
    }

    /// Whether a batch is full, so that another one was begun.
    fn has_full(&self) -> bool {
        self.batches.len() > 1
    }
}

std::thread_local! {
    /// The line that this thread formats.
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

impl AccessLog {
    /// Opens the log and starts its thread. The queue is charged to the engine, which counts dropped records.
    ///
    /// # Errors
    /// If the file cannot be opened, or the engine has no memory left.
    pub async fn open(
        target: AccessLogTarget,
        format: AccessLogFormat,
        engine: &Engine,
    ) -> Result<Self, AccessLogError> {
        let bytes = engine.budget().limit() / MAX_RECORDS_MEMORY_DIVISOR;
        let bytes = bytes.min(MAX_QUEUED_RECORD_BYTES);
        let charge = engine
            .reserve(Share::Download, bytes, "open", "access log")
            .await?;
        let output = LogOutput::open(&target)?;
        let (end, ended) = oneshot::channel();
        let queue = LogQueue {
            limit: usize::try_from(bytes).unwrap_or(usize::MAX),
            ..LogQueue::default()
        };
        let log = Self(Arc::new(LogShared {
            format,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            ended: Mutex::new(Some(ended)),
            traffic: Arc::clone(engine.traffic()),
            _charge: charge,
        }));
        let writer = LogWriter {
            log: log.clone(),
            target,
            output,
            failing: false,
        };
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                writer.run();
                // The caller of `close` may have stopped waiting.
                let _ = end.send(());
            })
            .map_err(AccessLogError::Thread)?;
        Ok(log)
    }

    /// Queues the line of a record. If the queue is full, drops and counts it. Never waits for the disk.
    pub(crate) fn record(&self, record: &AccessRecord<'_>) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            line::write(line, record, self.0.format);
            self.push(line.as_bytes());
            // Long texts of one client must not stay in every thread.
            line.shrink_to(MAX_LOGGED_TEXT_BYTES);
        });
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.0.queue.lock();
        let (idle, full) = (queue.batches.is_empty(), queue.has_full());
        if !queue.push(line) {
            drop(queue);
            return self.0.traffic.note_dropped_records(1);
        }
        // The thread wakes for the first line and for a full batch; between them it waits for the delay.
        let due = idle || (!full && queue.has_full());
        drop(queue);
        if due {
            self.0.work.notify_one();
        }
    }

    /// Reopens the file by its name, as after log rotation.
    pub fn reopen(&self) {
        self.0.queue.lock().reopen = true;
        self.0.work.notify_one();
    }

    /// Writes all queued records and ends the log; later records are dropped. Waits some seconds for a slow disk.
    /// Returns whether all were written.
    pub async fn close(&self) -> bool {
        self.0.queue.lock().closing = true;
        self.0.work.notify_one();
        let ended = self.0.ended.lock().take();
        match ended {
            None => true,
            Some(ended) => tokio::time::timeout(MAX_LOG_CLOSE, ended).await.is_ok(),
        }
    }
}

enum LogOutput {
    Stdout,
    File(File),
}

impl LogOutput {
    fn open(target: &AccessLogTarget) -> Result<Self, AccessLogError> {
        match target {
            AccessLogTarget::Stdout => Ok(Self::Stdout),
            AccessLogTarget::File(path) => match open_file(path) {
                Ok(file) => Ok(Self::File(file)),
                Err(source) => Err(AccessLogError::File {
                    path: path.clone(),
                    source,
                }),
            },
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Self::File(file) => file.write_all(bytes),
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // Opening a pipe without a reader for writing would block.
    let is_pipe = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    OpenOptions::new()
        .read(is_pipe)
        .append(true)
        .create(true)
        .mode(MODE)
        .open(path)
}

/// State of the writing thread.
struct LogWriter {
    log: AccessLog,
    target: AccessLogTarget,
    output: LogOutput,
    /// Whether the last write failed, possibly within a line.
    failing: bool,
}

impl LogWriter {
    fn run(mut self) {
        loop {
            let shared = Arc::clone(&self.log.0);
            let mut queue = shared.queue.lock();
            while queue.batches.is_empty() && !queue.reopen && !queue.closing {
                shared.work.wait(&mut queue);
            }
            // More lines may come within the delay.
            let deadline = Instant::now() + MAX_LOG_DELAY;
            while !queue.has_full() && !queue.reopen && !queue.closing {
                if shared.work.wait_until(&mut queue, deadline).timed_out() {
                    break;
                }
            }
            let batches = std::mem::take(&mut queue.batches);
            let reopen = std::mem::take(&mut queue.reopen);
            let closing = queue.closing;
            drop(queue);
            for batch in batches {
                let bytes = batch.text.capacity();
                self.write(batch);
                shared.queue.lock().bytes -= bytes;
            }
            if reopen {
                self.reopen();
            }
            if closing {
                return;
            }
        }
    }

    fn write(&mut self, mut batch: LogBatch) {
        if self.failing {
            // The last write may have ended within a line.
            batch.text.insert(0, b'\n');
        }
        match self.output.write(&batch.text) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.log.0.traffic.note_dropped_records(batch.lines);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "access log: lines are dropped and counted until it can be written again");
                }
            }
        }
    }

    fn reopen(&mut self) {
        match LogOutput::open(&self.target) {
            Ok(output) => {
                self.output = output;
                self.failing = false;
            }
            Err(error) => {
                tracing::warn!("{error}; further lines are written to the file that is open")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_holds_lines_up_to_its_limit() {
        let line = [b'x'; 1000];
        let mut queue = LogQueue {
            limit: 3 * MAX_LOG_BUFFER_BYTES - 1,
            ..LogQueue::default()
        };
        let mut lines = 0;
        while queue.push(&line) {
            lines += 1;
            assert!(queue.bytes <= queue.limit);
        }
        // Two batches, each with as many lines as fit.
        assert_eq!(lines, 2 * (MAX_LOG_BUFFER_BYTES / 1000));
        let held: u64 = queue.batches.iter().map(|batch| batch.lines).sum();
        assert_eq!(held, lines as u64);
        let mut small = LogQueue {
            limit: 500,
            ..LogQueue::default()
        };
        assert!(!small.push(&line) && small.push(&line[..500]) && !small.push(&line[..1]));
    }
}
