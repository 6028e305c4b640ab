//! How an upload ends: one put, or the end of its session, in a task that nobody can take back.

use std::future::Future;

use object_store::{Error, PutOptions, PutPayload, Result};
use tokio::task::JoinHandle;

use super::{Upload, UploadResult};
use crate::error::EngineError;
use crate::origin::body_length_error;
use crate::upload::checksum::combine;
use crate::upload::driver::Driver;
use crate::upload::journal::Whole;
use crate::upload::journaled::Journaled;
use crate::upload::{Chunk, Finished};

/// What a task that ends an upload hands back.
#[derive(Debug)]
pub(super) struct Ended {
    driver: Option<Driver>,
    journaled: Option<Journaled>,
    result: Result<Finished>,
}

#[derive(Debug)]
pub(super) enum State {
    Open,
    /// A task ends it. It goes on when nobody waits for it.
    Ending(JoinHandle<Ended>),
    Finished(Box<UploadResult>),
    Aborted,
}

impl Upload {
    /// Starts the task that ends the upload; in a task of its own, since an end that was asked for cannot be taken back.
    pub(super) fn begin_end(&mut self) -> Result<()> {
        if let Some(length) = self.options.length.filter(|length| *length != self.taken) {
            return Err(body_length_error(&self.path, length, self.taken));
        }
        if self.filling.length > 0 {
            self.check_chunks()?;
        }
        let from = self.acknowledged().max(self.filling.offset);
        let tail = self.filling.chunk(from, Vec::new());
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
        let length = self.taken;
        let task = match self.driver.clone() {
            Some(driver) => {
                let tail = Some(tail).filter(|tail| !tail.pieces.is_empty());
                let whole = Whole {
                    length,
                    crc32c: crc,
                };
                let (bucket, path) = (self.bucket.clone(), self.path.clone());
                let journaled = self.journaled.take();
                tokio::spawn(async move {
                    let ended = end_session(driver, journaled, tail, whole).await;
                    bucket.shared().written(&path);
                    ended
                })
            }
            None => tokio::spawn(self.put(tail, crc)),
        };
        self.state = State::Ending(task);
        Ok(())
    }

    /// Stores all of it, one chunk at most, by one put.
    fn put(&self, all: Chunk, crc: u32) -> impl Future<Output = Ended> + use<> {
        let put = PutOptions {
            mode: self.options.mode.clone(),
            tags: self.options.tags.clone(),
            attributes: self.options.attributes.clone(),
            ..PutOptions::default()
        };
        let (bucket, path, length) = (self.bucket.clone(), self.path.clone(), self.taken);
        async move {
            let payload = PutPayload::from_iter(all.pieces);
            let result = bucket.put_once(&path, payload, put).await;
            let finished = result.map(|put| Finished {
                e_tag: put.e_tag,
                version: put.version,
                length: Some(length),
                crc32c: Some(crc),
            });
            Ended {
                driver: None,
                journaled: None,
                result: finished,
            }
        }
    }

    /// Waits for the task that ends the upload.
    pub(super) async fn ended(&mut self) -> Result<Finished> {
        let State::Ending(task) = &mut self.state else {
            return Err(self.ended_error("finished"));
        };
        let ended = task.await;
        self.state = State::Open;
        let ended = ended.map_err(|source| Error::JoinError { source })?;
        if ended.driver.is_some() {
            self.driver = ended.driver;
            self.journaled = ended.journaled;
        }
        ended.result
    }
}

/// Ends the session, and with it the journal's entry. The entry says what the object will be before the end is asked for.
async fn end_session(
    mut driver: Driver,
    mut journaled: Option<Journaled>,
    tail: Option<Chunk>,
    whole: Whole,
) -> Ended {
    let written = match &mut journaled {
        Some(journaled) => journaled.finishing(whole).await,
        None => Ok(()),
    };
    let result = match written {
        Ok(()) => driver.finish(whole.length, tail).await,
        Err(error) => Err(error),
    };
    if result.is_ok()
        && let Some(mut entry) = journaled.take()
        && let Err(error) = entry.remove().await
    {
        // The object is there; whoever resumes the upload will find it so.
        tracing::warn!(%error, "a finished upload stays in the journal");
    }
    let result = result.map(|found| Finished {
        // Of what was sent, whether the store says one or not.
        crc32c: Some(whole.crc32c),
        ..found
    });
    Ended {
        driver: Some(driver),
        journaled,
        result,
    }
}
