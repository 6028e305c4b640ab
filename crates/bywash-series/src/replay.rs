//! Replay of the log into memory.
//!
//! One thread reads the segments and decodes frames. ReplayWriter threads, each with its own series, write the rows. Queues
//! between them are bounded. Rows of a series are written in the order of their sequence numbers: where the log has
//! two frames in another order, the later rows are deferred.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::catalog::{Catalog, LOOKUP_BATCH, SeriesHandle};
use crate::limits::MAX_REPLAY_WRITERS;
use crate::manifest::Version;
use crate::memtable::{Memtable, SeriesGuard};
use crate::wal::{
    Frame, Kind, LogFolder, LoggedRows, NamesDecoder, RowsDecoder, SEGMENT_HEADER, Segment, list,
    path_of, read_segment,
};
use crate::{Point, SeriesError};

/// Rows sent to a writer at a time.
const ROWS_PER_BATCH: usize = 4096;
/// Batches queued for one writer: 64 KiB of points each.
const QUEUED_BATCHES: usize = 8;

/// Result of a replay.
#[derive(Debug, Default)]
pub(crate) struct ReplayResult {
    pub(crate) segments: Vec<Segment>,
    /// Newest generation found; 0 if none.
    pub(crate) newest: u64,
    /// Rows written to memory.
    pub(crate) rows: u64,
    /// Bytes cut off as torn by a crash.
    pub(crate) torn: u64,
    /// Bytes of damage skipped.
    pub(crate) damaged: u64,
    /// Segments that end in damage or lost all of their frames.
    pub(crate) damaged_segments: u64,
    /// Rows skipped because the names of their series are in the damage.
    pub(crate) unnamed_rows: u64,
    /// Whether there is a log that does not end with a close of the database.
    pub(crate) unclean: bool,
}

/// Rows of some series, in log order.
#[derive(Debug)]
struct Batch {
    entries: Vec<(SeriesHandle, u64, u32, usize)>,
    points: Vec<Point>,
}

impl Batch {
    fn new() -> Self {
        Self {
            entries: Vec::with_capacity(ROWS_PER_BATCH),
            points: Vec::with_capacity(ROWS_PER_BATCH),
        }
    }
}

/// Reads the log and writes its rows to memory, except for flushed ones. Blocks the thread.
pub(crate) fn replay(
    folder: &LogFolder,
    memtable: &Memtable,
    version: &Version,
    salvage: bool,
) -> Result<ReplayResult, SeriesError> {
    let writers =
        thread::available_parallelism().map_or(1, |cores| cores.get().clamp(1, MAX_REPLAY_WRITERS));
    let catalog = &*memtable.directory.current();
    thread::scope(|threads| {
        let mut senders = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..writers {
            let (sender, receiver) = sync_channel(QUEUED_BATCHES);
            senders.push(sender);
            handles.push(
                threads.spawn(move || ReplayWriter::new(memtable, catalog, version).run(&receiver)),
            );
        }
        let mut reader = LogReader {
            memtable,
            catalog,
            flushed_below: version.flushed_below(),
            salvage,
            ids: BTreeMap::new(),
            version,
            batches: senders.iter().map(|_| Batch::new()).collect(),
            senders,
            replayed: ReplayResult::default(),
        };
        let read = reader.read(folder);
        let mut replayed = std::mem::take(&mut reader.replayed);
        // Writers end once the senders are dropped.
        drop(reader);
        for handle in handles {
            replayed.rows += handle
                .join()
                .expect("a writer of the replay does not panic");
        }
        read.map(|()| replayed)
    })
}

/// A series that the log has named.
#[derive(Debug, Clone)]
enum NamedSeries {
    /// Its rows so far are all in files: in memory it would take the place of others. Its source and metric.
    InFiles(Box<(String, String)>),
    InMemory(SeriesHandle),
}

/// A segment that ends in invalid bytes, or has no frame.
struct TornSegment {
    /// Index among the segments.
    at: usize,
    /// Offset of the first invalid byte.
    offset: u64,
    detail: &'static str,
}

