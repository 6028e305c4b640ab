//! External merge sort: sorts a file of records that is larger than memory, on the scratch of an engine.
//!
//! A record has 100 bytes; the first 10 are its key (the format of the Sort Benchmark's text records).
//!
//! ```text
//! cargo run --release -p bywash --example external_sort -- make 4294967300 rows.txt
//! cargo run --release -p bywash --example external_sort -- sort rows.txt sorted.txt 268435456 /tmp/scratch
//! ```
//!
//! 1. Threads read a run of records into pinned buffers, sort them, and write them in order into blocks, which are unpinned: when
//!    memory is short, the engine evicts them to temporary files.
//! 2. The first blocks of all runs are pinned, and merged. A block is dropped when it was merged, with its memory and its slot.
//!
//! `sort` compares the order of all records and a checksum of their set with the input.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use std::{io, thread};

use bywash::{Engine, Scratch, ScratchBlock, ScratchBuffer, ScratchOptions, ScratchStats, Share};

type Failure = Box<dyn Error + Send + Sync>;

/// Bytes of a record, and of its key.
const RECORD: usize = 100;
const KEY: usize = 10;

/// Files, memory and folder of a sort.
#[derive(Debug)]
pub(crate) struct Sort {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    /// Memory of the engine.
    pub(crate) memory: u64,
    /// Folder of the temporary files, and their maximum bytes.
    pub(crate) scratch: PathBuf,
    pub(crate) disk: u64,
    pub(crate) threads: usize,
}

/// Number of records, and the sum of a hash of each: equal for the same records in any order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) records: u64,
    sum: u64,
}

impl Checksum {
    fn add(&mut self, record: &[u8]) {
        let hash = record.chunks(8).fold(0, |hash: u64, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            (hash ^ u64::from_le_bytes(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        });
        self.records += 1;
        self.sum = self.sum.wrapping_add(hash);
    }

    fn merge(&mut self, other: Self) {
        self.records += other.records;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// A sorted run: blocks of whole records.
type Run = VecDeque<ScratchBlock>;

/// Sizes that follow from the memory. A quarter of it holds runs that are being sorted, and a quarter one block of each run.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    block: usize,
    run_records: usize,
    ways: usize,
}

impl Sizes {
    fn of(sort: &Sort) -> Self {
        let quarter = (sort.memory / 4) as usize;
        let block = (quarter / 256).next_power_of_two().clamp(4 << 10, 1 << 20);
        // A record, and its entry in the index.
        let run_records = quarter / sort.threads / (RECORD + size_of::<(u64, u32)>());
        Self {
            block,
            run_records: run_records.max(block / RECORD),
            ways: (quarter / block).max(2),
        }
    }
}

/// Records of a block.
fn records(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(RECORD)
}

/// Writes records into blocks, one after the other.
struct RunWriter<'a> {
    scratch: &'a Scratch,
    block: usize,
    run: Run,
    /// The last block, and how much of it is written.
    last: Option<(ScratchBuffer, usize)>,
    /// Records that no buffer was allocated for yet.
    left: u64,
}

impl<'a> RunWriter<'a> {
    fn new(scratch: &'a Scratch, block: usize, records: u64) -> Self {
        Self {
            scratch,
            block,
            run: Run::new(),
            last: None,
            left: records,
        }
    }

