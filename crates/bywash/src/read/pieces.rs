//! Bodies read piece by piece, with bounded memory however slow their consumers are.
//!
//! A block is passed to the consumer whole and uncopied while a loan is available ([`super::loans`]). Otherwise the body
//! copies small pieces out of it, one at a time, and keeps the rest of the block for the next piece. If the consumer
//! takes none for a while and another request waits for memory, that rest is released. The next pieces then come from
//! the pool if the block is still resident, or from the origin by a ranged GET for each, without a block. So each
//! byte is fetched at most twice, and from the next block on the body reads as before. A body that waits, for memory
//! or for its consumer, holds no block, so no two bodies wait for each other.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash_mem::BlockReader;
use object_store::Result;
use object_store::path::Path;
use tokio::time::timeout;

use super::body::Body;
use super::copy_buffer::CopyBuffer;
use super::fetch::{Sink, fetch};
use super::loans::Loan;
use super::plan::is_present;
use crate::shared::BucketShared;

/// Time that a consumer may keep a piece before the rest of its block is released for a waiting request. A client
/// that takes 4 MB/s empties a send buffer of 128 KiB in this time.
const RELEASE_AFTER: Duration = Duration::from_millis(30);

/// Extension of [`object_store::GetOptions`] for a caller that reads the body piece by piece: it drops each piece
/// before it needs the next, and polls the body while it holds one. Such a body may be slow and holds little memory.
/// Beyond half of the downloads' memory its blocks are copied in small pieces instead of lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceByPiece;

/// Memory that a body starts with: the loan of its first block, or a buffer for copies. Reserved before the block is
/// loaded, which could otherwise be evicted while the body waits for a buffer.
pub(super) enum Admission {
    Loan(Loan),
    Buffer(CopyBuffer),
}

impl Admission {
    /// Takes a loan or a buffer; waits for memory until the admission deadline if there is neither.
    ///
    /// # Errors
    /// [`crate::EngineError::SlowDown`] at the deadline.
    pub(super) async fn wait(bucket: &BucketShared, path: &Path) -> Result<Self> {
        let engine = &bucket.engine;
        if let Some(loan) = engine.loans.lend(bucket.block_size as usize) {
            return Ok(Self::Loan(loan));
        }
        Ok(Self::Buffer(CopyBuffer::new(engine, path).await?))
    }
}

/// Body for a caller that reads [`PieceByPiece`].
pub(super) struct Pieces {
    body: Body,
    /// The next byte for the consumer. The body may have read further.
    at: u64,
    /// The loan of the block being read.
    loan: Option<(u32, Arc<Loan>)>,
    /// Set once a block could not be lent.
    buffer: Option<CopyBuffer>,
    /// Bytes of the block from `at` on that the body has read.
    remainder: Option<Remainder>,
    /// The block being copied, and whether its rest was released.
    copying: Option<Copying>,
    /// Whether pieces were fetched without a block.
    fetched: bool,
}

#[derive(Debug, Clone, Copy)]
struct Copying {
    block: u32,
    lost: bool,
}

/// Rest of a block, or of its bytes so far, and the load that brings more.
struct Remainder {
    bytes: Bytes,
    following: Option<BlockReader>,
}

/// Bytes of a block lent to the consumer.
struct LentBytes {
    bytes: Bytes,
    _loan: Arc<Loan>,
}

impl AsRef<[u8]> for LentBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Pieces {
    pub(super) fn new(body: Body, admission: Admission) -> Self {
        let mut pieces = Self {
            at: body.position(),
            body,
            loan: None,
            buffer: None,
            remainder: None,
            copying: None,
            fetched: false,
        };
        let block = pieces.block();
        match admission {
            Admission::Loan(mut loan) => {
                loan.shrink_to(pieces.body.block_len(block));
                pieces.loan = Some((block, Arc::new(loan)));
            }
            Admission::Buffer(buffer) => pieces.buffer = Some(buffer),
        }
        pieces
    }

    /// Whether all of the range was returned.
    pub(super) fn is_done(&self) -> bool {
        self.remainder.is_none() && self.body.is_done()
    }

    pub(super) fn body(&self) -> &Body {
        &self.body
    }

    /// Whether all bytes so far were read from blocks.
    pub(super) fn is_of_blocks(&self) -> bool {
        !self.fetched
    }

