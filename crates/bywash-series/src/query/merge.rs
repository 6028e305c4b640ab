//! Merge iterator: the rows of a series in files and memory by ascending timestamp. On equal timestamps the newest
//! generation wins.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Names;
use crate::manifest::DataFile;
use crate::memtable::{Block, ChunkSnapshot};
use crate::parquet::FileReader;
use crate::{Point, SeriesError};

/// Max file readers that are open at a time, each with its last decoded pages.
const OPEN_FILES: usize = 64;

/// Times that all readers of a task are closed to read further files in their memory. A query of few series needs it once in some
/// files; one of many would decode all tails for each series.
const REOPENINGS: usize = 64;

/// File readers shared by queries of several series: neighbouring series share pages.
#[derive(Debug, Default)]
pub(crate) struct FileReaders {
    open: Mutex<HashMap<String, Arc<FileReader>>>,
    /// The last series to be read, if known: rows after it are not read ahead.
    last: Option<Names>,
    /// Whether the caller has charged the memory of reads.
    charged_by_caller: bool,
    /// How often all readers were closed to read further files in their memory.
    closed: AtomicUsize,
}

impl FileReaders {
    /// Readers for series up to this one.
    pub(crate) fn up_to(last: Option<&Names>) -> Self {
        Self {
            last: last.cloned(),
            ..Self::default()
        }
    }

    /// Readers of a caller that has charged the memory of their reads.
    pub(crate) fn charged_by_caller() -> Self {
        Self {
            charged_by_caller: true,
            ..Self::default()
        }
    }

    pub(crate) async fn open(&self, file: &DataFile) -> Result<Arc<FileReader>, SeriesError> {
        let name = &file.entry().name;
        if let Some(known) = self.open.lock().get(name) {
            return Ok(Arc::clone(known));
        }
        let opened = match file.open(self.charged_by_caller).await {
            Err(SeriesError::NoMemory { .. }) if self.close_all() => {
                file.open(self.charged_by_caller).await
            }
            opened => opened,
        };
        let mut reader = opened?;
        if let Some((source, metric)) = &self.last {
            reader.end = reader.layout.index.end_of(source, metric);
        }
        let reader = Arc::new(reader);
        let mut readers = self.open.lock();
        if readers.len() >= OPEN_FILES {
            readers.clear();
        }
        readers.insert(name.clone(), Arc::clone(&reader));
        Ok(reader)
    }

    /// Closes the readers that no series uses now. Returns false past the limit of that: the tails would be decoded for each series.
    fn close_all(&self) -> bool {
        // Relaxed: a count.
        let closed = self.closed.fetch_add(1, Ordering::Relaxed);
        self.open.lock().clear();
        closed < REOPENINGS
    }
}

/// Rows of a series without duplicates. The generations of different runs do not interleave.
#[derive(Debug, Clone)]
pub(crate) struct SortedRun {
    /// Newest generation.
    generation: u64,
    /// Lower bound of the timestamps.
    first: i64,
    rows: RunRows,
}

#[derive(Debug, Clone)]
enum RunRows {
    Memory(Arc<ChunkSnapshot>),
    File(Arc<DataFile>),
}

impl SortedRun {
    /// Returns `None` for a chunk without rows.
    pub(crate) fn in_memory(run: ChunkSnapshot) -> Option<Self> {
        let first = run.blocks.iter().find_map(|block| block.first())?.timestamp;
        Some(Self {
            generation: run.generation,
            first,
            rows: RunRows::Memory(run.into()),
        })
    }

    /// Bytes of rows in memory that the run may keep alive.
    pub(crate) fn bytes_in_memory(&self) -> u64 {
        let RunRows::Memory(run) = &self.rows else {
            return 0;
        };
        let rows: usize = run.blocks.iter().map(|block| block.len()).sum();
        (rows * size_of::<Point>()) as u64
    }

    /// The rows of the series in a file, possibly none.
    pub(crate) fn in_file(file: &Arc<DataFile>) -> Self {
        let entry = file.entry();
        Self {
            generation: entry.generations.1,
            first: entry.range.0,
            rows: RunRows::File(Arc::clone(file)),
        }
    }
}

/// Reading position in a run.
#[derive(Debug)]
struct RunCursor {
    generation: u64,
    unread: Unread,
    /// The block read last, and its part not returned yet. Empty only before a fill.
    block: Block,
    unconsumed: Range<usize>,
}

/// The part of a run that was not read yet.
#[derive(Debug)]
enum Unread {
    Blocks(Arc<ChunkSnapshot>, usize),
    Unopened(Arc<DataFile>),
    RunRows(Arc<FileReader>, Range<u64>),
    Nothing,
}

/// Iterates over the rows of one series in a time range.
#[derive(Debug)]
pub(crate) struct MergeIterator {
    source: Arc<str>,
    metric: Arc<str>,
    range: RangeInclusive<i64>,
    readers: Arc<FileReaders>,
    /// Runs not begun, the earliest last.
    pending: Vec<SortedRun>,
    active: Vec<RunCursor>,
}

