//! Runs of one series, merged: rows of several files and of memory by ascending timestamp, the higher generation's of those alike.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::files::{FileReader, SealedFile};
use crate::head::{Block, HeadRun};
use crate::snapshot::Names;
use crate::{Point, SeriesError};

/// Files that readers share at once, each with the pages it decoded last.
const SHARED: usize = 64;

/// Readers of files for several series one after the other: neighbours share pages.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    open: Mutex<HashMap<String, Arc<FileReader>>>,
    /// The last series that is read, if that is known: no rows behind it are read ahead.
    last: Option<Names>,
}

impl Readers {
    /// For series up to this one.
    pub(crate) fn up_to(last: Option<&Names>) -> Self {
        Self {
            last: last.cloned(),
            ..Self::default()
        }
    }

    pub(crate) async fn open(&self, file: &SealedFile) -> Result<Arc<FileReader>, SeriesError> {
        let name = &file.entry().name;
        if let Some(known) = self.open.lock().get(name) {
            return Ok(Arc::clone(known));
        }
        let mut reader = file.open().await?;
        if let Some((source, metric)) = &self.last {
            reader.end = reader.layout.index.end_of(source, metric);
        }
        let reader = Arc::new(reader);
        let mut readers = self.open.lock();
        if readers.len() >= SHARED {
            readers.clear();
        }
        readers.insert(name.clone(), Arc::clone(&reader));
        Ok(reader)
    }
}

/// Some rows of a series: no two alike, all of generations that no other run's lie between.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// The highest.
    generation: u64,
    /// No row is earlier.
    first: i64,
    rows: Rows,
}

#[derive(Debug, Clone)]
enum Rows {
    Memory(Arc<HeadRun>),
    File(Arc<SealedFile>),
}

impl Run {
    /// None if it has no row.
    pub(crate) fn in_memory(run: HeadRun) -> Option<Self> {
        let first = run.blocks.iter().find_map(|block| block.first())?.timestamp;
        Some(Self {
            generation: run.generation,
            first,
            rows: Rows::Memory(run.into()),
        })
    }

    /// Whatever rows of the series the file has.
    pub(crate) fn in_file(file: &Arc<SealedFile>) -> Self {
        let entry = file.entry();
        Self {
            generation: entry.generations.1,
            first: entry.range.0,
            rows: Rows::File(Arc::clone(file)),
        }
    }
}

/// A run that is being read.
#[derive(Debug)]
struct Reading {
    generation: u64,
    rest: Rest,
    /// What was read, and which of it was not given out yet: some, but before a fill.
    block: Block,
    left: Range<usize>,
}

/// What was not read yet.
#[derive(Debug)]
enum Rest {
    Blocks(Arc<HeadRun>, usize),
    Unopened(Arc<SealedFile>),
    Rows(Arc<FileReader>, Range<u64>),
    Nothing,
}

/// The rows of one series in a range of time.
#[derive(Debug)]
pub(crate) struct Merge {
    source: Arc<str>,
    metric: Arc<str>,
    range: RangeInclusive<i64>,
    readers: Arc<Readers>,
    /// Not begun, the earliest last.
    waiting: Vec<Run>,
    reading: Vec<Reading>,
}

impl Merge {
    pub(crate) fn new(
        (source, metric): (&Arc<str>, &Arc<str>),
        runs: &[Run],
        range: RangeInclusive<i64>,
        readers: &Arc<Readers>,
    ) -> Self {
        let mut waiting = if range.is_empty() {
            Vec::new()
        } else {
            runs.to_vec()
        };
        waiting.sort_unstable_by_key(|run| std::cmp::Reverse(run.first));
        Self {
            source: Arc::clone(source),
            metric: Arc::clone(metric),
            range,
            readers: Arc::clone(readers),
            waiting,
            reading: Vec::new(),
        }
    }

