//! Takes over an upload that another process left: nothing is skipped that the source does not prove.

mod prove;

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use object_store::Result;
use object_store::path::Path;

use self::prove::{Proof, contiguous, hash, prove};
use super::journal::{Entry, Header, Progress, SourceIdentity, Whole};
use super::journaled::{Journaled, Journaling};
use super::{
    ChunkPlan, ChunkRule, Finished, Kept, OpenSession, SessionOptions, SessionStatus, SessionToken,
    Upload, UploadOptions, UploadSession, UploadToken,
};
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::retry::with_retries;

/// An upload that was taken over.
#[derive(Debug)]
pub enum Resumed {
    /// Write the source's bytes from [`Upload::position`] on, then finish.
    Open {
        /// The writer.
        upload: Box<Upload>,
        /// Bytes the store keeps and the source proved: they are not sent again.
        resumed_bytes: u64,
    },
    /// The object is there already: only the answer was lost.
    Finished {
        /// As the store says it.
        object: Finished,
        /// Bytes of the object.
        length: u64,
    },
}

impl Bucket {
    /// Goes on with an upload that a process left in the journal. The source must be the file it was; what the store keeps is
    /// compared with it before it is not sent again.
    ///
    /// A session the store does not know any more may have become the object, which is looked at first; else all of it is sent
    /// again, in a session of its own.
    ///
    /// `parallel` as in [`UploadOptions::parallel`].
    ///
    /// # Errors
    /// [`EngineError::SourceLost`] if the bytes cannot be read again, [`EngineError::SourceChanged`] if they are others;
    /// otherwise as any request. The upload stays in the journal then.
    pub async fn resume_upload(&self, entry: Entry, parallel: usize) -> Result<Resumed> {
        let resumed = self.taken_up(entry).await?;
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

    async fn taken_up(&self, entry: Entry) -> Result<Resumed> {
        let header = entry.header().clone();
        let source = open_source(&header).await?;
        let session = self.session_of(&header).await?;
        let status = with_retries(self.shared().engine.retry, "resume", &header.object, || {
            self.shared().counters.origin_request();
            session.status()
        });
        match (status.await?, source) {
            (SessionStatus::Open(kept), Some(source)) => {
                self.go_on(entry, &*session, kept, source).await
            }
            (SessionStatus::Open(kept), None) => {
                self.go_on_without_source(entry, &*session, &kept).await
            }
            (ended, source) => {
                let whole = match (&source, entry.whole()) {
                    (_, Some(whole)) => whole,
                    (Some((file, identity)), None) => whole_of(file, identity.size).await?,
                    (None, None) => return Err(lost_source(&header)),
                };
                self.look_or_begin_again(entry, ended, whole, source.is_some())
                    .await
            }
        }
    }

    /// Drops what the store keeps of an upload in the journal, and its entry.
    ///
    /// # Errors
    /// As any request; the entry stays then.
    pub async fn abort_journaled(&self, entry: Entry) -> Result<()> {
        let session = self.session_of(entry.header()).await?;
        let policy = self.shared().engine.retry;
        with_retries(policy, "abort upload of", &entry.header().object, || {
            self.shared().counters.origin_request();
            session.abort()
        })
        .await?;
        Journaled::over(entry).remove().await
    }

    /// Sessions the store keeps, of whichever process; none where it does not list them. One whose upload goes on is among
    /// them: look at the journals of all who upload here, or at its age, before it is dropped.
    ///
    /// # Errors
    /// As any request.
    pub async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        let shared = self.shared();
        with_retries(
            shared.engine.retry,
            "list uploads below",
            &Path::ROOT,
            || {
                shared.counters.origin_request();
                shared.origin.open_sessions()
            },
        )
        .await
    }

    /// Whether the session is the one of this token, as a journal has it.
    pub fn is_session(&self, open: &OpenSession, token: &SessionToken) -> bool {
        self.shared().origin.same_session(&open.token, token)
    }

    /// Drops a session that was listed, and what the store keeps of it.
    ///
    /// # Errors
    /// As any request.
    pub async fn abort_session(&self, open: &OpenSession) -> Result<()> {
        let shared = self.shared();
        let options = SessionOptions::default();
        let resumed = shared
            .origin
            .resume_session(&open.object, &options, &open.token);
        let Some(session) = resumed.await? else {
            return Ok(());
        };
        with_retries(shared.engine.retry, "abort upload of", &open.object, || {
            shared.counters.origin_request();
            session.abort()
        })
        .await
    }

    async fn session_of(&self, header: &Header) -> Result<Arc<dyn UploadSession>> {
        let origin = &self.shared().origin;
        let resumed = origin
            .resume_session(&header.object, &header.options, &header.session)
            .await?;
        resumed.map(Arc::from).ok_or_else(|| {
            EngineError::UploadLost {
                object: header.object.to_string(),
            }
            .into()
        })
    }

