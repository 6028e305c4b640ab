//! From the log back to memory.
//!
//! One thread reads segment after segment, checks frames and takes them apart; others, each with series of its own, write the
//! rows. What waits between them is bounded. Rows of one series are written in the order of their turns: where the log has two
//! frames the other way round, the later turn waits for the earlier.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::catalog::{SIDE_BY_SIDE, SeriesHandle};
use crate::files::Version;
use crate::head::{Head, Turn};
use crate::limits::MAX_REPLAY_WRITERS;
use crate::wal::{
    Folder, Frame, Kind, LoggedTurn, Names, Segment, Turns, list, path_of, read_segment,
};
use crate::{Point, SeriesError};

/// Rows that go to a writer together.
const BATCH: usize = 4096;
/// Batches that wait for one writer: 64 KiB of points each.
const WAITING: usize = 8;

/// What a replay came to.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) segments: Vec<Segment>,
    /// The highest generation met; 0: none.
    pub(crate) newest: u64,
    /// Rows written to memory.
    pub(crate) rows: u64,
    /// Bytes that a crash tore off, and which were cut.
    pub(crate) torn: u64,
    /// Bytes of damage that were skipped.
    pub(crate) damaged: u64,
    /// Rows of series whose names are in the damage.
    pub(crate) nameless: u64,
    /// Whether there is a log, and it does not end where the database was closed.
    pub(crate) unclean: bool,
}

/// Turns of some series, in the log's order.
#[derive(Debug)]
struct Batch {
    turns: Vec<(SeriesHandle, u64, u32, usize)>,
    points: Vec<Point>,
}

impl Batch {
    fn new() -> Self {
        Self {
            turns: Vec::with_capacity(BATCH),
            points: Vec::with_capacity(BATCH),
        }
    }
}

/// Reads the log and writes its rows to memory, but for those that are sealed. Blocks the thread.
pub(crate) fn replay(
    folder: &Folder,
    head: &Head,
    sealed: &Version,
    salvage: bool,
) -> Result<Replayed, SeriesError> {
    let writers =
        thread::available_parallelism().map_or(1, |cores| cores.get().clamp(1, MAX_REPLAY_WRITERS));
    thread::scope(|threads| {
        let mut senders = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..writers {
            let (sender, receiver) = sync_channel(WAITING);
            senders.push(sender);
            handles.push(threads.spawn(move || Writer::new(head, sealed).run(&receiver)));
        }
        let mut reader = Reader {
            head,
            sealed_below: sealed.sealed_below(),
            salvage,
            ids: BTreeMap::new(),
            batches: senders.iter().map(|_| Batch::new()).collect(),
            senders,
            replayed: Replayed::default(),
        };
        let read = reader.read(folder);
        let mut replayed = std::mem::take(&mut reader.replayed);
        // The writers end when there is nobody to send.
        drop(reader);
        for handle in handles {
            replayed.rows += handle
                .join()
                .expect("a writer of the replay does not panic")?;
        }
        read.map(|()| replayed)
    })
}

struct Reader<'a> {
    head: &'a Head,
    /// All rows of generations below are in files, and their names may be gone from the log.
    sealed_below: u64,
    salvage: bool,
    /// Of each generation, the series by the ids they had in it.
    ids: BTreeMap<u64, Vec<Option<SeriesHandle>>>,
    /// What each writer gets next.
    batches: Vec<Batch>,
    senders: Vec<SyncSender<Batch>>,
    replayed: Replayed,
}

