//! The access log: one line a request, written by a thread of its own.
//!
//! Requests queue records and never wait. The thread formats and writes them. Records that exceed the queue or that
//! the file rejects are dropped and counted.

mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use bywash::traffic::Traffic;
use bywash::{Engine, EngineError, Reservation, Share};
use parking_lot::Mutex;
use tokio::sync::oneshot;

pub(crate) use line::{AccessRecord, ClientTexts, Peer};

use crate::limits::{
    MAX_LOG_BUFFER_BYTES, MAX_LOG_CLOSE, MAX_LOG_DELAY, MAX_QUEUED_RECORD_BYTES,
    MAX_QUEUED_RECORDS, MAX_RECORDS_MEMORY_DIVISOR,
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
    records: SyncSender<LogMessage>,
    /// Bytes of queued records. Relaxed: only a count, like the flags below.
    queued: AtomicUsize,
    limit: usize,
    reopen: AtomicBool,
    closing: AtomicBool,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    traffic: Arc<Traffic>,
    /// Memory of the queue.
    _charge: Reservation,
}

#[derive(Debug)]
enum LogMessage {
    Record(Box<AccessRecord>),
    /// A flag changed.
    Wake,
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
        let (records, received) = sync_channel(MAX_QUEUED_RECORDS);
        let (end, ended) = oneshot::channel();
        let log = Self(Arc::new(LogShared {
            records,
            queued: AtomicUsize::new(0),
            limit: usize::try_from(bytes).unwrap_or(usize::MAX),
            reopen: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: Mutex::new(Some(ended)),
            traffic: Arc::clone(engine.traffic()),
            _charge: charge,
        }));
        let writer = LogWriter {
            log: log.clone(),
            target,
            format,
            output,
            buffer: Vec::with_capacity(MAX_LOG_BUFFER_BYTES),
            lines: 0,
            oldest: None,
            failing: false,
        };
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                writer.run(&received);
                // The caller of `close` may have stopped waiting.
                let _ = end.send(());
            })
            .map_err(AccessLogError::Thread)?;
        Ok(log)
    }

    /// Queues a record. If the queue is full, drops and counts it. Never waits.
    pub(crate) fn record(&self, record: AccessRecord) {
        let bytes = record.bytes();
        let before = self.0.queued.fetch_add(bytes, Relaxed);
        let full = before + bytes > self.0.limit || self.0.closing.load(Relaxed);
        let queue = || {
            self.0
                .records
                .try_send(LogMessage::Record(Box::new(record)))
        };
        if full || queue().is_err() {
            self.0.queued.fetch_sub(bytes, Relaxed);
            self.0.traffic.note_dropped_records(1);
        }
    }

    /// Reopens the file by its name, as after log rotation.
    pub fn reopen(&self) {
        self.0.reopen.store(true, Relaxed);
        self.wake();
    }

    /// Writes all queued records and ends the log; later records are dropped. Waits some seconds for a slow disk.
    /// Returns whether all were written.
    pub async fn close(&self) -> bool {
        self.0.closing.store(true, Relaxed);
        self.wake();
        let ended = self.0.ended.lock().take();
        match ended {
            None => true,
            Some(ended) => tokio::time::timeout(MAX_LOG_CLOSE, ended).await.is_ok(),
        }
    }

    fn wake(&self) {
        // If the queue is full, the thread is awake.
        let _ = self.0.records.try_send(LogMessage::Wake);
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
    format: AccessLogFormat,
    output: LogOutput,
    /// Lines not written yet, and their number.
    buffer: Vec<u8>,
    lines: u64,
    /// When the first of them was queued.
    oldest: Option<Instant>,
    /// Whether the last write failed, possibly within a line.
    failing: bool,
}

impl LogWriter {
    fn run(mut self, received: &Receiver<LogMessage>) {
        loop {
            let waited = self.oldest.map_or(MAX_LOG_DELAY, |oldest| {
                MAX_LOG_DELAY.saturating_sub(oldest.elapsed())
            });
            match received.recv_timeout(waited) {
                Ok(LogMessage::Record(record)) => self.take(&record),
                Ok(LogMessage::Wake) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.flush(),
            }
            let due = self
                .oldest
                .is_some_and(|oldest| oldest.elapsed() >= MAX_LOG_DELAY);
            if due || self.buffer.len() >= MAX_LOG_BUFFER_BYTES {
                self.flush();
            }
            if self.log.0.reopen.swap(false, Relaxed) {
                self.reopen();
            }
            if self.log.0.closing.load(Relaxed) {
                while let Ok(message) = received.try_recv() {
                    if let LogMessage::Record(record) = message {
                        self.take(&record);
                    }
                }
                return self.flush();
            }
        }
    }

    fn take(&mut self, record: &AccessRecord) {
        self.log.0.queued.fetch_sub(record.bytes(), Relaxed);
        self.oldest.get_or_insert_with(Instant::now);
        line::write(&mut self.buffer, record, self.format);
        self.lines += 1;
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.failing {
            // The last write may have ended within a line.
            self.buffer.insert(0, b'\n');
        }
        match self.output.write(&self.buffer) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.log.0.traffic.note_dropped_records(self.lines);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "access log: lines are dropped and counted until it can be written again");
                }
            }
        }
        self.buffer.clear();
        self.lines = 0;
        self.oldest = None;
    }

    fn reopen(&mut self) {
        self.flush();
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