/// Whether frames of the segment were read, or damaged bytes may have been some.
fn has_frames(segment: &Segment) -> bool {
    segment.damaged || segment.bytes > SEGMENT_HEADER as u64
}

struct LogReader<'a> {
    memtable: &'a Memtable,
    catalog: &'a Catalog,
    /// Rows of lower generations are all in files; the log may no longer have their names.
    flushed_below: u64,
    salvage: bool,
    /// Series by id, for each generation.
    ids: BTreeMap<u64, Vec<Option<NamedSeries>>>,
    version: &'a Version,
    /// Next batch of each writer.
    batches: Vec<Batch>,
    senders: Vec<SyncSender<Batch>>,
    replayed: ReplayResult,
}

impl LogReader<'_> {
    fn read(&mut self, folder: &LogFolder) -> Result<(), SeriesError> {
        // Segments with invalid bytes after their last frame, or without a frame: damage if a later segment has frames, since a
        // segment is complete before the next one begins; else torn by a crash.
        let mut torn: Vec<TornSegment> = Vec::new();
        let mut buffer = Vec::new();
        for number in list(&folder.path)? {
            let mut segment = Segment::new(number);
            let mut reader = read_segment(folder, number, buffer)?;
            while let Some(frame) = reader.next()? {
                self.confirm_damage(&mut torn)?;
                segment.newest = segment.newest.max(frame.generation);
                self.frame(frame, number)?;
            }
            let tail = reader.tail()?;
            segment.bytes = tail.end();
            match tail.damage() {
                Some((offset, true)) => {
                    self.confirm_damage(&mut torn)?;
                    self.damage(number, offset, "a frame does not match its checksum")?;
                    segment.damaged = true;
                    self.replayed.damaged += tail.unreadable_bytes();
                }
                Some((offset, false)) => {
                    torn.push(TornSegment {
                        at: self.replayed.segments.len(),
                        offset,
                        detail: "bytes that are not a frame",
                    });
                    self.replayed.torn += tail.unreadable_bytes();
                }
                None if tail.end() <= SEGMENT_HEADER as u64 => torn.push(TornSegment {
                    at: self.replayed.segments.len(),
                    offset: 0,
                    detail: "it has no frame",
                }),
                None => {}
            }
            for frame in tail.frames() {
                segment.newest = segment.newest.max(frame.generation);
                self.frame(frame, number)?;
            }
            self.replayed.segments.push(segment);
            buffer = tail.into_buffer();
        }
        for writer in 0..self.senders.len() {
            self.send(writer);
        }
        for TornSegment { at, .. } in &torn {
            let segment = &self.replayed.segments[*at];
            if has_frames(segment) && !planted!("series-torn-end-not-cut") {
                folder.cut(&path_of(&folder.path, segment.number), segment.bytes)?;
            }
        }
        // Those without a frame are the last ones. Kept, they would be damage once others follow.
        let kept = self.replayed.segments.iter().rposition(has_frames);
        let empty = self
            .replayed
            .segments
            .split_off(kept.map_or(0, |at| at + 1));
        folder.delete_segments(&empty)
    }

    /// A frame follows: the invalid bytes before it are damage, not torn by a crash.
    fn confirm_damage(&mut self, torn: &mut Vec<TornSegment>) -> Result<(), SeriesError> {
        if let Some(first) = torn.first() {
            let segment = self.replayed.segments[first.at].number;
            self.damage(segment, first.offset, first.detail)?;
        }
        for TornSegment { at, .. } in torn.drain(..) {
            self.replayed.segments[at].damaged = true;
            self.replayed.damaged_segments += 1;
        }
        Ok(())
    }

    fn damage(&self, segment: u64, offset: u64, detail: &'static str) -> Result<(), SeriesError> {
        if self.salvage {
            return Ok(());
        }
        Err(SeriesError::DamagedLog {
            segment,
            offset,
            detail,
        })
    }

    fn frame(&mut self, frame: Frame<'_>, segment: u64) -> Result<(), SeriesError> {
        let generation = frame.generation;
        self.replayed.newest = self.replayed.newest.max(generation);
        self.replayed.unclean = frame.kind != Kind::Closed;
        let invalid = SeriesError::DamagedLog {
            segment,
            offset: 0,
            detail: "a frame matches its checksum, but its content is invalid",
        };
        if generation < self.flushed_below {
            return Ok(());
        }
        match frame.kind {
            Kind::Closed => Ok(()),
            Kind::Names => {
                for series in NamesDecoder(frame.body) {
                    let Some((id, source, metric)) = series else {
                        return Err(invalid);
                    };
                    self.name(generation, id, (source, metric))?;
                }
                Ok(())
            }
            Kind::Rows => {
                for rows in RowsDecoder::new(frame.body) {
                    let Some(rows) = rows else {
                        return Err(invalid);
                    };
                    self.rows(generation, &rows, segment)?;
                }
                Ok(())
            }
        }
    }

    fn name(
        &mut self,
        generation: u64,
        id: u32,
        (source, metric): (&str, &str),
    ) -> Result<(), SeriesError> {
        if !self.ids.contains_key(&generation) {
            // Writers use at most two generations, so no frame of an older one follows.
            self.ids.retain(|before, _| before + 1 >= generation);
        }
        let ids = self.ids.entry(generation).or_default();
        let at = id as usize;
        if ids.len() <= at {
            ids.resize((at + 1).next_power_of_two(), None);
        }
        let names = (source.to_owned(), metric.to_owned());
        ids[at] = Some(NamedSeries::InFiles(Box::new(names)));
        Ok(())
    }

    fn rows(
        &mut self,
        generation: u64,
        rows: &LoggedRows<'_>,
        segment: u64,
    ) -> Result<(), SeriesError> {
        let points = rows.points();
        let ids = self.ids.get_mut(&generation);
        let named = ids.and_then(|ids| ids.get_mut(rows.id as usize)?.as_mut());
        let handle = match named {
            None => {
                self.replayed.unnamed_rows += points.len() as u64;
                return self.damage(segment, 0, "rows of a series that was not named before");
            }
            Some(NamedSeries::InMemory(handle)) => *handle,
            Some(named @ NamedSeries::InFiles(_)) => {
                let width = self.memtable.width;
                let is_flushed = |point: &Point| {
                    let partition = width.partition(point.timestamp);
                    self.version.is_flushed(partition, generation)
                };
                let NamedSeries::InFiles(names) = &*named else {
                    return Ok(());
                };
                if rows.points().all(|point| is_flushed(&point)) {
                    return Ok(());
                }
                let names = (&*names.0, &*names.1);
                let handle = self.catalog.handle_of_log(names, self.memtable)?;
                *named = NamedSeries::InMemory(handle);
                handle
            }
        };
        let writer = handle.0 as usize % self.batches.len();
        let batch = &mut self.batches[writer];
        batch
            .entries
            .push((handle, generation, rows.write_seq, points.len()));
        batch.points.extend(points);
        if batch.points.len() >= ROWS_PER_BATCH || batch.entries.len() >= ROWS_PER_BATCH {
            self.send(writer);
        }
        Ok(())
    }

    fn send(&mut self, writer: usize) {
        let batch = std::mem::replace(&mut self.batches[writer], Batch::new());
        // A writer that panicked has dropped its receiver; joining it ends the replay.
        let _ = self.senders[writer].send(batch);
    }
}

