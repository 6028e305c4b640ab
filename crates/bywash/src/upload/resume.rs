//! Takes over the upload of another process: no byte is skipped unless the source verifies it.

mod verify;

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use bywash_store::{
    ChunkRule, Finished, OpenSession, OriginError, SessionOptions, SessionStatus, SessionToken,
    StoredRange, UploadSession, is_same_session,
};
use object_store::Result;
use object_store::path::Path;

use self::verify::{SourceComparison, compare, contiguous, hash, is_of_parts};
use super::journal::{Entry, Header, ObjectDigest, Progress, SourceIdentity};
use super::journal_writer::JournalWriter;
use super::options::JournalOptions;
use super::session_client::ended_elsewhere;
use super::{ChunkPlan, Upload, UploadOptions, UploadToken};
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::retry::with_retries;

/// An upload that was taken over.
#[derive(Debug)]
pub enum Resumed {
    /// Still open: write the source's bytes from [`Upload::position`] on, then finish.
    Open {
        /// The writer.
        upload: Box<Upload>,
        /// Bytes that the store has and the source verified: they are not sent again.
        resumed_bytes: u64,
    },
    /// The object exists already: only the response was lost.
    Finished {
        /// The object, as reported by the store.
        object: Finished,
        /// Length of the object in bytes.
        length: u64,
    },
}

impl Bucket {
    /// Continues an upload that another process left in the journal. The source must be unchanged; bytes at the store
    /// are compared with it before they are skipped.
    ///
    /// A session unknown to the store may have become the object, which is checked first. Otherwise all bytes are
    /// sent again, in a new session, where one can be begun.
    ///
    /// `parallel` as in [`UploadOptions::parallel`].
    ///
    /// # Errors
    /// [`EngineError::SourceLost`] if the bytes cannot be read again, [`EngineError::SourceChanged`] if they changed;
    /// otherwise as any request. The upload then stays in the journal.
    pub async fn resume_upload(&self, entry: Entry, parallel: usize) -> Result<Resumed> {
        let resumed = self.take_over(entry).await?;
        Ok(match resumed {
            Resumed::Open {
                mut upload,
                resumed_bytes,
            } => {
                upload.options.parallel = parallel;
                Resumed::Open {
                    upload,
                    resumed_bytes,
                }
            }
            finished => finished,
        })
    }

    async fn take_over(&self, entry: Entry) -> Result<Resumed> {
        let header = entry.header().clone();
        let source = open_source(&header).await?;
        let session = self.session_of(&header).await?;
        let status = with_retries(self.shared().retry(), "resume", &header.object, || {
            self.shared().counters.origin_request();
            session.status()
        });
        match (status.await?, source) {
            (SessionStatus::Open(stored), Some(source)) => {
                self.continue_upload(entry, &*session, stored, source).await
            }
            (SessionStatus::Open(stored), None) => {
                self.continue_without_source(entry, &*session, &stored)
                    .await
            }
            (ended, source) => {
                let whole = match (&source, entry.digest()) {
                    (_, Some(whole)) => whole,
                    (Some((file, identity)), None) => whole_of(file, identity.size).await?,
                    (None, None) => return Err(lost_source(&header)),
                };
                self.check_or_restart(entry, ended, whole, source).await
            }
        }
    }

    /// Aborts a journaled upload at the store, and removes its entry.
    ///
    /// # Errors
    /// As any request; the entry then stays.
    pub async fn abort_journaled(&self, entry: Entry) -> Result<()> {
        let session = self.session_of(entry.header()).await?;
        let retry = self.shared().retry();
        with_retries(retry, "abort upload of", &entry.header().object, || {
            self.shared().counters.origin_request();
            session.abort()
        })
        .await?;
        JournalWriter::over(entry).remove().await
    }