    /// The next rows: some, or none at the end. `room` is for those that are merged of several runs; others are where they were
    /// read.
    ///
    /// After an error, or when dropped halfway, it goes on where it was: no row is lost.
    pub(crate) async fn next<'a>(
        &'a mut self,
        room: &'a mut Vec<Point>,
    ) -> Result<&'a [Point], SeriesError> {
        loop {
            let mut at = 0;
            while at < self.reading.len() {
                if self.fill(at).await? {
                    at += 1;
                } else {
                    self.reading.swap_remove(at);
                }
            }
            let heads = self.reading.iter().filter_map(Reading::head);
            let head = heads.map(|point| point.timestamp).min();
            match self.waiting.last() {
                Some(run) if head.is_none_or(|head| run.first <= head) => {
                    let run = self.waiting.pop().expect("it was just seen");
                    self.reading.push(Reading::new(run));
                }
                _ => break,
            }
        }
        let limit = self.waiting.last().map(|run| run.first);
        if self.reading.len() == 1 {
            let run = &mut self.reading[0];
            let points = &run.block[run.left.clone()];
            let before = |limit| points.partition_point(|point| point.timestamp < limit);
            let count = limit.map_or(points.len(), before);
            run.left.start += count;
            return Ok(&points[..count]);
        }
        room.clear();
        self.merge(limit, room);
        Ok(room)
    }

    /// Takes rows of several runs until one has to be filled, or one that waits has to begin.
    fn merge(&mut self, limit: Option<i64>, out: &mut Vec<Point>) {
        loop {
            let heads = self
                .reading
                .iter()
                .filter_map(|run| Some((run.head()?, run.generation)));
            if heads.clone().count() < self.reading.len() {
                return;
            }
            let next =
                heads.min_by_key(|(point, generation)| (point.timestamp, u64::MAX - generation));
            let Some((point, _)) = next else { return };
            let point = *point;
            if limit.is_some_and(|limit| point.timestamp >= limit) {
                return;
            }
            out.push(point);
            for run in &mut self.reading {
                let taken = run
                    .head()
                    .is_some_and(|known| known.timestamp == point.timestamp);
                run.left.start += usize::from(taken);
            }
        }
    }

    /// Whether the run has a row to give; it is read if need be.
    async fn fill(&mut self, at: usize) -> Result<bool, SeriesError> {
        let run = &mut self.reading[at];
        while run.left.is_empty() {
            match &mut run.rest {
                Rest::Nothing => return Ok(false),
                Rest::Blocks(of, at) => {
                    let Some(block) = of.blocks.get(*at) else {
                        return Ok(false);
                    };
                    *at += 1;
                    run.block = Arc::clone(block);
                    run.left = inside(block, 0..block.len(), &self.range);
                }
                Rest::Unopened(file) => {
                    let reader = self.readers.open(file).await?;
                    let found = reader.layout.index.find(&self.source, &self.metric);
                    let found = found.filter(|found| found.meets(&self.range));
                    run.rest = match found {
                        None => Rest::Nothing,
                        Some(found) => {
                            let start = reader.layout.skip_to(&found.rows, *self.range.start());
                            let rows = start..found.rows.end;
                            Rest::Rows(Arc::clone(&reader), rows)
                        }
                    };
                }
                Rest::Rows(_, rows) if rows.is_empty() => return Ok(false),
                Rest::Rows(reader, rows) => {
                    // All of it was given out: the reader has the memory back.
                    (run.block, run.left) = (Block::default(), 0..0);
                    let (block, places) = reader.read(rows).await?;
                    rows.start += places.len() as u64;
                    run.left = inside(&block, places.clone(), &self.range);
                    if run.left.end < places.end {
                        rows.start = rows.end;
                    }
                    run.block = block;
                }
            }
        }
        Ok(true)
    }
}

impl Reading {
    fn new(run: Run) -> Self {
        Self {
            generation: run.generation,
            rest: match run.rows {
                Rows::Memory(run) => Rest::Blocks(run, 0),
                Rows::File(file) => Rest::Unopened(file),
            },
            block: Block::default(),
            left: 0..0,
        }
    }

    fn head(&self) -> Option<&Point> {
        self.block[self.left.clone()].first()
    }
}

/// Those of the points at these places whose timestamps are in the range.
fn inside(points: &[Point], places: Range<usize>, range: &RangeInclusive<i64>) -> Range<usize> {
    let points = &points[places.clone()];
    let ends = [points.first(), points.last()];
    if ends
        .iter()
        .flatten()
        .all(|end| range.contains(&end.timestamp))
    {
        return places;
    }
    let from = points.partition_point(|point| point.timestamp < *range.start());
    let to = points.partition_point(|point| point.timestamp <= *range.end());
    places.start + from..places.start + to
}