    fn push(&mut self, record: &[u8]) -> Result<(), Failure> {
        let (buffer, written) = match &mut self.last {
            Some(last) => last,
            none => {
                let records = self.left.min((self.block / RECORD) as u64);
                self.left -= records;
                let buffer = self.scratch.allocate_blocking(records as usize * RECORD)?;
                none.insert((buffer, 0))
            }
        };
        buffer[*written..][..RECORD].copy_from_slice(record);
        *written += RECORD;
        if *written == buffer.len()
            && let Some((buffer, _)) = self.last.take()
        {
            self.run.push_back(buffer.unpin());
        }
        Ok(())
    }
}

/// Sorts the records of `input` into runs, until the input is read.
fn make_runs(
    (engine, scratch): (&Engine, &Scratch),
    input: &File,
    (next, all): (&AtomicU64, u64),
    sizes: Sizes,
) -> Result<(Vec<Run>, Checksum), Failure> {
    let (mut runs, mut checksum) = (Vec::new(), Checksum::default());
    let per_block = sizes.block / RECORD;
    let index_bytes = (sizes.run_records * size_of::<(u64, u32)>()) as u64;
    let _charge = engine
        .try_reserve(Share::Download, index_bytes)
        .ok_or("no memory for the index of a run")?;
    let mut index: Vec<(u64, u32)> = Vec::with_capacity(sizes.run_records);
    loop {
        // Relaxed: each thread takes other records.
        let first = next.fetch_add(sizes.run_records as u64, Relaxed);
        if first >= all {
            return Ok((runs, checksum));
        }
        let count = (all - first).min(sizes.run_records as u64) as usize;
        let mut buffers = Vec::new();
        index.clear();
        while index.len() < count {
            let records_here = per_block.min(count - index.len());
            let mut buffer = scratch.allocate_blocking(records_here * RECORD)?;
            let offset = (first + index.len() as u64) * RECORD as u64;
            input.read_exact_at(&mut buffer, offset)?;
            for record in records(&buffer) {
                checksum.add(record);
                index.push((prefix(record), index.len() as u32));
            }
            buffers.push(buffer);
        }
        let record = |number: u32| {
            let number = number as usize;
            &buffers[number / per_block][number % per_block * RECORD..][..RECORD]
        };
        index.sort_unstable_by(|a, b| {
            let by_prefix = a.0.cmp(&b.0);
            by_prefix.then_with(|| record(a.1)[8..KEY].cmp(&record(b.1)[8..KEY]))
        });
        let mut writer = RunWriter::new(scratch, sizes.block, count as u64);
        for (_, number) in &index {
            writer.push(record(*number))?;
        }
        runs.push(writer.run);
    }
}

/// Returns the first eight bytes of a key, which order most records.
fn prefix(record: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&record[..8]);
    u64::from_be_bytes(bytes)
}

/// A run that is merged: its first block is pinned.
struct Cursor {
    run: Run,
    buffer: ScratchBuffer,
    offset: usize,
}

impl Cursor {
    fn open(mut run: Run) -> Result<Option<Self>, Failure> {
        let Some(block) = run.pop_front() else {
            return Ok(None);
        };
        Ok(Some(Self {
            run,
            buffer: block.pin_mut_blocking()?,
            offset: 0,
        }))
    }

    fn record(&self) -> &[u8] {
        &self.buffer[self.offset..][..RECORD]
    }

    fn key(&self) -> (u64, [u8; 2]) {
        let record = self.record();
        (prefix(record), [record[8], record[9]])
    }

    /// Advances to the next record. Returns whether there is one.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.offset += RECORD;
        if self.offset < self.buffer.len() {
            return Ok(true);
        }
        let Some(next) = self.run.pop_front() else {
            return Ok(false);
        };
        (self.buffer, self.offset) = (next.pin_mut_blocking()?, 0);
        Ok(true)
    }
}

/// Merges runs, and calls `sink` with each record in order.
fn merge(
    runs: Vec<Run>,
    mut sink: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut cursors = Vec::new();
    for run in runs {
        cursors.extend(Cursor::open(run)?);
    }
    let first = cursors.iter().enumerate();
    let mut heap: BinaryHeap<_> = first
        .map(|(at, cursor)| Reverse((cursor.key(), at)))
        .collect();
    while let Some(mut least) = heap.peek_mut() {
        let at = least.0.1;
        let cursor = &mut cursors[at];
        sink(cursor.record())?;
        if cursor.advance()? {
            *least = Reverse((cursor.key(), at));
        } else {
            std::collections::binary_heap::PeekMut::pop(least);
        }
    }
    Ok(())
}

