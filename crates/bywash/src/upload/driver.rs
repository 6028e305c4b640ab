//! Sends chunks to a session: the one loop that does so. After a failure it requests the session's status and
//! continues exactly at the acknowledged offset.
//!
//! A store that takes chunks in order is sent one at a time by the upload's own driver. Of one that takes them in
//! parallel, each chunk of the window ([`super::window`]) has a driver; the upload's own driver records its result.

mod end;

use bytes::{Buf, Bytes};
use bywash_store::{Chunk, ContentDigest, SessionStatus, StoredRange};
use object_store::Result;

use super::checksum::{combine, crc32c};
use super::session_client::{SessionClient, TransferStats, accepted_nothing, matches};
use crate::retry::is_transient;

/// Progress of an upload with an open session.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    pub(super) client: SessionClient,
    /// Offset below which the store has all bytes.
    pub(super) acknowledged: u64,
    /// CRC32C of the bytes below `acknowledged`, each range combined once.
    pub(super) crc32c: u32,
    pub(super) stats: TransferStats,
    /// Whether the store's offset is unknown: the last response was lost, or another process sent before. The status
    /// is requested before more is sent.
    in_doubt: bool,
    /// Whether the upload was taken over: the store may have more than this writer sent.
    taken_over: bool,
    /// Whether bytes were skipped because the store had them, without a digest. The completed object must then verify
    /// them.
    skipped: bool,
    /// Whether the taken-over session has ended: nothing is sent any more, and the object is compared with the source
    /// instead.
    pub(super) verify_only: bool,
    /// Ranges that the store reported last, if it accepts chunks in parallel.
    stored: Vec<StoredRange>,
}

impl Driver {
    pub(super) fn new(client: SessionClient) -> Self {
        Self {
            in_doubt: client.session().may_have_chunks(),
            client,
            acknowledged: 0,
            crc32c: 0,
            stats: TransferStats::default(),
            taken_over: false,
            skipped: false,
            verify_only: false,
            stored: Vec::new(),
        }
    }

    /// Returns the driver of one chunk of several in flight. `again`: the store may have the chunk already.
    pub(super) fn of_chunk(&self, chunk: &Chunk, again: bool) -> Self {
        Self {
            acknowledged: chunk.offset,
            stats: TransferStats {
                reached: if again { chunk.range().end } else { 0 },
                ..TransferStats::default()
            },
            in_doubt: again,
            ..Self::new(self.client.clone())
        }
    }

    /// Returns whether the store last reported exactly this chunk, with a matching digest.
    pub(super) fn has(&self, chunk: &Chunk) -> bool {
        self.stored.iter().any(|stored| matches(stored, chunk))
    }

