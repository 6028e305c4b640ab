//! Completion of a session: succeeds only if the store confirmed the object.

use bywash_store::{Chunk, CompleteRequest, Finished, OriginError, SessionStatus, StoredRange};
use object_store::{Attributes, Error, Result};

use super::Driver;
use crate::error::EngineError;
use crate::retry::is_transient;
use crate::upload::checksum::combine;

impl Driver {
    /// Completes the upload of `length` bytes; `tail` are those not delivered yet, `late` the attributes known only now.
    ///
    /// Succeeds only if the store returned an object of this length and, if it reports one, of this CRC32C.
    pub(in crate::upload) async fn finish(
        &mut self,
        length: u64,
        mut tail: Option<Chunk>,
        late: Attributes,
    ) -> Result<Finished> {
        let crc = tail.as_ref().map_or(self.crc32c, |tail| {
            combine(self.crc32c, tail.crc32c, tail.length())
        });
        if self.client.rule.parallel
            && let Some(tail) = &mut tail
        {
            self.deliver(tail).await?;
        }
        if self.verify_only {
            return self.client.head(length, crc).await;
        }
        let mut request = CompleteRequest {
            length,
            crc32c: crc,
            tail: tail.filter(|tail| !tail.pieces.is_empty()),
            parts: None,
            digest: None,
            attributes: late,
        };
        let mut retries = self.client.retries();
        let mut requested = false;
        loop {
            let before = self.acknowledged;
            let failure = match self.attempt_finish(&mut request, &mut requested).await {
                Ok(Finished { crc32c: None, .. }) if self.skipped => {
                    return self.client.head(length, crc).await;
                }
                Ok(finished) => return self.verified(finished, length, crc),
                Err(error) => error,
            };
            if self.acknowledged > before {
                retries.progress();
            }
            if matches!(
                OriginError::find(&failure),
                Some(OriginError::UploadLost { .. })
            ) {
                return self.client.head(length, crc).await;
            }
            if !is_transient(&failure) {
                return self.refused(failure, requested, length, crc).await;
            }
            tracing::debug!(object = %self.client.path, error = %failure, "the end of the upload failed, retrying");
            if !retries.back_off().await {
                return Err(self.client.retries_exhausted(failure));
            }
        }
    }

    /// `requested`: an earlier request to complete had no response.
    async fn attempt_finish(
        &mut self,
        request: &mut CompleteRequest,
        requested: &mut bool,
    ) -> Result<Finished> {
        if self.in_doubt {
            match self.client.status().await? {
                SessionStatus::Open(stored) => self.rewind_request(request, &stored)?,
                SessionStatus::Finished(finished) => return Ok(finished),
                SessionStatus::Gone => return Err(self.client.lost()),
            }
        }
        if let Some(tail) = &request.tail {
            self.stats.count_sent(&tail.range());
        }
        self.in_doubt = true;
        let result = self.client.finish(request).await;
        *requested |= result.as_ref().is_err_and(is_transient);
        result
    }

    fn rewind_request(
        &mut self,
        request: &mut CompleteRequest,
        stored: &[StoredRange],
    ) -> Result<()> {
        if self.client.rule.parallel {
            return Ok(());
        }
        let mut tail = request.tail.take().unwrap_or_else(|| Chunk {
            index: 0,
            offset: self.acknowledged,
            pieces: Vec::new(),
            crc32c: 0,
        });
        let end = stored.first().map_or(0, |stored| stored.range.end);
        if end > request.length {
            return Err(self.client.stored_too_much(end, request.length));
        }
        self.rewind(&mut tail, stored)?;
        request.tail = Some(tail).filter(|tail| !tail.pieces.is_empty());
        Ok(())
    }

    /// Handles a refusal to complete the upload. If the response to an earlier request was lost, the existing object
    /// may be our own.
    async fn refused(
        &self,
        refusal: Error,
        requested: bool,
        length: u64,
        crc: u32,
    ) -> Result<Finished> {
        let in_the_way = matches!(
            refusal,
            Error::AlreadyExists { .. } | Error::Precondition { .. }
        );
        if !(requested && in_the_way) {
            return Err(refusal);
        }
        match self.client.head(length, crc).await {
            Ok(found) => Ok(found),
            // The refusal stands if there is another object.
            Err(error) => match EngineError::find(&error) {
                Some(EngineError::UploadUnproven { .. }) => Err(error),
                _ => Err(refusal),
            },
        }
    }

    fn verified(&self, finished: Finished, length: u64, crc: u32) -> Result<Finished> {
        if let Some(got) = finished.length.filter(|got| *got != length) {
            let detail = format!("the finished object has {got} bytes, {length} were sent");
            return Err(self.client.damaged(detail));
        }
        match finished.crc32c {
            Some(got) if got != crc => {
                let detail = format!(
                    "the finished object has CRC32C {got:08x}, the bytes sent have {crc:08x}"
                );
                Err(self.client.damaged(detail))
            }
            _ => Ok(finished),
        }
    }
}