impl MergeIterator {
    pub(crate) fn new(
        (source, metric): (&Arc<str>, &Arc<str>),
        runs: &[SortedRun],
        range: RangeInclusive<i64>,
        readers: &Arc<FileReaders>,
    ) -> Self {
        let mut pending = if range.is_empty() {
            Vec::new()
        } else {
            runs.to_vec()
        };
        pending.sort_unstable_by_key(|run| std::cmp::Reverse(run.first));
        Self {
            source: Arc::clone(source),
            metric: Arc::clone(metric),
            range,
            readers: Arc::clone(readers),
            pending,
            active: Vec::new(),
        }
    }

    /// Returns the next rows, empty at the end. Rows merged from several runs are in `buffer`, others in place.
    ///
    /// Cancel-safe: after an error or a dropped call no row is lost.
    pub(crate) async fn next<'a>(
        &'a mut self,
        buffer: &'a mut Vec<Point>,
    ) -> Result<&'a [Point], SeriesError> {
        loop {
            let mut at = 0;
            while at < self.active.len() {
                if self.fill(at).await? {
                    at += 1;
                } else {
                    self.active.swap_remove(at);
                }
            }
            let fronts = self.active.iter().filter_map(RunCursor::front);
            let front = fronts.map(|point| point.timestamp).min();
            match self.pending.last() {
                Some(run) if front.is_none_or(|front| run.first <= front) => {
                    let run = self.pending.pop().expect("it was just seen");
                    self.active.push(RunCursor::new(run));
                }
                _ => break,
            }
        }
        let limit = self.pending.last().map(|run| run.first);
        if self.active.len() == 1 {
            let run = &mut self.active[0];
            let points = &run.block[run.unconsumed.clone()];
            let before = |limit| points.partition_point(|point| point.timestamp < limit);
            let count = limit.map_or(points.len(), before);
            run.unconsumed.start += count;
            return Ok(&points[..count]);
        }
        buffer.clear();
        self.merge(limit, buffer);
        Ok(buffer)
    }

    /// Merges rows until a run must be filled, or a pending run must begin.
    fn merge(&mut self, limit: Option<i64>, out: &mut Vec<Point>) {
        loop {
            let fronts = self
                .active
                .iter()
                .filter_map(|run| Some((run.front()?, run.generation)));
            if fronts.clone().count() < self.active.len() {
                return;
            }
            let next = fronts.min_by_key(|(point, generation)| {
                let newest = u64::MAX - generation;
                let rank = if planted!("series-older-row-wins") {
                    *generation
                } else {
                    newest
                };
                (point.timestamp, rank)
            });
            let Some((point, _)) = next else { return };
            let point = *point;
            if limit.is_some_and(|limit| point.timestamp >= limit) {
                return;
            }
            out.push(point);
            for run in &mut self.active {
                let taken = run
                    .front()
                    .is_some_and(|known| known.timestamp == point.timestamp);
                run.unconsumed.start += usize::from(taken);
            }
        }
    }

    /// Reads until the run has a row. Returns false at its end.
    async fn fill(&mut self, at: usize) -> Result<bool, SeriesError> {
        let run = &mut self.active[at];
        while run.unconsumed.is_empty() {
            match &mut run.unread {
                Unread::Nothing => return Ok(false),
                Unread::Blocks(of, at) => {
                    let Some(block) = of.blocks.get(*at) else {
                        return Ok(false);
                    };
                    *at += 1;
                    run.block = Arc::clone(block);
                    run.unconsumed = inside(block, 0..block.len(), &self.range);
                }
                Unread::Unopened(file) => {
                    let reader = self.readers.open(file).await?;
                    let found = reader.layout.index.find(&self.source, &self.metric);
                    let found = found.filter(|found| found.overlaps(&self.range));
                    run.unread = match found {
                        None => Unread::Nothing,
                        Some(found) => {
                            let start = reader.layout.skip_to(&found.rows, *self.range.start());
                            let rows = start..found.rows.end;
                            Unread::RunRows(Arc::clone(&reader), rows)
                        }
                    };
                }
                Unread::RunRows(_, rows) if rows.is_empty() => return Ok(false),
                Unread::RunRows(reader, rows) => {
                    // Release the block, so that the reader can reuse its memory.
                    (run.block, run.unconsumed) = (Block::default(), 0..0);
                    let (block, positions) = reader.read(rows).await?;
                    rows.start += positions.len() as u64;
                    run.unconsumed = inside(&block, positions.clone(), &self.range);
                    if run.unconsumed.end < positions.end {
                        rows.start = rows.end;
                    }
                    run.block = block;
                }
            }
        }
        Ok(true)
    }
}

impl RunCursor {
    fn new(run: SortedRun) -> Self {
        Self {
            generation: run.generation,
            unread: match run.rows {
                RunRows::Memory(run) => Unread::Blocks(run, 0),
                RunRows::File(file) => Unread::Unopened(file),
            },
            block: Block::default(),
            unconsumed: 0..0,
        }
    }

    fn front(&self) -> Option<&Point> {
        self.block[self.unconsumed.clone()].first()
    }
}

/// Restricts positions to timestamps in the range.
fn inside(points: &[Point], positions: Range<usize>, range: &RangeInclusive<i64>) -> Range<usize> {
    let points = &points[positions.clone()];
    let ends = [points.first(), points.last()];
    if ends
        .iter()
        .flatten()
        .all(|end| range.contains(&end.timestamp))
    {
        return positions;
    }
    let from = points.partition_point(|point| point.timestamp < *range.start());
    let to = points.partition_point(|point| point.timestamp <= *range.end());
    positions.start + from..positions.start + to
}
