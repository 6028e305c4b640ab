//! The sides of a cell: ours, plain copies, and the Go designs.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, WriteAtBuffer, WriteAtOptions};
use memmap2::MmapMut;

use super::{Cell, REUSED, SHARD};
use crate::Failure;
use crate::peers::crew::Crew;
use crate::peers::{Go, Pace, Side};

/// Context of a cell, shared by all its sides.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) cell: Cell,
    pub(super) turn: Duration,
    pub(super) crew: &'a Crew,
    /// One piece, the bytes of every write.
    pub(super) source: Arc<[u8]>,
}

/// Writes the shard that begins at this offset, on one of our threads.
pub(super) type WriteShard = fn(&WriteAtBuffer, u64, &[u8]) -> Result<(), Failure>;

pub(super) fn write_shard(buffer: &WriteAtBuffer, at: u64, piece: &[u8]) -> Result<(), Failure> {
    let mut shard = buffer
        .claim(at..at + SHARD as u64)?
        .ok_or("a shard of a new buffer is written already")?;
    while shard.write(piece) > 0 {}
    Ok(())
}

pub(super) fn write_pieces(buffer: &WriteAtBuffer, at: u64, piece: &[u8]) -> Result<(), Failure> {
    for from in (at..at + SHARD as u64).step_by(piece.len()) {
        buffer.write_at(from, piece)?;
    }
    Ok(())
}

impl<'a> Context<'a> {
    pub(super) fn side<'b>(
        &self,
        name: &str,
        mut operation: impl FnMut() -> Result<(), Failure> + 'b,
    ) -> Side<'b> {
        let mut pace = Pace::new(self.turn);
        Side::new(name, move || pace.each(&mut operation))
    }

    pub(super) fn new_buffer(&self, pool: &Arc<BlockPool>) -> Result<WriteAtBuffer, Failure> {
        Ok(WriteAtBuffer::new(
            pool.budget(),
            WriteAtOptions {
                size_hint: self.cell.size_hint() as u64,
                ..WriteAtOptions::default()
            },
        )?)
    }

    /// Runs one operation of ours.
    pub(super) fn fill(&self, pool: &Arc<BlockPool>, write: WriteShard) -> Result<(), Failure> {
        let buffer = self.new_buffer(pool)?;
        let jobs = (0..self.cell.shards).map(|shard| {
            let (buffer, source) = (buffer.clone(), Arc::clone(&self.source));
            move || write(&buffer, (shard * SHARD) as u64, &source)
        });
        self.crew
            .run(jobs)?
            .into_iter()
            .collect::<Result<(), _>>()?;
        drop(buffer.freeze(self.cell.total() as u64)?);
        Ok(())
    }

    /// Plain copies into pages that the process has not touched.
    pub(super) fn fill_fresh(&self) -> Result<(), Failure> {
        let maps: Result<Vec<MmapMut>, _> = (0..self.cell.shards)
            .map(|_| MmapMut::map_anon(SHARD))
            .collect();
        let filled = self.crew.run(maps?.into_iter().map(|mut map| {
            let source = Arc::clone(&self.source);
            move || {
                copy(&mut map, &source);
                map
            }
        }))?;
        drop(filled);
        Ok(())
    }

    /// Plain copies into the same memory each time.
    pub(super) fn reused<'b>(&'b self) -> Side<'b>
    where
        'a: 'b,
    {
        let mut memory: Vec<Vec<u8>> = vec![vec![1; SHARD]; self.cell.shards];
        self.side(REUSED, move || {
            memory = self
                .crew
                .run(std::mem::take(&mut memory).into_iter().map(|mut shard| {
                    let source = Arc::clone(&self.source);
                    move || {
                        copy(&mut shard, &source);
                        shard
                    }
                }))?;
            Ok(())
        })
    }

    pub(super) fn go<'b>(
        &'b self,
        name: &str,
        design: &'b str,
        go: &'b RefCell<&mut Go>,
    ) -> Side<'b> {
        let mut pace = Pace::new(self.turn);
        Side::new(name, move || {
            let turn = |operations| {
                let case = self.cell.go_case(design, operations, false);
                let [ns] = go.borrow_mut().run_case(&case)?;
                Ok(Duration::from_nanos((ns * operations as f64) as u64))
            };
            if self.cell.is_slow() {
                return Ok(turn(1)?.as_nanos() as f64);
            }
            pace.ns(turn)
        })
    }
}

fn copy(into: &mut [u8], piece: &[u8]) {
    for part in into.chunks_mut(piece.len()) {
        part.copy_from_slice(piece);
        std::hint::black_box(&part);
    }
}
