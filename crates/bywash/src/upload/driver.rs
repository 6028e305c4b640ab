//! Brings chunks to a session and ends it, whatever goes wrong on the way: after a failure it asks what the store keeps, goes on
//! exactly there, and believes in an object only when the store said so.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use object_store::path::Path;
use object_store::{Error, Result};

use super::checksum::{combine, crc32c, md5 as md5_of};
use super::{Chunk, ChunkRule, Digest, Ending, Finished, Kept, SessionStatus, UploadSession};
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::retry::{Retries, is_transient, stalled, unavailable, with_retries};
use crate::write::SLOWEST_PUT_BYTES_PER_S;

/// A session, and whom its requests are counted for.
#[derive(Debug, Clone)]
pub(super) struct Link {
    bucket: Bucket,
    pub(super) path: Path,
    session: Arc<dyn UploadSession>,
    /// The session knows what is kept without a request.
    remembers: bool,
    pub(super) rule: ChunkRule,
}

impl Link {
    pub(super) fn new(bucket: &Bucket, path: &Path, session: Arc<dyn UploadSession>) -> Self {
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            rule: session.rule(),
            session,
            remembers: false,
        }
    }

    /// A session over parts, which knows what is kept without a request.
    pub(super) fn remembering(self) -> Self {
        Self {
            remembers: true,
            ..self
        }
    }

    pub(super) fn session(&self) -> &Arc<dyn UploadSession> {
        &self.session
    }

    /// One attempt, given up when it takes longer than `bytes` on the slowest line we bear with.
    async fn attempt<T>(&self, bytes: u64, request: impl Future<Output = Result<T>>) -> Result<T> {
        let shared = self.bucket.shared();
        shared.counters.origin_request();
        let policy = shared.engine.retry;
        let limit = policy.stall + Duration::from_secs(bytes / SLOWEST_PUT_BYTES_PER_S);
        let answer = tokio::time::timeout(limit, request).await;
        answer.unwrap_or_else(|_| Err(stalled(policy)))
    }

    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        self.attempt(chunk.length(), self.session.send(chunk)).await
    }

    async fn status(&self) -> Result<SessionStatus> {
        if self.remembers {
            return self.session.status().await;
        }
        self.attempt(0, self.session.status()).await
    }

    /// May keep the store at work for long: it may join what it has.
    async fn finish(&self, ending: &Ending) -> Result<Finished> {
        let shared = self.bucket.shared();
        shared.counters.origin_request();
        let policy = shared.engine.retry.with_server_work();
        let bytes = ending.tail.as_ref().map_or(0, Chunk::length);
        let limit = policy.stall + Duration::from_secs(bytes / SLOWEST_PUT_BYTES_PER_S);
        let answer = tokio::time::timeout(limit, self.session.finish(ending)).await;
        answer.unwrap_or_else(|_| Err(stalled(policy)))
    }

    /// Drops the session at the store.
    pub(super) async fn abort(&self) -> Result<()> {
        let policy = self.bucket.shared().engine.retry;
        with_retries(policy, "abort upload of", &self.path, || {
            self.bucket.shared().counters.origin_request();
            self.session.abort()
        })
        .await
    }

    fn retries(&self) -> Retries {
        Retries::new(self.bucket.shared().engine.retry)
    }

    fn damaged(&self, detail: String) -> Error {
        EngineError::UploadDamaged {
            object: self.path.to_string(),
            detail,
        }
        .into()
    }

    fn lost(&self) -> Error {
        EngineError::UploadLost {
            object: self.path.to_string(),
        }
        .into()
    }

    fn gave_up(&self, source: Error) -> Error {
        unavailable("upload of", &self.path, source)
    }

    async fn stored(&self) -> Result<Option<Finished>> {
        let shared = self.bucket.shared();
        with_retries(shared.engine.retry, "look for", &self.path, || {
            shared.counters.origin_request();
            shared.origin.stored(&self.path)
        })
        .await
    }

    /// The session is gone. Its object may be there all the same: only the store's own checksum proves it.
    async fn look(&self, length: u64, crc32c: u32) -> Result<Finished> {
        match self.stored().await? {
            Some(found) if found.length == Some(length) => match found.crc32c {
                Some(crc) if crc == crc32c => Ok(found),
                Some(_) => Err(self.lost()),
                None => Err(EngineError::UploadUnproven {
                    object: self.path.to_string(),
                    length,
                    crc32c,
                }
                .into()),
            },
            _ => Err(self.lost()),
        }
    }

    /// Sends a chunk of a store that takes them side by side, until it is kept whole. What was sent goes to `tally`.
    pub(super) async fn deliver_whole(&self, chunk: &Chunk, tally: &mut Tally) -> Result<()> {
        let mut retries = self.retries();
        let mut unsure = tally.reached > chunk.offset;
        loop {
            let failure = match self.attempt_whole(chunk, tally, &mut unsure).await {
                Ok(true) => return Ok(()),
                Ok(false) => kept_nothing(chunk),
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => error,
            };
            unsure = true;
            if !retries.again().await {
                return Err(self.gave_up(failure));
            }
        }
    }

    /// Whether the store keeps all of the chunk now.
    async fn attempt_whole(
        &self,
        chunk: &Chunk,
        tally: &mut Tally,
        unsure: &mut bool,
    ) -> Result<bool> {
        let range = chunk.range();
        if *unsure {
            let kept = match self.status().await? {
                SessionStatus::Open(kept) => kept,
                SessionStatus::Finished(_) => return Err(self.ended_early()),
                SessionStatus::Gone => return Err(self.lost()),
            };
            if kept.iter().any(|kept| vouches(kept, chunk)) {
                return Ok(true);
            }
            *unsure = false;
        }
        tally.sending(&range);
        let end = self.send(chunk).await?;
        if end > range.end {
            return Err(self.kept_too_much(end, range.end));
        }
        Ok(end == range.end)
    }

    fn ended_early(&self) -> Error {
        self.damaged("the session has ended before all was sent".to_owned())
    }

    fn kept_too_much(&self, kept: u64, sent: u64) -> Error {
        self.damaged(format!(
            "the store claims to keep {kept} bytes, {sent} were sent"
        ))
    }
}

