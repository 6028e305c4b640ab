//! How a session ends: an object is believed in only when the store said so.

use object_store::{Error, Result};

use super::Driver;
use crate::error::EngineError;
use crate::retry::is_transient;
use crate::upload::checksum::combine;
use crate::upload::{Chunk, Ending, Finished, Kept, SessionStatus};

impl Driver {
    /// Ends the upload of `length` bytes; `tail` is what was not delivered.
    ///
    /// Succeeds only when the store said that there is an object, of this length and, if it says one, of this CRC32C.
    pub(in crate::upload) async fn finish(
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