    async fn go_on(
        &self,
        entry: Entry,
        session: &dyn UploadSession,
        kept: Vec<Kept>,
        (file, identity): Source,
    ) -> Result<Resumed> {
        let header = entry.header().clone();
        let rule = session.rule();
        let plan = plan_of(&header, &rule)?;
        let progress = entry.progress().clone();
        let proven = tokio::task::spawn_blocking(move || {
            prove(&file, identity.size, &rule, &plan, &kept, &progress)
        });
        let proven = proven.await?.map_err(|error| unreadable(&header, &error))?;
        let Proof::Same {
            offset,
            crc32c,
            kept,
        } = proven
        else {
            return Err(EngineError::UploadDamaged {
                object: header.object.to_string(),
                detail: "the source's bytes are not those that were acknowledged, though its date and size are"
                    .to_owned(),
            }
            .into());
        };
        let upload = self
            .taken_over(entry, session, plan, offset, crc32c)
            .await?;
        Ok(Resumed::Open {
            upload: Box::new(upload),
            resumed_bytes: kept,
        })
    }

    /// The source is gone; but perhaps nothing of it is missing.
    async fn go_on_without_source(
        &self,
        entry: Entry,
        session: &dyn UploadSession,
        kept: &[Kept],
    ) -> Result<Resumed> {
        let header = entry.header();
        let all = contiguous(kept);
        match entry.whole() {
            Some(whole) if whole.length == all && entry.progress().offset == all => {}
            _ => return Err(lost_source(header)),
        }
        let plan = plan_of(header, &session.rule())?;
        let Progress { offset, crc32c, .. } = *entry.progress();
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
            parts: None,
            acknowledged,
            crc32c,
            waiting: Bytes::new(),
        };
        let mut upload = self.restore_upload(&token).await?;
        upload.journaled = Some(Journaled::over(entry));
        Ok(upload)
    }

    /// The session ended. It may have become the object; if not, all is sent again.
    async fn look_or_begin_again(
        &self,
        entry: Entry,
        ended: SessionStatus,
        whole: Whole,
        readable: bool,
    ) -> Result<Resumed> {
        let header = entry.header().clone();
        let shared = self.shared();
        let found = match ended {
            SessionStatus::Finished(found) if found.crc32c.is_some() => Some(found),
            _ => {
                with_retries(shared.engine.retry, "look for", &header.object, || {
                    shared.counters.origin_request();
                    shared.origin.stored(&header.object)
                })
                .await?
            }
        };
        shared.written(&header.object);
        if let Some(object) = found
            && object.length.is_none_or(|length| length == whole.length)
            && object.crc32c == Some(whole.crc32c)
        {
            // What a folder keeps of an upload whose process died right after the rename.
            if let Err(error) = self.session_of(&header).await?.abort().await {
                tracing::debug!(object = %header.object, %error, "finished session not cleared");
            }
            Journaled::over(entry).remove().await?;
            return Ok(Resumed::Finished {
                object,
                length: whole.length,
            });
        }
        if !readable {
            return Err(lost_source(&header));
        }
        let upload = self.upload(&header.object, options_of(&header)).await?;
        Journaled::over(entry).remove().await?;
        Ok(Resumed::Open {
            upload: Box::new(upload),
            resumed_bytes: 0,
        })
    }
}

type Source = (File, SourceIdentity);

fn plan_of(header: &Header, rule: &ChunkRule) -> Result<ChunkPlan> {
    let plan = ChunkPlan::new(rule, header.chunk, true, header.options.length);
    plan.map_err(|reason| {
        EngineError::UploadDamaged {
            object: header.object.to_string(),
            detail: format!("its chunks do not fit the store any more: {reason}"),
        }
        .into()
    })
}

fn options_of(header: &Header) -> UploadOptions {
    UploadOptions {
        mode: header.options.mode.clone(),
        attributes: header.options.attributes.clone(),
        length: header.options.length,
        chunk: Some(header.chunk),
        journal: Some(Journaling {
            url: header.url.clone(),
            endpoint: header.endpoint.clone(),
            source: header.source.clone(),
        }),
        ..UploadOptions::default()
    }
}

/// Opens the source if it still is what it was; `None` if it never could be read again.
async fn open_source(header: &Header) -> Result<Option<Source>> {
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

async fn whole_of(file: &File, length: u64) -> Result<Whole> {
    let failed = |error: io::Error| object_store::Error::Generic {
        store: "Bywash",
        source: Box::new(error),
    };
    let file = file.try_clone().map_err(failed)?;
    let crc32c = tokio::task::spawn_blocking(move || hash(&file, 0..length));
    let crc32c = crc32c.await?.map_err(failed)?;
    Ok(Whole { length, crc32c })
}
