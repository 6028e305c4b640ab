//! States of the blocks of a scratch: in memory, on the way to a temporary file, or in one.
//!
//! The pool's registry knows whether a block is in memory; the table knows how to load it if it is not. A block that was read back keeps
//! its slot as long as it is not changed, so that it is evicted without a write. When the temporary files are full, these copies go
//! first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use bywash_disk::{Slot, SlotError, SlotFiles};
use bywash_mem::{BlockHandle, BlockKey, Claim, Frame, OwnedPin, Reservation, Spill, Spilled};
use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use super::error::ScratchError;
use crate::block_kind::BlockKind;
use crate::shared::EngineShared;

/// State of a block that no buffer holds.
#[derive(Debug)]
enum BlockState {
    /// In the pool, or with an evictor that has not called the hook yet. With its slot if that has the same bytes.
    Memory(Option<Slot>),
    /// An evictor writes it to a slot.
    Writing,
    Slot(Slot),
    /// A thread reads it from its slot.
    Reading,
    /// The handle was dropped; the thread that evicts, writes or reads it removes it.
    Freed,
}

#[derive(Debug, Default)]
struct BlockTable {
    blocks: HashMap<u64, BlockState, RandomState>,
    /// Blocks in memory that have a slot as well.
    copies: u64,
    /// Blocks that could not be stored, and the last error.
    refusals: u64,
    refusal: Option<SlotError>,
    /// Blocks were refused, and waiters were not woken since.
    starving: bool,
}

/// Charge of the table's memory.
#[derive(Debug)]
pub(super) struct TableCharge {
    /// Blocks that exist, in buffers as well.
    pub(super) blocks: u64,
    charge: Reservation,
}

impl TableCharge {
    pub(super) fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    pub(super) fn add(&mut self, more: Reservation) {
        self.charge.merge(more);
    }

    pub(super) fn shrink_to(&mut self, bytes: u64) {
        self.charge.shrink_to(bytes);
    }
}

/// The blocks of a scratch.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) engine: Arc<EngineShared>,
    /// Number of the store in keys of blocks.
    number: u32,
    pub(super) files: SlotFiles,
    table: Mutex<BlockTable>,
    /// Notified when a block was written or read.
    changed: Condvar,
    pub(super) charge: Mutex<TableCharge>,
    next: AtomicU64,
    /// Memory of compression.
    _compression: Reservation,
}

