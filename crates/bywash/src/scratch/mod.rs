//! Blocks that a program writes and pins, in the engine's memory, evicted to temporary files when memory is short.
//!
//! For programs that embed the engine and work on more bytes than fit into memory, such as sorts and joins ([`crate::Engine::scratch`]).
//! A block is written in a [`ScratchBuffer`], which is pinned; [`ScratchBuffer::unpin`] makes it a [`ScratchBlock`], which may be
//! evicted; [`ScratchBlock::pin`] finds the bytes again. The files are [`bywash_disk::SlotFiles`].

mod error;
mod memory;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use bywash_disk::{DiskError, SlotFiles, SlotOptions};
use bywash_mem::{BlockHandle, Frame, OwnedPin, Reservation};

use crate::shared::EngineShared;
pub use error::ScratchError;
use store::Store;

/// Fraction of the memory for compression, and threads that compress at once.
const COMPRESSION_MEMORY_DIVISOR: u64 = 16;
const COMPRESSION_THREADS: u64 = 2;
/// Largest block that is compressed, as a fraction of the memory.
const COMPRESSED_BLOCK_DIVISOR: u64 = 64;
/// Length of the largest block.
const LARGEST_BLOCK: u64 = bywash_mem::MAX_FRAME as u64;

/// Settings of a [`Scratch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchOptions {
    /// Folder of the temporary files; created if it is missing. One process at a time uses it.
    pub path: PathBuf,
    /// Maximum bytes of the temporary files on the disk.
    pub size: u64,
    /// Whether blocks are compressed on their way to the disk where that pays.
    pub compress: bool,
}

impl ScratchOptions {
    /// Returns the settings of a folder and its maximum, with compression.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, size: u64) -> Self {
        Self {
            path: path.into(),
            size,
            compress: true,
        }
    }

    /// Returns the settings of the slot files of an engine with so much memory.
    pub(crate) fn slot_options(&self, memory: u64) -> SlotOptions {
        let block = (memory / COMPRESSED_BLOCK_DIVISOR).min(LARGEST_BLOCK) as usize;
        let one = SlotOptions {
            path: self.path.clone(),
            limit: self.size,
            compressors: 1,
            compressed_block: block,
        };
        let threads = memory / COMPRESSION_MEMORY_DIVISOR / one.memory();
        let threads = threads.min(COMPRESSION_THREADS) as usize;
        SlotOptions {
            compressors: if self.compress { threads } else { 0 },
            ..one
        }
    }
}

/// Counters of a [`Scratch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScratchStats {
    /// Blocks and buffers that exist.
    pub blocks: u64,
    /// Blocks in memory that are in a temporary file as well: evicting them needs no write.
    pub copies: u64,
    /// Blocks in temporary files.
    pub slots: u64,
    /// Bytes of the temporary files on the disk, free slots included. Never above `limit`.
    pub disk_bytes: u64,
    /// Maximum of `disk_bytes`.
    pub limit: u64,
    /// Blocks written to temporary files since the start.
    pub written_blocks: u64,
    /// Bytes of these blocks.
    pub written_block_bytes: u64,
    /// Bytes written for them: less if they were compressed.
    pub written_bytes: u64,
    /// Blocks read from temporary files since the start.
    pub read_blocks: u64,
    /// Attempts to evict a block that failed since the start, because the limit was reached or the disk failed.
    pub failed_writes: u64,
}

/// Blocks of one program, with temporary files in one folder; cheap to clone.
///
/// All of its memory is charged to the engine's budget, in the share of downloads: pinned buffers, blocks, and its table. The files
/// are removed with the last handle, block and buffer, and at the next start if the process was killed.
///
/// An eviction writes in the thread that needs the memory, of any request. So the folder belongs on a disk that does not hang.
///
/// ```
/// use bywash::{Engine, ScratchOptions};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = std::env::temp_dir().join(format!("scratch-{}", std::process::id()));
/// let engine = Engine::builder().memory(256 << 20).build()?;
/// let scratch = engine.scratch(&ScratchOptions::new(&folder, 10 << 30))?; // at most 10 GiB of temporary files
///
/// let mut buffer = scratch.allocate(1 << 20).await?; // pinned, and writable by its holder only
/// buffer[..4].copy_from_slice(b"rows");
/// let block = buffer.unpin(); // may be evicted from now on
/// assert_eq!(block.pin().await?[..4], *b"rows");
/// drop((block, scratch)); // the last handle removes the files
/// # std::fs::remove_dir_all(folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Scratch {
    store: Arc<Store>,
}

