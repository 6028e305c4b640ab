//! A body in pieces that its consumer drops one by one, however slow the consumer is.
//!
//! A block goes to the consumer whole and uncopied while there are loans to be had ([`super::loans`]). Otherwise the body copies
//! small pieces out of it, one at a time, and keeps the rest of the block for the next. A consumer that takes none for a while
//! loses that rest when another request waits for memory. Its next pieces come from the pool, if the block is still there, or
//! from the origin by a ranged GET for each, without a block; so each byte is fetched at most twice. From the next block on the
//! body reads as before. A body that waits, be it for memory or for its consumer, holds no block then, so no two bodies wait for
//! each other.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash_mem::BlockReader;
use futures::TryStreamExt;
use object_store::Result;
use object_store::path::Path;
use tokio::time::timeout;

use super::body::Body;
use super::loans::{CopyBuffer, Loan};
use super::open::is_present;
use super::ranged;
use crate::bucket::Shared;
use crate::retry::{Retries, is_transient, stalled, unavailable};
use crate::versions::Version;

/// How long a consumer may keep a piece before the rest of its block serves a request that waits for memory. A client that takes
/// 4 MB/s empties a send buffer of 128 KiB meanwhile.
const RELEASE_AFTER: Duration = Duration::from_millis(30);

/// An extension of [`object_store::GetOptions`] for a caller that reads the body piece by piece: it drops each piece before it
/// needs the next one, and polls the body while it has one. Such a body may be slow and holds little memory: beyond half of the
/// memory for downloads, blocks are not lent to such callers but copied in small pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceByPiece;

/// What a body begins with: the loan of its first block, or a buffer to copy that. Taken before the block is loaded: a block that
/// had to wait for a buffer could be evicted meanwhile.
pub(super) enum Admission {
    Loan(Loan),
    Buffer(CopyBuffer),
}

impl Admission {
    /// Waits for memory if there is neither, until the admission deadline.
    ///
    /// # Errors
    /// [`crate::EngineError::SlowDown`] at the deadline.
    pub(super) async fn wait(bucket: &Shared, path: &Path) -> Result<Self> {
        let engine = &bucket.engine;
        if let Some(loan) = engine.loans.lend(bucket.block_size as usize) {
            return Ok(Self::Loan(loan));
        }
        Ok(Self::Buffer(CopyBuffer::new(engine, path).await?))
    }
}

/// A body for a caller that reads [`PieceByPiece`].
pub(super) struct Pieces {
    body: Body,
    /// The next byte for the consumer. The body may have read further.
    at: u64,
    /// The loan of the block being read.
    loan: Option<(u32, Arc<Loan>)>,
    /// Once a block could not be lent.
    buffer: Option<CopyBuffer>,
    /// What the body has read of the block from `at` on.
    kept: Option<Kept>,
    /// The block being copied, and whether what was kept of it was given up.
    copying: Option<Copying>,
}

#[derive(Debug, Clone, Copy)]
struct Copying {
    block: u32,
    lost: bool,
}

/// The rest of a block, or of what has arrived of it, and the load that brings more.
struct Kept {
    bytes: Bytes,
    following: Option<BlockReader>,
}

/// A block's bytes at the consumer.
struct Lent {
    bytes: Bytes,
    _loan: Arc<Loan>,
}

impl AsRef<[u8]> for Lent {
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
            kept: None,
            copying: None,
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

    /// Whether all of the range was handed out.
    pub(super) fn is_done(&self) -> bool {
        self.kept.is_none() && self.body.is_done()
    }