struct ReplayWriter<'a> {
    memtable: &'a Memtable,
    catalog: &'a Catalog,
    version: &'a Version,
    /// Rows logged before rows with a lower sequence number.
    deferred: BTreeMap<(SeriesHandle, u64, u32), Vec<Point>>,
    /// Partition of the last row: first and last timestamp, generation, whether it was flushed.
    last_partition: (i64, i64, u64, bool),
    rows: u64,
}

impl<'a> ReplayWriter<'a> {
    fn new(memtable: &'a Memtable, catalog: &'a Catalog, version: &'a Version) -> Self {
        Self {
            memtable,
            catalog,
            version,
            deferred: BTreeMap::new(),
            last_partition: (0, -1, 0, false),
            rows: 0,
        }
    }

    fn run(mut self, batches: &Receiver<Batch>) -> u64 {
        while let Ok(batch) = batches.recv() {
            let mut points = &batch.points[..];
            for entries in batch.entries.chunks(LOOKUP_BATCH) {
                self.catalog.prefetch(entries.iter().map(|rows| rows.0));
                for &(handle, generation, write_seq, count) in entries {
                    let (rows, rest) = points.split_at(count);
                    points = rest;
                    self.apply(handle, generation, write_seq, rows);
                }
            }
        }
        // A missing predecessor was torn off, so it was never acknowledged. Keep the rows after it.
        for ((handle, generation, _), points) in std::mem::take(&mut self.deferred) {
            let series = self.catalog.series(handle).expect("it was named");
            self.write(series.lock(generation), generation, &points);
        }
        self.rows
    }