impl Reader<'_> {
    fn read(&mut self, folder: &Folder) -> Result<(), SeriesError> {
        // Of a segment behind whose last frame something is: no crash did that if frames follow in a later segment.
        let mut torn: Vec<(usize, u64)> = Vec::new();
        let mut room = Vec::new();
        for number in list(&folder.path)? {
            let mut segment = Segment::new(number);
            let mut reader = read_segment(folder, number, room)?;
            while let Some(frame) = reader.next()? {
                self.not_torn(&mut torn)?;
                segment.newest = segment.newest.max(frame.generation);
                self.frame(frame, number)?;
            }
            let rest = reader.rest()?;
            segment.bytes = rest.end();
            match rest.fault() {
                Some((offset, true)) => {
                    self.not_torn(&mut torn)?;
                    self.damage(number, offset, "a frame does not match its checksum")?;
                    segment.damaged = true;
                    self.replayed.damaged += rest.unreadable();
                }
                Some((offset, false)) => {
                    torn.push((self.replayed.segments.len(), offset));
                    self.replayed.torn += rest.unreadable();
                }
                None => {}
            }
            for frame in rest.frames() {
                segment.newest = segment.newest.max(frame.generation);
                self.frame(frame, number)?;
            }
            self.replayed.segments.push(segment);
            room = rest.into_room();
        }
        for writer in 0..self.senders.len() {
            self.send(writer);
        }
        for (at, _) in torn {
            let segment = &self.replayed.segments[at];
            folder.cut(&path_of(&folder.path, segment.number), segment.bytes)?;
        }
        Ok(())
    }

    /// A frame was found: no crash tore off what is no frame in segments before.
    fn not_torn(&mut self, torn: &mut Vec<(usize, u64)>) -> Result<(), SeriesError> {
        if let Some((at, offset)) = torn.first().copied() {
            let segment = self.replayed.segments[at].number;
            self.damage(segment, offset, "something that is no frame")?;
        }
        for (at, _) in torn.drain(..) {
            self.replayed.segments[at].damaged = true;
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
        let unfit = SeriesError::DamagedLog {
            segment,
            offset: 0,
            detail: "a frame matches its checksum, and says nothing that is written",
        };
        if generation < self.sealed_below {
            return Ok(());
        }
        match frame.kind {
            Kind::Closed => Ok(()),
            Kind::Names => {
                for series in Names(frame.body) {
                    let Some((id, source, metric)) = series else {
                        return Err(unfit);
                    };
                    self.name(generation, id, (source, metric))?;
                }
                Ok(())
            }
            Kind::Rows => {
                for turn in Turns::new(frame.body) {
                    let Some(turn) = turn else {
                        return Err(unfit);
                    };
                    self.turn(generation, &turn, segment)?;
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
        let Head {
            catalog, charge, ..
        } = self.head;
        let handle = catalog.handle(source, metric, charge)?;
        if !self.ids.contains_key(&generation) {
            // Writers are in two generations at most, so no frame of one before those follows.
            self.ids.retain(|before, _| before + 1 >= generation);
        }
        let ids = self.ids.entry(generation).or_default();
        let at = id as usize;
        if ids.len() <= at {
            ids.resize((at + 1).next_power_of_two(), None);
        }
        ids[at] = Some(handle);
        Ok(())
    }

    fn turn(
        &mut self,
        generation: u64,
        turn: &LoggedTurn<'_>,
        segment: u64,
    ) -> Result<(), SeriesError> {
        let points = turn.points();
        let ids = self.ids.get(&generation);
        let Some(handle) = ids.and_then(|ids| *ids.get(turn.id as usize)?) else {
            self.replayed.nameless += points.len() as u64;
            return self.damage(segment, 0, "rows of a series that was not named before");
        };
        let writer = handle.0 as usize % self.batches.len();
        let batch = &mut self.batches[writer];
        batch
            .turns
            .push((handle, generation, turn.number, points.len()));
        batch.points.extend(points);
        if batch.points.len() >= BATCH || batch.turns.len() >= BATCH {
            self.send(writer);
        }
        Ok(())
    }

    fn send(&mut self, writer: usize) {
        let batch = std::mem::replace(&mut self.batches[writer], Batch::new());
        // A writer that failed takes no more; its error is found when it is joined.
        let _ = self.senders[writer].send(batch);
    }
}

struct Writer<'a> {
    head: &'a Head,
    sealed: &'a Version,
    /// Turns that came before an earlier one.
    early: BTreeMap<(SeriesHandle, u64, u32), Vec<Point>>,
    /// Where the last row lay: first and last timestamp of its partition, generation, whether it is sealed.
    place: (i64, i64, u64, bool),
    rows: u64,
}

impl<'a> Writer<'a> {
    fn new(head: &'a Head, sealed: &'a Version) -> Self {
        Self {
            head,
            sealed,
            early: BTreeMap::new(),
            place: (0, -1, 0, false),
            rows: 0,
        }
    }

    fn run(mut self, batches: &Receiver<Batch>) -> Result<u64, SeriesError> {
        while let Ok(batch) = batches.recv() {
            let mut points = &batch.points[..];
            for turns in batch.turns.chunks(SIDE_BY_SIDE) {
                self.head.catalog.come(turns.iter().map(|turn| turn.0));
                for &(handle, generation, number, count) in turns {
                    let (turn, rest) = points.split_at(count);
                    points = rest;
                    self.take(handle, generation, number, turn)?;
                }
            }
        }
        // A turn whose predecessor was torn off was not waited for by anybody: it is kept.
        for ((handle, generation, _), points) in std::mem::take(&mut self.early) {
            let series = self.head.catalog.series(handle).expect("it was named");
            self.write(series.turn(generation), generation, &points)?;
        }
        Ok(self.rows)
    }

    fn take(
        &mut self,
        handle: SeriesHandle,
        generation: u64,
        number: u32,
        points: &[Point],
    ) -> Result<(), SeriesError> {
        let head = self.head;
        let series = head.catalog.series(handle).expect("it was named");
        let turn = series.turn(generation);
        if number > turn.number() {
            self.early
                .insert((handle, generation, number), points.to_vec());
            return Ok(());
        }
        self.write(turn, generation, points)?;
        while !self.early.is_empty() {
            let turn = series.turn(generation);
            let next = self.early.remove(&(handle, generation, turn.number()));
            let Some(points) = next else { break };
            self.write(turn, generation, &points)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        mut turn: Turn<'_>,
        generation: u64,
        points: &[Point],
    ) -> Result<(), SeriesError> {
        let head = self.head;
        let kept = points
            .iter()
            .copied()
            .filter(|point| !self.is_sealed(generation, point.timestamp));
        let mut wanted = 0;
        let kept = kept.inspect(|_| wanted += 1);
        let written = turn.write(head.span, &head.charge, kept);
        turn.count();
        drop(turn);
        self.rows += written as u64;
        if written < wanted {
            return Err(SeriesError::LogTooLarge {
                limit: head.charge.limit(),
            });
        }
        Ok(())
    }

    #[inline]
    fn is_sealed(&mut self, generation: u64, timestamp: i64) -> bool {
        let (first, last, of, sealed) = self.place;
        if of == generation && (first..=last).contains(&timestamp) {
            return sealed;
        }
        let span = self.head.span;
        let partition = span.partition(timestamp);
        let sealed = self.sealed.is_sealed(partition, generation);
        self.place = (
            span.first_of(partition),
            span.last_of(partition),
            generation,
            sealed,
        );
        sealed
    }
}

/// Opens the folder of a log and writes its rows to memory.
pub(crate) fn recover(
    folder: Folder,
    head: &Head,
    sealed: &Version,
    salvage: bool,
) -> Result<(Arc<Folder>, Replayed), SeriesError> {
    let replayed = replay(&folder, head, sealed, salvage)?;
    if replayed.torn > 0 {
        tracing::warn!(bytes = replayed.torn, "cut what a crash tore off the log");
    }
    if replayed.damaged + replayed.nameless > 0 {
        tracing::error!(
            bytes = replayed.damaged,
            rows = replayed.nameless,
            "went on without what cannot be read of the log"
        );
    }
    Ok((Arc::new(folder), replayed))
}