    /// The next bytes, at most to the end of one block; `None` after the range's end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.is_done() {
            return Ok(None);
        }
        let block = self.block();
        if self.copying.is_some_and(|copying| copying.block != block) {
            self.copying = None;
        }
        let bytes = match self.borrow(block) {
            Some(loan) => self.lend(loan).await?,
            None => self.copy(block).await?,
        };
        self.at += bytes.len() as u64;
        let bucket = self.body.bucket();
        bucket.counters.bytes(bytes.len() as u64);
        Ok(Some(bytes))
    }

    fn block(&self) -> u32 {
        (self.at / self.body.bucket().block_size) as u32
    }

    /// The loan for `block`; none while it is copied, or when there is none to be had.
    fn borrow(&mut self, block: u32) -> Option<Arc<Loan>> {
        if self.copying.is_some() {
            return None;
        }
        if let Some((lent, loan)) = &self.loan
            && *lent == block
        {
            return Some(Arc::clone(loan));
        }
        // The last block's ends here, or with its bytes.
        self.loan = None;
        let length = self.body.block_len(block);
        let loan = Arc::new(self.body.bucket().engine.loans.lend(length)?);
        self.loan = Some((block, Arc::clone(&loan)));
        Some(loan)
    }

    /// Whether the body has more to read of the block it has read from.
    fn is_inside(&self) -> bool {
        let offset = self.body.position() % self.body.bucket().block_size;
        !self.body.is_done() && offset > 0
    }

    /// Hands out what the body reads next, uncopied.
    async fn lend(&mut self, loan: Arc<Loan>) -> Result<Bytes> {
        let bytes = self.body.advance().await?.unwrap_or_default();
        if !self.is_inside() {
            self.body.following().take();
            self.loan = None;
        }
        Ok(Bytes::from_owner(Lent { bytes, _loan: loan }))
    }

    /// Copies the next piece.
    async fn copy(&mut self, block: u32) -> Result<Bytes> {
        self.copying.get_or_insert(Copying { block, lost: false });
        self.await_buffer().await?;
        let lost = self.copying.is_some_and(|copying| copying.lost);
        let (pool, version) = (&self.body.bucket().engine.pool, self.body.version());
        if self.kept.is_none() && lost && !is_present(pool, version, block) {
            return self.fetch(block).await;
        }
        let kept = match self.kept.take() {
            Some(kept) => {
                *self.body.following() = kept.following;
                kept.bytes
            }
            None => Bytes::new(),
        };
        let mut kept = match kept.is_empty() {
            true => self.body.advance().await?.unwrap_or_default(),
            false => kept,
        };
        let Some(buffer) = &self.buffer else {
            return Ok(kept);
        };
        let mut piece = buffer.take();
        let length = kept.len().min(buffer.size());
        piece.extend_from_slice(&kept.split_to(length));
        let piece = buffer.hand_out(piece);
        let following = self.body.following().take().filter(|_| self.is_inside());
        if !kept.is_empty() || following.is_some() {
            self.kept = Some(Kept {
                bytes: kept,
                following,
            });
        }
        Ok(piece)
    }

    /// Waits until the buffer is here, and gives up what is kept if that takes long and others wait for memory.
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
        while self.kept.is_some() && timeout(RELEASE_AFTER, buffer.returned()).await.is_err() {
            slow = true;
            if engine.pool.budget().waiting() > 0 {
                self.kept = None;
                self.body.seek(self.at);
                self.copying = self.copying.map(|copying| Copying {
                    lost: true,
                    ..copying
                });
            }
        }
        buffer.returned().await;
        // A consumer that keeps up gets more at once; so does one whose next piece costs a request.
        if !slow || self.kept.is_none() {
            buffer.try_grow(&engine);
        }
        Ok(())
    }

    /// Fetches the next piece from the origin into the buffer, and no more.
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
        let fetched = fetch(&bucket, &version, self.at..end, &mut piece).await;
        if let Err(error) = fetched {
            buffer.put_back(piece);
            return Err(error);
        }
        self.body.seek(end);
        Ok(buffer.hand_out(piece))
    }
}

/// Appends `range` of `version` to `bytes`, going on at the byte reached after a failure.
async fn fetch(
    bucket: &Arc<Shared>,
    version: &Arc<Version>,
    range: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let policy = bucket.engine.retry;
    let mut retries = Retries::new(policy);
    loop {
        let before = bytes.len();
        let from = range.start + before as u64;
        let error = match receive(bucket, version, from..range.end, bytes).await {
            Ok(()) => return Ok(()),
            Err(error) => ranged::classify(version, error),
        };
        if super::is_version_change(&error) {
            bucket.versions.forget(version);
        }
        if !is_transient(&error) {
            return Err(error);
        }
        if bytes.len() > before {
            retries.progress();
        }
        tracing::debug!(object = %version.meta.location, %error, "piece failed, continuing at the byte reached");
        if !retries.again().await {
            return Err(unavailable("read", &version.meta.location, error));
        }
    }
}

/// One ranged GET. What has arrived when it fails stays.
async fn receive(
    bucket: &Arc<Shared>,
    version: &Arc<Version>,
    range: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let policy = bucket.engine.retry;
    let _turn = bucket.shard_turns.acquire().await.ok();
    let mut left = (range.end - range.start) as usize;
    let mut body = ranged::ask(bucket, version, range).await?;
    while left > 0 {
        let next = timeout(policy.stall, body.try_next()).await;
        let Some(piece) = next.map_err(|_| stalled(policy))?? else {
            let detail = "the body ended early".to_owned();
            return Err(ranged::bad_answer(version, detail));
        };
        bucket.counters.origin_bytes(piece.len() as u64);
        version.cost.bytes(piece.len() as u64);
        if piece.len() > left {
            let detail = "it sends more than it was asked for".to_owned();
            return Err(ranged::bad_answer(version, detail));
        }
        bytes.extend_from_slice(&piece);
        left -= piece.len();
    }
    Ok(())
}