/// Sorts, and checks order and checksum of the output. Returns them, and the counters of the scratch.
pub(crate) fn sort(sort: &Sort) -> Result<(Checksum, ScratchStats), Failure> {
    let engine = Engine::builder()
        .memory(sort.memory)
        .block_size(16 << 10)
        .build()?;
    let scratch = engine.scratch(&ScratchOptions::new(&sort.scratch, sort.disk))?;
    let sizes = Sizes::of(sort);
    let input = File::open(&sort.input)?;
    let all = input.metadata()?.len() / RECORD as u64;
    let next = AtomicU64::new(0);
    let made = thread::scope(|scope| {
        let work = || make_runs((&engine, &scratch), &input, (&next, all), sizes);
        let threads: Vec<_> = (0..sort.threads).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>, Failure>>()
    })?;
    let (mut runs, mut checksum) = (Vec::new(), Checksum::default());
    for (of_thread, sum) in made {
        runs.extend(of_thread);
        checksum.merge(sum);
    }
    // Until one block of each run fits into memory.
    while runs.len() > sizes.ways {
        let rest = runs.split_off(sizes.ways);
        let bytes: usize = runs.iter().flatten().map(ScratchBlock::len).sum();
        let mut writer = RunWriter::new(&scratch, sizes.block, (bytes / RECORD) as u64);
        merge(runs, |record| writer.push(record))?;
        runs = rest;
        runs.push(writer.run);
    }
    let mut output = BufWriter::with_capacity(1 << 20, File::create(&sort.output)?);
    let (mut sorted, mut last) = (Checksum::default(), [0; KEY]);
    merge(runs, |record| {
        if record[..KEY] < last[..] {
            return Err("the output is not in order".into());
        }
        last.copy_from_slice(&record[..KEY]);
        sorted.add(record);
        Ok(output.write_all(record)?)
    })?;
    output.flush()?;
    if sorted != checksum {
        return Err(format!("the output has {sorted:?}, and the input {checksum:?}").into());
    }
    Ok((sorted, scratch.stats()))
}

/// Makes a file of `records` records, whose keys are drawn from a seed.
pub(crate) fn make(path: &Path, records: u64, seed: u64) -> io::Result<()> {
    let mut output = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut state = seed;
    for number in 0..records {
        // SplitMix64 (Steele, Lea and Flood 2014).
        let mut draw = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        let (first, second) = (draw(), draw());
        let mut letters = [0; KEY];
        for (at, letter) in letters.iter_mut().enumerate() {
            let bits = if at < 8 {
                first >> (8 * at)
            } else {
                second >> (8 * (at - 8))
            };
            *letter = b'A' + (bits % 26) as u8;
        }
        output.write_all(&letters)?;
        // Half of the rest repeats itself, and half does not.
        writeln!(output, "  {number:032}  {second:016x}{first:016x}{:021}", 0)?;
    }
    output.flush()
}

/// Checksum of a file, and whether its records are in order.
pub(crate) fn check(path: &Path) -> io::Result<(Checksum, bool)> {
    let mut input = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut checksum, mut last, mut in_order) = (Checksum::default(), [0; KEY], true);
    let mut record = [0; RECORD];
    loop {
        match input.read_exact(&mut record) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok((checksum, in_order));
            }
            Err(error) => return Err(error),
        }
        in_order &= record[..KEY] >= last[..];
        last.copy_from_slice(&record[..KEY]);
        checksum.add(&record);
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["make", bytes, path] => {
            make(path.as_ref(), bytes.parse::<u64>()? / RECORD as u64, 1)?;
        }
        ["check", path] => {
            let (checksum, in_order) = check(path.as_ref())?;
            println!("{checksum:?}, in order: {in_order}");
        }
        ["sort", input, output, memory, scratch] => {
            let threads = thread::available_parallelism()?.get();
            let started = Instant::now();
            let (checksum, stats) = sort(&Sort {
                input: input.into(),
                output: output.into(),
                memory: memory.parse()?,
                scratch: scratch.into(),
                disk: u64::MAX,
                threads,
            })?;
            let seconds = started.elapsed().as_secs_f64();
            println!("{checksum:?} in {seconds:.2} s, {stats:?}");
        }
        _ => {
            return Err("make BYTES FILE | sort INPUT OUTPUT MEMORY FOLDER | check FILE".into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}