/// Bytes given to requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Offset below which all was sent at least once.
    pub(super) reached: u64,
    /// Bytes sent, each time counted.
    pub(super) sent: u64,
    /// Those of them that had been sent before.
    pub(super) resent: u64,
}

impl Tally {
    pub(super) fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.resent += more.resent;
    }

    fn sending(&mut self, range: &std::ops::Range<u64>) {
        self.sent += range.end - range.start;
        self.resent += self.reached.min(range.end).saturating_sub(range.start);
        self.reached = self.reached.max(range.end);
    }
}

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

    /// Ends the upload of `length` bytes; `tail` is what was not delivered.
    ///
    /// Succeeds only when the store said that there is an object, of this length and, if it says one, of this CRC32C.
    pub(super) async fn finish(
        &mut self,
        length: u64,
        mut tail: Option<Chunk>,
    ) -> Result<Finished> {
        let crc = tail.as_ref().map_or(self.crc32c, |tail| {
            combine(self.crc32c, tail.crc32c, tail.length())
        });
        if self.link.rule.parallel
            && let Some(tail) = &mut tail
        {
            self.deliver(tail).await?;
        }
        if self.proving {
            return self.link.look(length, crc).await;
        }
        let mut ending = Ending {
            length,
            crc32c: crc,
            tail: tail.filter(|tail| !tail.pieces.is_empty()),
        };
        let mut retries = self.link.retries();
        let mut asked = false;
        loop {
            let before = self.acknowledged;
            let failure = match self.attempt_finish(&mut ending, &mut asked).await {
                Ok(Finished { crc32c: None, .. }) if self.skipped => {
                    return self.link.look(length, crc).await;
                }
                Ok(finished) => return self.verified(finished, length, crc),
                Err(error) => error,
            };
            if self.acknowledged > before {
                retries.progress();
            }
            if matches!(
                EngineError::find(&failure),
                Some(EngineError::UploadLost { .. })
            ) {
                return self.link.look(length, crc).await;
            }
            if !is_transient(&failure) {
                return self.refused(failure, asked, length, crc).await;
            }
            tracing::debug!(object = %self.link.path, error = %failure, "the end of the upload failed, trying again");
            if !retries.again().await {
                return Err(self.link.gave_up(failure));
            }
        }
    }

    /// `asked`: an earlier request to finish had no answer.
    async fn attempt_finish(&mut self, ending: &mut Ending, asked: &mut bool) -> Result<Finished> {
        if self.unsure {
            match self.link.status().await? {
                SessionStatus::Open(kept) => self.rewind_ending(ending, &kept)?,
                SessionStatus::Finished(finished) => return Ok(finished),
                SessionStatus::Gone => return Err(self.link.lost()),
            }
        }
        if let Some(tail) = &ending.tail {
            self.tally.sending(&tail.range());
        }
        self.unsure = true;
        let answer = self.link.finish(ending).await;
        *asked |= answer.as_ref().is_err_and(is_transient);
        answer
    }

    fn rewind_ending(&mut self, ending: &mut Ending, kept: &[Kept]) -> Result<()> {
        if self.link.rule.parallel {
            return Ok(());
        }
        let mut tail = ending.tail.take().unwrap_or_else(|| Chunk {
            index: 0,
            offset: self.acknowledged,
            pieces: Vec::new(),
            crc32c: 0,
        });
        let end = kept.first().map_or(0, |kept| kept.range.end);
        if end > ending.length {
            return Err(self.link.kept_too_much(end, ending.length));
        }
        self.rewind(&mut tail, kept)?;
        ending.tail = Some(tail).filter(|tail| !tail.pieces.is_empty());
        Ok(())
    }

    /// The store refuses to end the upload. If an earlier request had no answer, it may be our own object that is in the way.
    async fn refused(
        &self,
        refusal: Error,
        asked: bool,
        length: u64,
        crc: u32,
    ) -> Result<Finished> {
        let in_the_way = matches!(
            refusal,
            Error::AlreadyExists { .. } | Error::Precondition { .. }
        );
        if !(asked && in_the_way) {
            return Err(refusal);
        }
        match self.link.look(length, crc).await {
            Ok(found) => Ok(found),
            // The refusal stands if what is there is another object.
            Err(error) => match EngineError::find(&error) {
                Some(EngineError::UploadUnproven { .. }) => Err(error),
                _ => Err(refusal),
            },
        }
    }

    fn verified(&self, finished: Finished, length: u64, crc: u32) -> Result<Finished> {
        if let Some(got) = finished.length.filter(|got| *got != length) {
            let detail = format!("the finished object has {got} bytes, {length} were sent");
            return Err(self.link.damaged(detail));
        }
        match finished.crc32c {
            Some(got) if got != crc => {
                let detail = format!(
                    "the finished object has CRC32C {got:08x}, what was sent has {crc:08x}"
                );
                Err(self.link.damaged(detail))
            }
            _ => Ok(finished),
        }
    }
}

/// Whether what the store keeps is this chunk, by its own word for the bytes: only then it is not sent again.
fn vouches(kept: &Kept, chunk: &Chunk) -> bool {
    kept.range == chunk.range()
        && match kept.digest {
            Some(Digest::Crc32c(crc)) => crc == chunk.crc32c,
            Some(Digest::Md5(md5)) => md5 == md5_of(&chunk.pieces),
            None => false,
        }
}

fn kept_nothing(chunk: &Chunk) -> Error {
    let text = format!("the store took none of {} bytes", chunk.length());
    Error::Generic {
        store: "Bywash",
        source: text.into(),
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