    /// Returns the sessions open at the store, of any process; none where it does not list them. Uploads in progress
    /// are among them: before you abort one, check the journals of all uploading machines, or its age.
    ///
    /// # Errors
    /// As any request.
    pub async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        let shared = self.shared();
        with_retries(shared.retry(), "list uploads below", &Path::ROOT, || {
            shared.counters.origin_request();
            shared.origin.open_sessions()
        })
        .await
    }

    /// Returns whether the session is the one with this token of a journal.
    pub fn is_session(&self, open: &OpenSession, token: &SessionToken) -> bool {
        is_same_session(&open.token, token)
    }

    /// Aborts a listed session and deletes its bytes.
    ///
    /// # Errors
    /// As any request.
    pub async fn abort_session(&self, open: &OpenSession) -> Result<()> {
        let shared = self.shared();
        let options = SessionOptions {
            stall: shared.engine.retry.stall,
            ..SessionOptions::default()
        };
        let resumed = shared
            .origin
            .resume_session(&open.object, &options, &open.token);
        let session = resumed.await?;
        with_retries(shared.retry(), "abort upload of", &open.object, || {
            shared.counters.origin_request();
            session.abort()
        })
        .await
    }

    async fn session_of(&self, header: &Header) -> Result<Arc<dyn UploadSession>> {
        let shared = self.shared();
        let options = SessionOptions {
            stall: shared.engine.retry.stall,
            ..header.options.clone()
        };
        let resumed = shared
            .origin
            .resume_session(&header.object, &options, &header.session);
        Ok(Arc::from(resumed.await?))
    }

    async fn continue_upload(
        &self,
        entry: Entry,
        session: &dyn UploadSession,
        stored: Vec<StoredRange>,
        (file, identity): SourceFile,
    ) -> Result<Resumed> {
        let header = entry.header().clone();
        let rule = self.shared().origin.capabilities().chunk_rule;
        let plan = plan_of(&header, &rule)?;
        let progress = entry.progress();
        let compared = tokio::task::spawn_blocking(move || {
            compare(&file, identity.size, &rule, &plan, &stored, &progress)
        });
        let compared = compared
            .await?
            .map_err(|error| unreadable(&header, &error))?;
        let SourceComparison::Same {
            offset,
            crc32c,
            stored,
        } = compared
        else {
            return Err(OriginError::upload_damaged(
                &header.object,
                "the source's bytes are not those that were acknowledged, though its date and size are",
            ));
        };
        let upload = self
            .taken_over(entry, session, plan, offset, crc32c)
            .await?;
        Ok(Resumed::Open {
            upload: Box::new(upload),
            resumed_bytes: stored,
        })
    }

    /// Continues without the source, which is possible if none of its bytes are missing.
    async fn continue_without_source(
        &self,
        entry: Entry,
        session: &dyn UploadSession,
        stored: &[StoredRange],
    ) -> Result<Resumed> {
        let header = entry.header();
        let all = contiguous(stored);
        match entry.digest() {
            Some(whole) if whole.length == all && entry.progress().offset == all => {}
            _ => return Err(lost_source(header)),
        }
        let plan = plan_of(header, &self.shared().origin.capabilities().chunk_rule)?;
        let Progress { offset, crc32c } = entry.progress();
        let upload = self
            .taken_over(entry, session, plan, offset, crc32c)
            .await?;
        Ok(Resumed::Open {
            upload: Box::new(upload),
            resumed_bytes: offset,
        })
    }

    async fn taken_over(
        &self,
        entry: Entry,
        session: &dyn UploadSession,
        plan: ChunkPlan,
        acknowledged: u64,
        crc32c: u32,
    ) -> Result<Upload> {
        let header = entry.header();
        let token = UploadToken {
            path: header.object.clone(),
            options: options_of(header),
            plan,
            session: Some(session.token()),
            acknowledged,
            crc32c,
            waiting: Bytes::new(),
        };
        let mut upload = self.restore_upload(&token).await?;
        upload.journaled = Some(JournalWriter::over(entry));
        Ok(upload)
    }

    /// Handles a session that ended. If it did not become the object, all bytes are sent again.
    async fn check_or_restart(
        &self,
        entry: Entry,
        ended: SessionStatus,
        whole: ObjectDigest,
        source: Option<SourceFile>,
    ) -> Result<Resumed> {
        let header = entry.header().clone();
        let shared = self.shared();
        let found = match ended {
            SessionStatus::Finished(found) if found.crc32c.is_some() => Some(found),
            _ => {
                with_retries(shared.retry(), "look for", &header.object, || {
                    shared.counters.origin_request();
                    shared.origin.stat(&header.object)
                })
                .await?
            }
        };
        shared.invalidate(&header.object);
        if let Some(object) = found
            && self
                .is_object(&header, &object, whole, source.as_ref())
                .await?
        {
            // Removes files that a folder keeps of an upload after a crash right after the rename.
            if let Err(error) = self.session_of(&header).await?.abort().await {
                tracing::debug!(object = %header.object, %error, "finished session not cleared");
            }
            JournalWriter::over(entry).remove().await?;
            return Ok(Resumed::Finished {
                object,
                length: whole.length,
            });
        }
        if source.is_none() {
            return Err(lost_source(&header));
        }
        if !shared.origin.capabilities().begins_sessions {
            // No process can continue it, and its addresses are of no further use.
            JournalWriter::over(entry).remove().await?;
            return Err(ended_elsewhere(header.url));
        }
        let upload = self.upload(&header.object, options_of(&header)).await?;
        JournalWriter::over(entry).remove().await?;
        Ok(Resumed::Open {
            upload: Box::new(upload),
            resumed_bytes: 0,
        })
    }

    /// Whether an object is the one of an upload that has ended: by the checksum that the store has, else by an ETag that is the
    /// MD5 of its parts.
    async fn is_object(
        &self,
        header: &Header,
        object: &Finished,
        whole: ObjectDigest,
        source: Option<&SourceFile>,
    ) -> Result<bool> {
        if object.length.is_some_and(|length| length != whole.length) {
            return Ok(false);
        }
        if let Some(crc32c) = object.crc32c {
            return Ok(crc32c == whole.crc32c);
        }
        let (Some((file, _)), Some(true)) = (
            source,
            object.e_tag.as_ref().map(|e_tag| e_tag.contains('-')),
        ) else {
            return Ok(false);
        };
        let plan = plan_of(header, &self.shared().origin.capabilities().chunk_rule)?;
        let (file, object) = (file.try_clone().map_err(io_failed)?, object.clone());
        let same =
            tokio::task::spawn_blocking(move || is_of_parts(&file, whole.length, &plan, &object));
        same.await?.map_err(io_failed)
    }
}