    /// Requests the stored ranges if they are unknown, before chunks are sent in parallel.
    pub(super) async fn refresh_stored(&mut self) -> Result<()> {
        let mut retries = self.client.retries();
        while self.in_doubt && !self.verify_only {
            match self.stored_ranges().await {
                Ok(Some(stored)) => {
                    self.stored = stored;
                    self.in_doubt = false;
                }
                Ok(None) => {}
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => {
                    if !retries.back_off().await {
                        return Err(self.client.retries_exhausted(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Requests the stored ranges. Returns `None` if a session that was taken over has ended: the previous writer may
    /// have completed it, so the object is only verified from here on.
    ///
    /// # Errors
    /// Why the session ended, if there is no object.
    async fn stored_ranges(&mut self) -> Result<Option<Vec<StoredRange>>> {
        let ended = match self.client.status().await? {
            SessionStatus::Open(stored) => return Ok(Some(stored)),
            SessionStatus::Finished(_) => self.client.ended_early(),
            SessionStatus::Gone => self.client.lost(),
        };
        self.verify_only = self.taken_over && self.client.stat().await?.is_some();
        if self.verify_only {
            Ok(None)
        } else {
            Err(ended)
        }
    }

    /// Records that the store has the bytes up to `end`, with this CRC32C.
    pub(super) fn fold(&mut self, crc: u32, end: u64) {
        self.crc32c = combine(self.crc32c, crc, end - self.acknowledged);
        self.acknowledged = end;
        self.stats.reached = self.stats.reached.max(end);
        self.stored.retain(|stored| stored.range.start >= end);
    }

    /// Continues where another writer was.
    pub(super) fn taken_over(client: SessionClient, acknowledged: u64, crc32c: u32) -> Self {
        Self {
            acknowledged,
            crc32c,
            stats: TransferStats {
                reached: acknowledged,
                ..TransferStats::default()
            },
            in_doubt: true,
            taken_over: true,
            ..Self::new(client)
        }
    }

    /// Sends a chunk that begins at `acknowledged`, until the store has all of it.
    ///
    /// Cancelled by dropping: `acknowledged` is then exact or in doubt, and the status is requested before anything
    /// is sent again.
    pub(super) async fn deliver(&mut self, chunk: &mut Chunk) -> Result<()> {
        let mut retries = self.client.retries();
        while !chunk.pieces.is_empty() {
            if self.verify_only {
                return self.record_ack(chunk, chunk.range().end);
            }
            let before = self.acknowledged;
            let failure = match self.attempt(chunk).await {
                Ok(()) if self.acknowledged > before => {
                    retries.progress();
                    continue;
                }
                Ok(()) if self.verify_only => continue,
                // A store that accepts nothing is not polled in a tight loop.
                Ok(()) => accepted_nothing(chunk),
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => error,
            };
            if self.acknowledged > before {
                retries.progress();
            }
            tracing::debug!(object = %self.client.path, offset = self.acknowledged, error = %failure, "upload failed, retrying");
            if !retries.back_off().await {
                return Err(self.client.retries_exhausted(failure));
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, chunk: &mut Chunk) -> Result<()> {
        if self.has(chunk) {
            return self.record_ack(chunk, chunk.range().end);
        }
        if self.in_doubt {
            let Some(stored) = self.stored_ranges().await? else {
                return Ok(());
            };
            self.rewind(chunk, &stored)?;
            if chunk.pieces.is_empty() {
                return Ok(());
            }
        }
        self.in_doubt = true;
        let before = self.stats;
        self.stats.count_sent(&chunk.range());
        let end = self.client.send(chunk).await?;
        if self.client.is_comparing() {
            // Nothing was sent.
            self.stats = before;
        }
        self.in_doubt = false;
        self.record_ack(chunk, end)
    }

    /// Continues at the offset that the store reported.
    fn rewind(&mut self, chunk: &mut Chunk, stored: &[StoredRange]) -> Result<()> {
        let range = chunk.range();
        if self.client.rule.parallel {
            self.in_doubt = false;
            self.stored = stored.to_vec();
            let has = self.has(chunk);
            return self.record_ack(chunk, if has { range.end } else { range.start });
        }
        let (end, digest) = match stored {
            [] => (0, None),
            [only] if only.range.start == 0 => (only.range.end, only.digest),
            _ => {
                let detail = "the store keeps bytes that are not the first ones".to_owned();
                return Err(self.client.damaged(detail));
            }
        };
        let ahead = self.taken_over && end > range.end;
        let unsent = self.taken_over && end > self.stats.reached;
        // The status beyond this chunk is requested again with the next one.
        self.in_doubt = ahead;
        self.record_ack(chunk, if ahead { range.end } else { end })?;
        match digest {
            Some(ContentDigest::Crc32c(crc)) if !ahead && crc != self.crc32c => {
                Err(self.client.damaged(format!(
                    "the {end} bytes that the store keeps differ from the bytes sent"
                )))
            }
            Some(ContentDigest::Crc32c(_)) if !ahead => {
                self.skipped = false;
                Ok(())
            }
            _ => {
                self.skipped |= unsent;
                Ok(())
            }
        }
    }

    /// Records that the store has everything below `end`. Combines the CRC of the new part, once, and leaves the rest
    /// in the chunk.
    fn record_ack(&mut self, chunk: &mut Chunk, end: u64) -> Result<()> {
        let range = chunk.range();
        if end < range.start {
            return Err(self.client.damaged(format!(
                "the store keeps {end} bytes, it had acknowledged {}",
                range.start
            )));
        }
        if end > range.end {
            return Err(self.client.stored_too_much(end, range.end));
        }
        if end == range.end {
            self.fold(chunk.crc32c, end);
            chunk.pieces.clear();
        } else if end > range.start && self.client.rule.parallel {
            // A part is stored whole or not at all.
            return Ok(());
        } else if end > range.start {
            let stored = split_front(&mut chunk.pieces, end - range.start);
            self.fold(crc32c(&stored), end);
            chunk.crc32c = crc32c(&chunk.pieces);
        }
        chunk.offset = end;
        Ok(())
    }
}

/// Removes and returns the first `count` bytes.
fn split_front(pieces: &mut Vec<Bytes>, mut count: u64) -> Vec<Bytes> {
    let mut front = Vec::new();
    while count > 0 {
        let Some(first) = pieces.first_mut() else {
            break;
        };
        let take = count.min(first.len() as u64) as usize;
        front.push(first.split_to(take));
        count -= take as u64;
        if !first.has_remaining() {
            pieces.remove(0);
        }
    }
    front
}