    /// Returns the next bytes, at most to the end of one block; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.is_done() {
            return Ok(None);
        }
        let block = self.block();
        if self.copying.is_some_and(|copying| copying.block != block) {
            self.copying = None;
        }
        let bytes = match self.loan(block) {
            Some(loan) => self.lend(loan).await?,
            None => self.copy(block).await?,
        };
        self.at += bytes.len() as u64;
        self.body.count_bytes(bytes.len());
        Ok(Some(bytes))
    }

    fn block(&self) -> u32 {
        (self.at / self.body.bucket().block_size) as u32
    }

    /// Returns the loan for `block`; `None` while it is copied, or if there is no loan available.
    fn loan(&mut self, block: u32) -> Option<Arc<Loan>> {
        if self.copying.is_some() {
            return None;
        }
        if let Some((lent, loan)) = &self.loan
            && *lent == block
        {
            return Some(Arc::clone(loan));
        }
        let length = self.body.block_len(block);
        if let Some((lent, loan)) = &mut self.loan
            && let Some(free) = Arc::get_mut(loan)
        {
            // The consumer has returned the last block: its loan continues with this one, which is as long or shorter.
            free.shrink_to(length);
            *lent = block;
            return Some(Arc::clone(loan));
        }
        // The body's reference to the last loan ends here; the consumer's ends with its bytes.
        self.loan = None;
        let loan = Arc::new(self.body.bucket().engine.loans.lend(length)?);
        self.loan = Some((block, Arc::clone(&loan)));
        Some(loan)
    }

    /// Whether the body has more to read of the block it last read from.
    fn is_inside(&self) -> bool {
        let offset = self.body.position() % self.body.bucket().block_size;
        !self.body.is_done() && offset > 0
    }

    /// Returns the next bytes of the body uncopied.
    async fn lend(&mut self, loan: Arc<Loan>) -> Result<Bytes> {
        let bytes = self.body.advance().await?.unwrap_or_default();
        if !self.is_inside() {
            self.body.following().take();
        }
        Ok(Bytes::from_owner(LentBytes { bytes, _loan: loan }))
    }

    /// Returns a copy of the next bytes.
    async fn copy(&mut self, block: u32) -> Result<Bytes> {
        self.copying.get_or_insert(Copying { block, lost: false });
        self.await_buffer().await?;
        let lost = self.copying.is_some_and(|copying| copying.lost);
        let (pool, version) = (&self.body.bucket().engine.pool, self.body.version());
        if self.remainder.is_none() && lost && !is_present(pool, version, block) {
            return self.fetch(block).await;
        }
        let remainder = match self.remainder.take() {
            Some(remainder) => {
                *self.body.following() = remainder.following;
                remainder.bytes
            }
            None => Bytes::new(),
        };
        let mut remainder = if remainder.is_empty() {
            self.body.advance().await?.unwrap_or_default()
        } else {
            remainder
        };
        let Some(buffer) = &self.buffer else {
            return Ok(remainder);
        };
        let mut piece = buffer.take();
        let length = remainder.len().min(buffer.size());
        piece.extend_from_slice(&remainder.split_to(length));
        let piece = buffer.hand_out(piece);
        let following = self.body.following().take().filter(|_| self.is_inside());
        if !remainder.is_empty() || following.is_some() {
            self.remainder = Some(Remainder {
                bytes: remainder,
                following,
            });
        }
        Ok(piece)
    }

    /// Waits for the buffer. Releases the rest of the block if that takes long and a request waits for memory.
    async fn await_buffer(&mut self) -> Result<()> {
        let engine = Arc::clone(&self.body.bucket().engine);
        let Some(buffer) = &mut self.buffer else {
            self.buffer = CopyBuffer::try_new(&engine);
            if self.buffer.is_none() {
                // A body that waits for memory holds none.
                self.body.seek(self.at);
                let object = self.body.version().meta.location.clone();
                self.buffer = Some(CopyBuffer::new(&engine, &object).await?);
            }
            return Ok(());
        };
        let mut slow = false;
        while self.remainder.is_some() && timeout(RELEASE_AFTER, buffer.returned()).await.is_err() {
            slow = true;
            if engine.pool.budget().waiting() > 0 {
                self.remainder = None;
                self.body.seek(self.at);
                self.copying = self.copying.map(|copying| Copying {
                    lost: true,
                    ..copying
                });
            }
        }
        buffer.returned().await;
        // Grows for a consumer that keeps up, and where its next piece costs a request.
        if !slow || self.remainder.is_none() {
            buffer.try_grow(&engine);
        }
        Ok(())
    }

    /// Fetches only the next piece from the origin, into the buffer.
    async fn fetch(&mut self, block: u32) -> Result<Bytes> {
        let (bucket, version) = (
            Arc::clone(self.body.bucket()),
            Arc::clone(self.body.version()),
        );
        let Some(buffer) = &self.buffer else {
            return Ok(Bytes::new());
        };
        let end = (u64::from(block) + 1) * bucket.block_size;
        let end = end.min(self.body.end()).min(self.at + buffer.size() as u64);
        let mut piece = buffer.take();
        let mut sink = PieceSink {
            range: self.at..end,
            bytes: &mut piece,
        };
        let fetched = fetch(&bucket, &version, "read", &mut sink, None).await;
        if let Err(error) = fetched {
            buffer.put_back(piece);
            return Err(error);
        }
        self.body.seek(end);
        self.fetched = true;
        Ok(buffer.hand_out(piece))
    }
}

/// Destination of a fetch of one piece.
struct PieceSink<'a> {
    range: Range<u64>,
    /// Bytes of the range received so far.
    bytes: &'a mut Vec<u8>,
}

impl Sink for PieceSink<'_> {
    fn missing(&self) -> Range<u64> {
        self.range.start + self.bytes.len() as u64..self.range.end
    }

    fn write(&mut self, bytes: &[u8]) -> Result<bool> {
        let Range { start, end } = self.missing();
        let missing = (end - start) as usize;
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(missing)]);
        Ok(bytes.len() >= missing)
    }
}