type SourceFile = (File, SourceIdentity);

fn plan_of(header: &Header, rule: &ChunkRule) -> Result<ChunkPlan> {
    let plan = ChunkPlan::new(rule, header.chunk, true, header.options.length);
    plan.map_err(|reason| {
        OriginError::upload_damaged(
            &header.object,
            format!("its chunks do not fit the store any more: {reason}"),
        )
    })
}

fn options_of(header: &Header) -> UploadOptions {
    UploadOptions {
        mode: header.options.mode.clone(),
        attributes: header.options.attributes.clone(),
        length: header.options.length,
        chunk: Some(header.chunk),
        journal: Some(JournalOptions {
            url: header.url.clone(),
            endpoint: header.endpoint.clone(),
            source: header.source.clone(),
        }),
        ..UploadOptions::default()
    }
}

/// Opens the source if it is unchanged; `None` if it could never be read again.
async fn open_source(header: &Header) -> Result<Option<SourceFile>> {
    let Some(before) = header.source.clone() else {
        return Ok(None);
    };
    let opened = tokio::task::spawn_blocking(move || {
        let file = File::open(&before.path)?;
        let now = SourceIdentity::of(&before.path, &file.metadata()?)?;
        Ok((file, before, now))
    });
    let (file, before, now) = opened.await?.map_err(|error| unreadable(header, &error))?;
    match before.difference(&now) {
        None => Ok(Some((file, now))),
        Some(difference) => Err(EngineError::SourceChanged {
            object: header.url.clone(),
            path: before.path,
            difference,
        }
        .into()),
    }
}

fn unreadable(header: &Header, error: &io::Error) -> object_store::Error {
    let path = header.source.as_ref().map(|source| source.path.display());
    EngineError::SourceLost {
        object: header.url.clone(),
        reason: path.map_or_else(
            || error.to_string(),
            |path| format!("{path} cannot be read: {error}"),
        ),
    }
    .into()
}

fn lost_source(header: &Header) -> object_store::Error {
    EngineError::SourceLost {
        object: header.url.clone(),
        reason: "its bytes came from a pipe, which cannot be rewound".to_owned(),
    }
    .into()
}

fn io_failed(error: io::Error) -> object_store::Error {
    object_store::Error::Generic {
        store: "Bywash",
        source: Box::new(error),
    }
}

async fn whole_of(file: &File, length: u64) -> Result<ObjectDigest> {
    let file = file.try_clone().map_err(io_failed)?;
    let crc32c = tokio::task::spawn_blocking(move || hash(&file, 0..length));
    let crc32c = crc32c.await?.map_err(io_failed)?;
    Ok(ObjectDigest { length, crc32c })
}