impl Scratch {
    pub(crate) fn open(
        engine: Arc<EngineShared>,
        options: &SlotOptions,
        compression: Reservation,
        table: Reservation,
    ) -> Result<Self, DiskError> {
        let files = SlotFiles::open(options)?;
        let store = Store::new(engine, files, compression, table);
        Ok(Self { store })
    }

    /// Allocates a pinned buffer of `len` bytes, at most 4 MiB. Its bytes are unspecified until they are written. Memory is charged in
    /// powers of two from 4 KiB.
    ///
    /// Evicts unpinned blocks if memory is short, and waits for memory until the engine's admission deadline. Runs on a blocking thread
    /// of the runtime.
    ///
    /// # Errors
    /// [`ScratchError::NotEvictable`] at once if blocks cannot be evicted because their temporary files are full or the disk fails;
    /// [`ScratchError::NoMemory`] at the deadline; [`ScratchError::TooLarge`].
    pub async fn allocate(&self, len: usize) -> Result<ScratchBuffer, ScratchError> {
        let scratch = self.clone();
        on_blocking_thread(move || scratch.allocate_blocking(len)).await
    }

    /// As [`Self::allocate`], on the calling thread, which it blocks.
    pub fn allocate_blocking(&self, len: usize) -> Result<ScratchBuffer, ScratchError> {
        let frame = self.store.frame_of_new(len)?;
        Ok(ScratchBuffer {
            store: Arc::clone(&self.store),
            frame: Some(frame),
            len,
        })
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> ScratchStats {
        let files = self.store.files.stats();
        let (blocks, copies) = self.store.counts();
        ScratchStats {
            blocks,
            copies,
            slots: files.slots,
            disk_bytes: files.allocated,
            limit: self.store.files.limit(),
            written_blocks: files.written_blocks,
            written_block_bytes: files.block_bytes,
            written_bytes: files.stored_bytes,
            read_blocks: files.read_blocks,
            failed_writes: files.failed_writes,
        }
    }
}

/// A pinned block that this handle alone reads and writes. Dereferences to its bytes; dropping it frees it.
#[must_use = "dropping it frees the block"]
pub struct ScratchBuffer {
    store: Arc<Store>,
    /// Taken by `unpin`.
    frame: Option<Frame>,
    len: usize,
}

impl ScratchBuffer {
    /// Unpins the block: from now on it may be evicted.
    pub fn unpin(mut self) -> ScratchBlock {
        let frame = self.frame.take().expect("a buffer has its frame");
        let (id, handle) = self.store.insert(frame, self.len);
        ScratchBlock {
            store: Arc::clone(&self.store),
            id: Some(id),
            handle,
            len: self.len,
        }
    }
}

impl Deref for ScratchBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let frame = self.frame.as_ref();
        frame.map_or(&[], |frame| &frame.as_slice()[..self.len])
    }
}

impl DerefMut for ScratchBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        let frame = self.frame.as_mut();
        frame.map_or(&mut [], |frame| &mut frame.as_mut_slice()[..len])
    }
}

impl AsRef<[u8]> for ScratchBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ScratchBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScratchBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        if self.frame.take().is_some() {
            self.store.discharge_entry();
        }
    }
}

/// A block that may be evicted to a temporary file. Dropping it frees its memory and its slot, for which its file may be shortened or
/// removed.
#[must_use = "dropping it frees the block"]
pub struct ScratchBlock {
    store: Arc<Store>,
    /// Taken by `pin_mut`.
    id: Option<u64>,
    /// Its handle in memory, until it is evicted.
    handle: BlockHandle,
    len: usize,
}

impl ScratchBlock {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn id(&self) -> u64 {
        self.id.expect("a block has its number until it is dropped")
    }

    /// Pins the block if it is in memory.
    fn try_pin(&self) -> Option<OwnedPin> {
        let pin = self.store.try_pin_at(&self.handle);
        pin.or_else(|| self.store.try_pin(self.id()))
    }