    fn apply(&mut self, handle: SeriesHandle, generation: u64, write_seq: u32, points: &[Point]) {
        let series = self.catalog.series(handle).expect("it was named");
        let guard = series.lock(generation);
        if write_seq > guard.write_seq() && !planted!("series-replay-out-of-order") {
            self.deferred
                .insert((handle, generation, write_seq), points.to_vec());
            return;
        }
        self.write(guard, generation, points);
        while !self.deferred.is_empty() {
            let guard = series.lock(generation);
            let next = self
                .deferred
                .remove(&(handle, generation, guard.write_seq()));
            let Some(points) = next else { break };
            self.write(guard, generation, &points);
        }
    }

    fn write(&mut self, mut guard: SeriesGuard<'_>, generation: u64, points: &[Point]) {
        let memtable = self.memtable;
        let mut is_flushed = |point: &Point| self.is_flushed(generation, point.timestamp);
        let kept: Vec<Point>;
        let points = if points.iter().any(&mut is_flushed) {
            kept = points
                .iter()
                .copied()
                .filter(|point| !is_flushed(point))
                .collect();
            &kept[..]
        } else {
            points
        };
        let written = guard.write(memtable.width, &memtable.memory, points);
        guard.advance_write_seq();
        drop(guard);
        debug_assert_eq!(written, points.len(), "no limit applies to the log");
        self.rows += written as u64;
    }

    #[inline]
    fn is_flushed(&mut self, generation: u64, timestamp: i64) -> bool {
        let (first, last, of, flushed) = self.last_partition;
        if of == generation && (first..=last).contains(&timestamp) {
            return flushed;
        }
        let width = self.memtable.width;
        let partition = width.partition(timestamp);
        let flushed = self.version.is_flushed(partition, generation);
        self.last_partition = (
            width.first_of(partition),
            width.last_of(partition),
            generation,
            flushed,
        );
        flushed
    }
}

/// Replays a log into memory and reports cut and skipped parts.
pub(crate) fn recover(
    folder: &LogFolder,
    memtable: &Memtable,
    version: &Version,
    salvage: bool,
) -> Result<ReplayResult, SeriesError> {
    memtable.memory.begin_replay();
    let replayed = replay(folder, memtable, version, salvage)?;
    let beyond = memtable.memory.end_replay();
    if beyond > 0 {
        let limit = memtable.memory.limit();
        tracing::warn!(
            beyond,
            limit,
            "rows and names of the log exceed memtable_bytes; writers wait until enough of them has left memory"
        );
    }
    if replayed.torn > 0 {
        tracing::warn!(bytes = replayed.torn, "cut a torn end of the log");
    }
    if replayed.damaged + replayed.damaged_segments + replayed.unnamed_rows > 0 {
        tracing::error!(
            bytes = replayed.damaged,
            segments = replayed.damaged_segments,
            rows = replayed.unnamed_rows,
            "skipped unreadable parts of the log"
        );
    }
    Ok(replayed)
}
