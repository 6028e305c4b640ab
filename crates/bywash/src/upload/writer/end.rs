//! End of an upload: one put, or the completion of its session, in a task that runs to its end.

use std::future::Future;

use bywash_store::{Chunk, Finished, body_length_error};
use object_store::{Attributes, Error, Extensions, PutOptions, PutPayload, Result};
use tokio::task::JoinHandle;

use super::{Upload, UploadResult};
use crate::content_check::ContentCompared;
use crate::error::EngineError;
use crate::upload::checksum::combine;
use crate::upload::driver::Driver;
use crate::upload::journal::ObjectDigest;
use crate::upload::journal_writer::JournalWriter;

/// Result of the task that ends an upload.
#[derive(Debug)]
pub(super) struct EndResult {
    driver: Option<Driver>,
    journaled: Option<JournalWriter>,
    result: Result<Finished>,
}

#[derive(Debug)]
pub(super) enum UploadState {
    Open,
    /// A task completes it, even if it is not awaited.
    Completing(JoinHandle<EndResult>),
    Finished(Box<UploadResult>),
    Aborted,
}

impl Upload {
    /// Starts the task that ends the upload: a completion that was requested cannot be cancelled.
    pub(super) fn begin_end(&mut self) -> Result<()> {
        if let Some(length) = self
            .options
            .length
            .filter(|length| *length != self.accepted)
        {
            return Err(body_length_error(&self.path, length, self.accepted));
        }
        if let Some(content) = &self.content {
            content.compare(&self.path)?;
        }
        if self.part.length > 0 {
            self.check_chunks()?;
        }
        self.keep_chunk();
        let from = self.acknowledged().max(self.part.offset);
        let tail = self.part.chunk(from, Vec::new());
        let before = self.driver.as_ref().map_or(0, |driver| driver.crc32c);
        let crc = combine(before, tail.crc32c, tail.length());
        if let Some(expected) = self.options.crc32c.filter(|expected| *expected != crc) {
            return Err(EngineError::ChecksumMismatch {
                object: self.path.to_string(),
                expected,
                got: crc,
            }
            .into());
        }
        let length = self.accepted;
        let task = match self.driver.clone() {
            Some(driver) => {
                let tail = Some(tail).filter(|tail| !tail.pieces.is_empty());
                let whole = ObjectDigest {
                    length,
                    crc32c: crc,
                };
                let (bucket, path) = (self.bucket.clone(), self.path.clone());
                let journaled = self.journaled.take();
                let written = self.written.take();
                let late = self.late.clone();
                tokio::spawn(async move {
                    let turn = bucket.shared().turn(vec![path.clone()]).await;
                    let mut ended = end_session(driver, journaled, tail, whole, late).await;
                    bucket.shared().invalidate(&path);
                    ended.result = turn.end(ended.result).await;
                    if let (Ok(found), Some(written)) = (&ended.result, written) {
                        let e_tag = found.e_tag.as_deref();
                        bucket.keep_upload(&path, written, length, e_tag).await;
                    }
                    ended
                })
            }
            None => tokio::spawn(self.put(tail, crc)),
        };
        self.state = UploadState::Completing(task);
        Ok(())
    }

    /// Stores the whole object, at most one chunk, by one put.
    fn put(&self, all: Chunk, crc: u32) -> impl Future<Output = EndResult> + use<> {
        let mut extensions = Extensions::new();
        if self.content.is_some() {
            extensions.insert(ContentCompared);
        }
        let put = PutOptions {
            extensions,
            mode: self.options.mode.clone(),
            tags: self.options.tags.clone(),
            attributes: self.options.attributes.clone(),
        };
        let (bucket, path, length) = (self.bucket.clone(), self.path.clone(), self.accepted);
        async move {
            let payload = PutPayload::from_iter(all.pieces);
            let result = bucket.put_once(&path, payload, put).await;
            let finished = result.map(|put| Finished {
                e_tag: put.e_tag,
                version: put.version,
                length: Some(length),
                crc32c: Some(crc),
            });
            EndResult {
                driver: None,
                journaled: None,
                result: finished,
            }
        }
    }

    /// Waits for the task that ends the upload.
    pub(super) async fn ended(&mut self) -> Result<Finished> {
        let UploadState::Completing(task) = &mut self.state else {
            return Err(self.ended_error("finished"));
        };
        let ended = task.await;
        self.state = UploadState::Open;
        let ended = ended.map_err(|source| Error::JoinError { source })?;
        if ended.driver.is_some() {
            self.driver = ended.driver;
            self.journaled = ended.journaled;
        }
        ended.result
    }
}

/// Completes the session, then removes the journal entry. Journals the object's digest before it requests the
/// completion.
async fn end_session(
    mut driver: Driver,
    mut journaled: Option<JournalWriter>,
    tail: Option<Chunk>,
    whole: ObjectDigest,
    late: Attributes,
) -> EndResult {
    let written = match &mut journaled {
        Some(journaled) => journaled.finishing(whole).await,
        None => Ok(()),
    };
    let result = match written {
        Ok(()) => driver.finish(whole.length, tail, late).await,
        Err(error) => Err(error),
    };
    if result.is_ok()
        && let Some(mut entry) = journaled.take()
        && let Err(error) = entry.remove().await
    {
        // The object exists; a process that resumes the upload will find it.
        tracing::warn!(%error, "cannot remove a finished upload from the journal");
    }
    let result = result.map(|found| Finished {
        // Of the bytes sent, whether or not the store reports it.
        crc32c: Some(whole.crc32c),
        ..found
    });
    EndResult {
        driver: Some(driver),
        journaled,
        result,
    }
}