    /// Pins the block for reading, in memory or read from its temporary file. Any number of pins at a time.
    ///
    /// A block that is not in memory is read on a blocking thread of the runtime; it keeps its slot until it is written again, or
    /// until the temporary files are full.
    ///
    /// # Errors
    /// Errors of [`Scratch::allocate`]; [`ScratchError::Unreadable`] if the read failed or found other bytes than were written. The
    /// block is as it was.
    pub async fn pin(&self) -> Result<ScratchPin<'_>, ScratchError> {
        let (id, len) = (self.id(), self.len);
        let pin = match self.try_pin() {
            Some(pin) => pin,
            None => {
                let store = Arc::clone(&self.store);
                on_blocking_thread(move || store.pin(id, len)).await?
            }
        };
        Ok(ScratchPin { pin, _block: self })
    }

    /// As [`Self::pin`], on the calling thread, which it blocks.
    pub fn pin_blocking(&self) -> Result<ScratchPin<'_>, ScratchError> {
        let pin = match self.try_pin() {
            Some(pin) => pin,
            None => self.store.pin(self.id(), self.len)?,
        };
        Ok(ScratchPin { pin, _block: self })
    }

    /// Gives the block another length, at most 4 MiB: bytes beyond it are cut off, further ones are zeros. In place where its memory
    /// fits the new length. Its slot is freed.
    ///
    /// # Errors
    /// Errors of [`Scratch::allocate`] and [`Self::pin`]. The block is then as it was.
    pub async fn resize(self, len: usize) -> Result<Self, ScratchPinError> {
        let resized = on_blocking_thread(move || {
            let mut block = self;
            let resized = block.resize_blocking(len);
            Ok((block, resized))
        });
        match resized.await {
            Ok((block, Ok(()))) => Ok(block),
            Ok((block, Err(error))) => Err(ScratchPinError {
                block: Some(block),
                error,
            }),
            Err(error) => Err(ScratchPinError { block: None, error }),
        }
    }

    /// As [`Self::resize`], on the calling thread, which it blocks.
    pub fn resize_blocking(&mut self, len: usize) -> Result<(), ScratchError> {
        self.handle = self.store.resize(self.id(), self.len, len)?;
        self.len = len;
        Ok(())
    }

    /// Pins the block for writing, without a copy. Its slot is freed.
    ///
    /// # Errors
    /// Errors of [`Self::pin`], with the block. Dropping the future frees the block.
    pub async fn pin_mut(self) -> Result<ScratchBuffer, ScratchPinError> {
        on_blocking_thread(move || Ok(self.pin_mut_blocking()))
            .await
            .unwrap_or_else(|error| Err(ScratchPinError { block: None, error }))
    }

    /// As [`Self::pin_mut`], on the calling thread, which it blocks.
    pub fn pin_mut_blocking(mut self) -> Result<ScratchBuffer, ScratchPinError> {
        match self.store.take(self.id(), self.len) {
            Ok(frame) => {
                self.id = None;
                Ok(ScratchBuffer {
                    store: Arc::clone(&self.store),
                    frame: Some(frame),
                    len: self.len,
                })
            }
            Err(error) => Err(ScratchPinError {
                block: Some(self),
                error,
            }),
        }
    }
}

impl fmt::Debug for ScratchBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScratchBlock")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for ScratchBlock {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.store.free(id);
            self.store.discharge_entry();
        }
    }
}

/// A block pinned for reading. Dereferences to its bytes.
#[must_use = "dropping it unpins the block"]
pub struct ScratchPin<'a> {
    pin: OwnedPin,
    _block: &'a ScratchBlock,
}

impl Deref for ScratchPin<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pin
    }
}

impl AsRef<[u8]> for ScratchPin<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ScratchPin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScratchPin")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A block was not pinned for writing, or not resized.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ScratchPinError {
    /// The block, as it was. `None` only if the runtime is shutting down.
    pub block: Option<ScratchBlock>,
    /// The reason.
    #[source]
    pub error: ScratchError,
}

impl From<ScratchPinError> for ScratchError {
    fn from(failed: ScratchPinError) -> Self {
        failed.error
    }
}

async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ScratchError> + Send + 'static,
) -> Result<T, ScratchError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(ScratchError::ShuttingDown),
    }
}