impl Store {
    pub(super) fn new(
        engine: Arc<EngineShared>,
        files: SlotFiles,
        compression: Reservation,
        charge: Reservation,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let number = engine.next_store();
            engine.spill.add(number, Weak::<Self>::clone(this));
            Self {
                engine,
                number,
                files,
                table: Mutex::default(),
                changed: Condvar::new(),
                charge: Mutex::new(TableCharge { blocks: 0, charge }),
                next: AtomicU64::new(0),
                _compression: compression,
            }
        })
    }

    fn key(&self, id: u64) -> BlockKey {
        BlockKey {
            store: self.number,
            object: id,
            block: 0,
        }
    }

    /// Number of blocks, and of those in memory that have a slot as well.
    pub(super) fn counts(&self) -> (u64, u64) {
        let copies = self.table.lock().copies;
        (self.charge.lock().blocks, copies)
    }

    pub(super) fn refusals(&self) -> u64 {
        self.table.lock().refusals
    }

    /// Returns the last error if a block could not be stored since.
    pub(super) fn refused_since(&self, refusals: u64) -> Option<SlotError> {
        let table = self.table.lock();
        (table.refusals != refusals).then(|| table.refusal.clone())?
    }

    /// Makes a written frame a block that can be evicted. Returns its number and its handle in memory.
    pub(super) fn insert(&self, frame: Frame, len: usize) -> (u64, BlockHandle) {
        // Relaxed: only uniqueness matters.
        let id = self.next.fetch_add(1, Relaxed);
        self.table
            .lock()
            .blocks
            .insert(id, BlockState::Memory(None));
        (id, self.publish(id, frame, len).handle())
    }

    fn publish(&self, id: u64, frame: Frame, len: usize) -> OwnedPin {
        let Claim::Vacant(mut load) = self.engine.pool.claim(self.key(id)) else {
            unreachable!("only the table's entry leads to a load of a scratch block");
        };
        load.set_options(BlockKind::Scratch.options());
        load.attach(frame, len);
        load.advance(load.remaining());
        load.publish().expect("every byte is there")
    }

    /// Pins a block that is in memory.
    pub(super) fn try_pin(&self, id: u64) -> Option<OwnedPin> {
        let pin = self.engine.pool.get(self.key(id))?;
        Some(pin.into_owned())
    }

    /// Pins a block that was not evicted since it was inserted, without a lookup.
    pub(super) fn try_pin_at(&self, handle: &BlockHandle) -> Option<OwnedPin> {
        let pin = self.engine.pool.try_pin(handle)?;
        Some(pin.into_owned())
    }

    /// Pins a block; reads it from its slot if necessary. Blocks the thread.
    pub(super) fn pin(&self, id: u64, len: usize) -> Result<OwnedPin, ScratchError> {
        loop {
            if let Some(pin) = self.try_pin(id) {
                return Ok(pin);
            }
            let mut table = self.table.lock();
            let state = table.blocks.get_mut(&id).expect("the block has a handle");
            match state {
                BlockState::Slot(_) => {
                    let BlockState::Slot(slot) = std::mem::replace(state, BlockState::Reading)
                    else {
                        unreachable!("matched above");
                    };
                    drop(table);
                    return self.read(id, len, slot);
                }
                BlockState::Writing | BlockState::Reading => self.changed.wait(&mut table),
                // An evictor is about to call the hook, or has just put the block back.
                BlockState::Memory(_) | BlockState::Freed => {
                    drop(table);
                    thread::yield_now();
                }
            }
        }
    }

    fn read(&self, id: u64, len: usize, slot: Slot) -> Result<OwnedPin, ScratchError> {
        let frame = self.frame(len).and_then(|mut frame| {
            let read = self.files.read(&slot, &mut frame.as_mut_slice()[..len]);
            read.map(|()| frame).map_err(ScratchError::Unreadable)
        });
        let read = frame.map(|frame| self.publish(id, frame, len));
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let state = table.blocks.get_mut(&id).expect("its reader removes it");
        if matches!(state, BlockState::Freed) {
            table.blocks.remove(&id);
            drop(guard);
            self.free_slot(slot);
            self.engine.pool.erase(self.key(id));
            return read;
        }
        *state = if read.is_ok() {
            table.copies += 1;
            BlockState::Memory(Some(slot))
        } else {
            BlockState::Slot(slot)
        };
        drop(guard);
        self.changed.notify_all();
        read
    }

    /// Takes the frame of a block that no other thread uses; the block is not in the table any more. Blocks the thread.
    pub(super) fn take(&self, id: u64, len: usize) -> Result<Frame, ScratchError> {
        let mut pin = self.pin(id, len)?;
        let frame = loop {
            match self.engine.pool.take(pin) {
                Ok(frame) => break frame,
                // A thread that looks at all blocks holds it for a moment.
                Err(refused) => pin = refused.pin,
            }
            thread::yield_now();
        };
        let mut table = self.table.lock();
        let state = table.blocks.remove(&id);
        if let Some(BlockState::Memory(Some(slot))) = state {
            table.copies -= 1;
            drop(table);
            self.free_slot(slot);
        }
        Ok(frame)
    }

    /// Gives a block another length; its caller has the only handle of it. Returns its new handle in memory. Blocks the thread.
    pub(super) fn resize(
        &self,
        id: u64,
        len: usize,
        new_len: usize,
    ) -> Result<BlockHandle, ScratchError> {
        let deadline = Instant::now() + self.engine.admission_deadline;
        let mut pin = self.pin(id, len)?;
        let resized = loop {
            match self.engine.pool.resize(pin, new_len) {
                Ok(resized) => break resized,
                Err(refused) => pin = refused.pin,
            }
            if Instant::now() > deadline {
                return Err(self.no_memory(new_len));
            }
            // A thread that looks at all blocks holds it for a moment, or memory is short. The frame that blocks are evicted for is
            // free when the pool asks for one of its size, unless another thread is faster.
            drop(self.frame(new_len)?);
        };
        let copy = {
            let mut table = self.table.lock();
            let copy = match table.blocks.get_mut(&id) {
                Some(BlockState::Memory(copy)) => copy.take(),
                _ => unreachable!("a pinned block is in memory"),
            };
            table.copies -= u64::from(copy.is_some());
            copy
        };
        if let Some(slot) = copy {
            self.free_slot(slot);
        }
        Ok(resized.handle())
    }

    /// Removes a block, with its memory and its slot.
    pub(super) fn free(&self, id: u64) {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let Some(state) = table.blocks.get_mut(&id) else {
            return;
        };
        match std::mem::replace(state, BlockState::Freed) {
            BlockState::Slot(slot) => {
                table.blocks.remove(&id);
                drop(guard);
                self.free_slot(slot);
            }
            BlockState::Memory(copy) => {
                table.copies -= u64::from(copy.is_some());
                drop(guard);
                if let Some(slot) = copy {
                    self.free_slot(slot);
                }
                self.erase(id);
            }
            BlockState::Writing | BlockState::Reading | BlockState::Freed => {}
        }
    }

    /// Erases a freed block, unless an evictor has it and removes it.
    fn erase(&self, id: u64) {
        while self.table.lock().blocks.contains_key(&id) {
            if self.engine.pool.erase(self.key(id)) {
                self.table.lock().blocks.remove(&id);
            } else {
                thread::yield_now();
            }
        }
    }

    /// Frees a slot, and wakes waiters for memory if blocks could not be stored.
    fn free_slot(&self, slot: Slot) {
        self.files.free(slot);
        if std::mem::take(&mut self.table.lock().starving) {
            self.engine.pool.retry_waiters();
        }
    }

    /// Frees the slots of blocks that are in memory as well. Returns whether there were any.
    fn free_copies(&self) -> bool {
        let mut slots = Vec::new();
        {
            let mut table = self.table.lock();
            if table.copies > 0 {
                for state in table.blocks.values_mut() {
                    if let BlockState::Memory(copy) = state {
                        slots.extend(copy.take());
                    }
                }
                table.copies = 0;
            }
        }
        let any = !slots.is_empty();
        slots.into_iter().for_each(|slot| self.files.free(slot));
        any
    }

    /// Begins to store a block. `Some`: it needs no write, and is stored.
    fn begin_store(&self, id: u64) -> Option<bool> {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let Some(state) = table.blocks.get_mut(&id) else {
            return Some(true);
        };
        match state {
            BlockState::Memory(copy) => match copy.take() {
                Some(slot) => {
                    *state = BlockState::Slot(slot);
                    table.copies -= 1;
                    Some(true)
                }
                None => {
                    *state = BlockState::Writing;
                    None
                }
            },
            BlockState::Freed => {
                table.blocks.remove(&id);
                Some(true)
            }
            BlockState::Writing | BlockState::Slot(_) | BlockState::Reading => {
                unreachable!("a block in memory is in no other state")
            }
        }
    }

    /// Ends the write that [`Self::begin_store`] began. Returns whether the block is stored, or not needed any more.
    fn end_store(&self, id: u64, written: Result<Slot, SlotError>) -> bool {
        let mut guard = self.table.lock();
        let table = &mut *guard;
        let state = table.blocks.get_mut(&id).expect("its evictor removes it");
        if matches!(state, BlockState::Freed) {
            table.blocks.remove(&id);
            drop(guard);
            if let Ok(slot) = written {
                self.free_slot(slot);
            }
            return true;
        }
        let stored = match written {
            Ok(slot) => {
                *state = BlockState::Slot(slot);
                true
            }
            Err(error) => {
                *state = BlockState::Memory(None);
                table.refusals += 1;
                table.refusal = Some(error);
                table.starving = true;
                false
            }
        };
        drop(guard);
        self.changed.notify_all();
        stored
    }
}

impl Spill for Store {
    /// Declines all: scratch has no block of another kind.
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        Err(block)
    }

    fn store(&self, block: &Spilled) -> bool {
        let id = block.key().object;
        if let Some(stored) = self.begin_store(id) {
            return stored;
        }
        let mut written = self.files.write(block.bytes());
        let is_full = matches!(
            written,
            Err(SlotError::Full { .. } | SlotError::DiskFull { .. })
        );
        if is_full && self.free_copies() {
            written = self.files.write(block.bytes());
        }
        self.end_store(id, written)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.engine.spill.remove(self.number);
    }
}
