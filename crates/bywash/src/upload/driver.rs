//! Brings chunks to a session, whatever goes wrong on the way: after a failure it asks what the store keeps, and goes on exactly
//! there.

mod end;

use bytes::{Buf, Bytes};
use object_store::{Error, Result};

use super::checksum::{combine, crc32c};
use super::link::{Link, Tally, kept_nothing, vouches};
use super::{Chunk, Digest, Kept, SessionStatus};
use crate::retry::is_transient;

/// What is known of an upload whose session is open.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    pub(super) link: Link,
    /// Everything below is kept by the store.
    pub(super) acknowledged: u64,
    /// CRC32C of what is below `acknowledged`, each range folded once.
    pub(super) crc32c: u32,
    pub(super) tally: Tally,
    /// A request went out whose answer is not known, or another process sent before: the store is asked before more is sent.
    unsure: bool,
    /// Taken over: the store may keep more than this writer ever sent.
    taken_over: bool,
    /// Bytes were not sent because the store had them, without a digest: the end must prove them.
    skipped: bool,
    /// Taken over, and ended by somebody else: nothing is sent any more, the object must prove to be what this writer was given.
    pub(super) proving: bool,
    /// What the store kept when it was asked last, if it takes chunks side by side.
    kept: Vec<Kept>,
}

impl Driver {
    pub(super) fn new(link: Link) -> Self {
        Self {
            link,
            acknowledged: 0,
            crc32c: 0,
            tally: Tally::default(),
            unsure: false,
            taken_over: false,
            skipped: false,
            proving: false,
            kept: Vec::new(),
        }
    }

    /// Whether the store vouched for just this chunk when it was asked last.
    pub(super) fn has(&self, chunk: &Chunk) -> bool {
        self.kept.iter().any(|kept| vouches(kept, chunk))
    }

    /// Asks what the store keeps, if that is not known, before chunks go side by side.
    pub(super) async fn ask(&mut self) -> Result<()> {
        let mut retries = self.link.retries();
        while self.unsure {
            match self.link.status().await {
                Ok(SessionStatus::Open(kept)) => {
                    self.kept = kept;
                    self.unsure = false;
                }
                Ok(SessionStatus::Finished(_)) => {
                    return self.prove_only(self.link.ended_early()).await;
                }
                Ok(SessionStatus::Gone) => return self.prove_only(self.link.lost()).await,
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => {
                    if !retries.again().await {
                        return Err(self.link.gave_up(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// The store keeps the next bytes, up to `end`, of this CRC32C.
    pub(super) fn fold(&mut self, crc: u32, end: u64) {
        self.crc32c = combine(self.crc32c, crc, end - self.acknowledged);
        self.acknowledged = end;
        self.tally.reached = self.tally.reached.max(end);
        self.kept.retain(|kept| kept.range.start >= end);
    }

    /// Goes on where another writer was.
    pub(super) fn taken_over(link: Link, acknowledged: u64, crc32c: u32) -> Self {
        Self {
            acknowledged,
            crc32c,
            tally: Tally {
                reached: acknowledged,
                ..Tally::default()
            },
            unsure: true,
            taken_over: true,
            ..Self::new(link)
        }
    }

    /// Sends a chunk that begins at `acknowledged`, until the store keeps all of it.
    ///
    /// Cancel by dropping: `acknowledged` says how far it came, and the store is asked before anything is sent again.
    pub(super) async fn deliver(&mut self, chunk: &mut Chunk) -> Result<()> {
        let mut retries = self.link.retries();
        while !chunk.pieces.is_empty() {
            if self.proving {
                return self.settle(chunk, chunk.range().end);
            }
            let before = self.acknowledged;
            let failure = match self.attempt(chunk).await {
                Ok(()) if self.acknowledged > before => {
                    retries.progress();
                    continue;
                }
                Ok(()) if self.proving => continue,
                // A store that takes nothing is not asked in a tight loop.
                Ok(()) => kept_nothing(chunk),
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => error,
            };
            if self.acknowledged > before {
                retries.progress();
            }
            tracing::debug!(object = %self.link.path, offset = self.acknowledged, error = %failure, "upload failed, trying again");
            if !retries.again().await {
                return Err(self.link.gave_up(failure));
            }
        }
        Ok(())
    }

    async fn attempt(&mut self, chunk: &mut Chunk) -> Result<()> {
        if self.has(chunk) {
            return self.settle(chunk, chunk.range().end);
        }
        if self.unsure {
            match self.link.status().await? {
                SessionStatus::Open(kept) => self.rewind(chunk, &kept)?,
                SessionStatus::Finished(_) => {
                    return self.prove_only(self.link.ended_early()).await;
                }
                SessionStatus::Gone => return self.prove_only(self.link.lost()).await,
            }
            if chunk.pieces.is_empty() {
                return Ok(());
            }
        }
        self.unsure = true;
        self.tally.sending(&chunk.range());
        let end = self.link.send(chunk).await?;
        self.unsure = false;
        self.settle(chunk, end)
    }

    /// The session is over before this writer gave it all. If it was taken over, the one before may have ended it well.
    ///
    /// # Errors
    /// `over`, if that cannot be.
    async fn prove_only(&mut self, over: Error) -> Result<()> {
        if self.taken_over && self.link.stored().await?.is_some() {
            self.proving = true;
            return Ok(());
        }
        Err(over)
    }

    /// Goes on where the store says it is.
    fn rewind(&mut self, chunk: &mut Chunk, kept: &[Kept]) -> Result<()> {
        let range = chunk.range();
        if self.link.rule.parallel {
            self.unsure = false;
            self.kept = kept.to_vec();
            let has = self.has(chunk);
            return self.settle(chunk, if has { range.end } else { range.start });
        }
        let (end, digest) = match kept {
            [] => (0, None),
            [only] if only.range.start == 0 => (only.range.end, only.digest),
            _ => {
                let detail = "the store keeps bytes that are not the first ones".to_owned();
                return Err(self.link.damaged(detail));
            }
        };
        let ahead = self.taken_over && end > range.end;
        let unsent = self.taken_over && end > self.tally.reached;
        // What is beyond this chunk is asked for again with the next one.
        self.unsure = ahead;
        self.settle(chunk, if ahead { range.end } else { end })?;
        match digest {
            Some(Digest::Crc32c(crc)) if !ahead && crc != self.crc32c => Err(self.link.damaged(
                format!("the {end} bytes that the store keeps are not those that were sent"),
            )),
            Some(Digest::Crc32c(_)) if !ahead => {
                self.skipped = false;
                Ok(())
            }
            _ => {
                self.skipped |= unsent;
                Ok(())
            }
        }
    }

    /// The store keeps everything below `end`: folds what is new of it, once, and leaves the rest in the chunk.
    fn settle(&mut self, chunk: &mut Chunk, end: u64) -> Result<()> {
        let range = chunk.range();
        if end < range.start {
            return Err(self.link.damaged(format!(
                "the store keeps {end} bytes, it had acknowledged {}",
                range.start
            )));
        }
        if end > range.end {
            return Err(self.link.kept_too_much(end, range.end));
        }
        if end == range.end {
            self.fold(chunk.crc32c, end);
            chunk.pieces.clear();
        } else if end > range.start && self.link.rule.parallel {
            // A part is kept whole or not at all.
            return Ok(());
        } else if end > range.start {
            let kept = split_front(&mut chunk.pieces, end - range.start);
            self.fold(crc32c(&kept), end);
            chunk.crc32c = crc32c(&chunk.pieces);
        }
        chunk.offset = end;
        Ok(())
    }
}

/// Takes the first `count` bytes off; the rest stays.
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
