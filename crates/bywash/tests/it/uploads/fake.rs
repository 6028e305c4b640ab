//! A store with scripted faults: its sessions keep any prefix, lose any response and lie.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::ContentDigest;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{
    Capabilities, Chunk, ChunkRule, CompleteRequest, Finished, PartReceipt, SessionOptions,
    SessionPart, SessionStatus, SessionToken, StoredRange, UploadSession,
};
use bywash::{Bucket, Consistency, Engine, Origin, OriginError};
use futures::future::pending;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStore as _, ObjectStoreExt, PutOptions, PutPayload,
    PutResult, Result,
};
use parking_lot::Mutex;

/// SessionFault of one request that carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionFault {
    /// No fault.
    None,
    /// Stores this many bytes of the chunk and reports so.
    Keep(u64),
    /// Stores this many bytes (or all, if there are fewer) and loses the response.
    LoseAfter(u64),
    /// Reports this many bytes more than were sent.
    Claim(u64),
    /// Drops all acknowledged bytes but this many, and fails.
    Regress(u64),
    /// Does not know the session any more.
    Forget,
    /// Processes the request and loses the response. Of a completion: the object exists.
    LoseResponse,
    /// As `LoseResponse`, and then drops the session.
    LoseResponseAndForget,
    /// Completes, and reports another CRC32C of the object.
    WrongChecksum,
    /// Completes, and reports a shorter object.
    WrongLength,
    /// Refuses permanently.
    Refuse,
    /// Processes nothing and never responds.
    Stall,
}

/// One request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) index: u64,
    pub(crate) offset: u64,
    /// Address and length of each piece.
    pub(crate) pieces: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    sessions: HashMap<String, Session>,
    pub(crate) opened: usize,
    pub(crate) aborted: usize,
    pub(crate) sends: VecDeque<SessionFault>,
    pub(crate) ends: VecDeque<SessionFault>,
    pub(crate) statuses: VecDeque<SessionFault>,
    pub(crate) log: Vec<Sent>,
    /// Keeps the pieces of each request alive, as a slow HTTP client would.
    pub(crate) hoard: Option<Vec<Bytes>>,
    /// The journal's folder: a session that carries bytes must be journaled.
    pub(crate) journal: Option<PathBuf>,
}

#[derive(Debug)]
struct Session {
    options: SessionOptions,
    /// In order: the stored bytes. In parts: the contiguous ones.
    kept: Vec<u8>,
    parts: HashMap<u64, (u64, Bytes, u32)>,
    finished: Option<Finished>,
}

#[derive(Debug, Clone)]
pub(crate) struct Fake {
    objects: MemoryStore,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) rule: ChunkRule,
    /// Reports checksums: of ranges, of finished objects, of objects.
    pub(crate) checksums: bool,
    /// A request that does not begin at the stored offset is the writer's fault.
    pub(crate) strict: bool,
    /// Stores nothing, and reports so.
    pub(crate) discard: bool,
    /// Requests with bytes wait here for each other.
    pub(crate) barrier: Option<Arc<tokio::sync::Barrier>>,
}

pub(crate) const IN_ORDER: ChunkRule = ChunkRule {
    granule: 1,
    min: 1,
    max: 1 << 40,
    max_chunks: None,
    parallel: false,
};

impl Fake {
    pub(crate) fn new(rule: ChunkRule) -> Self {
        Self {
            objects: MemoryStore::new(),
            state: Arc::default(),
            rule,
            checksums: true,
            strict: true,
            discard: false,
            barrier: None,
        }
    }

    pub(crate) fn with(sends: &[SessionFault], ends: &[SessionFault]) -> Self {
        let fake = Self::new(IN_ORDER);
        fake.state.lock().sends.extend(sends);
        fake.state.lock().ends.extend(ends);
        fake
    }

    pub(crate) async fn object(&self, path: &Path) -> Option<Bytes> {
        match self.objects.get(path).await {
            Ok(found) => Some(found.bytes().await.unwrap()),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn open_sessions(&self) -> usize {
        let state = self.state.lock();
        state
            .sessions
            .values()
            .filter(|session| session.finished.is_none())
            .count()
    }

    pub(crate) fn forget_sessions(&self) {
        self.state.lock().sessions.clear();
    }

    pub(crate) fn kept(&self) -> Vec<u8> {
        let state = self.state.lock();
        let session = state.sessions.values().next();
        session.map_or_else(Vec::new, |session| session.kept.clone())
    }

    /// Returns a bucket over this store, as in a process of its own.
    pub(crate) fn bucket(&self, chunk: usize) -> Bucket {
        engine(chunk)
            .mount("test", Arc::new(self.clone()), Consistency::default())
            .unwrap()
    }
}

pub(crate) fn engine(chunk: usize) -> Engine {
    Engine::builder()
        .memory(4 << 20)
        .block_size(4 << 10)
        .chunk_size(chunk)
        .build()
        .unwrap()
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn passing(what: &str) -> Error {
    Error::Generic {
        store: "fake",
        source: format!("503 {what}").into(),
    }
}

fn lost(path: &Path) -> Error {
    OriginError::UploadLost {
        object: path.to_string(),
    }
    .into()
}

#[derive(Debug)]
struct Handle {
    fake: Fake,
    path: Path,
    id: String,
}

impl Handle {
    /// Stores at most `max` bytes of a chunk.
    fn keep(&self, session: &mut Session, chunk: &Chunk, max: u64) -> u64 {
        let bytes = chunk.pieces.concat();
        assert_eq!(chunk.crc32c, crc32c(&bytes), "of what is sent");
        assert!(chunk.pieces.iter().all(|piece| !piece.is_empty()));
        let count = max.min(bytes.len() as u64);
        if self.fake.rule.parallel {
            if count == bytes.len() as u64 {
                let part = (chunk.offset, bytes.into(), chunk.crc32c);
                session.parts.insert(chunk.index, part);
            }
            return count;
        }
        let kept = session.kept.len() as u64;
        if self.fake.strict {
            assert_eq!(chunk.offset, kept, "a request goes on where the store is");
        }
        let end = chunk.offset + count;
        if chunk.offset <= kept && end > kept {
            let new = &bytes[(kept - chunk.offset) as usize..count as usize];
            session.kept.extend_from_slice(new);
        }
        count
    }

    async fn make(&self, ending: &CompleteRequest) -> Result<Finished> {
        let (bytes, options) = {
            let mut state = self.fake.state.lock();
            let session = state.sessions.get_mut(&self.id);
            let session = session.ok_or_else(|| lost(&self.path))?;
            if let Some(tail) = &ending.tail {
                self.keep(session, tail, u64::MAX);
            }
            let bytes = if self.fake.rule.parallel {
                let mut parts: Vec<_> = session.parts.iter().collect();
                parts.sort_by_key(|(index, _)| **index);
                parts
                    .iter()
                    .map(|(_, part)| &part.1[..])
                    .collect::<Vec<_>>()
                    .concat()
            } else {
                session.kept.clone()
            };
            (bytes, session.options.clone())
        };
        assert_eq!(bytes.len() as u64, ending.length, "length told at the end");
        assert_eq!(crc32c(&bytes), ending.crc32c, "checksum told at the end");
        let put = PutOptions {
            mode: options.mode,
            attributes: options.attributes,
            ..PutOptions::default()
        };
        let length = bytes.len() as u64;
        let crc = crc32c(&bytes);
        let put = self
            .fake
            .objects
            .put_opts(&self.path, bytes.into(), put)
            .await?;
        let finished = Finished {
            e_tag: put.e_tag,
            version: put.version,
            length: Some(length),
            crc32c: self.fake.checksums.then_some(crc),
        };
        if let Some(session) = self.fake.state.lock().sessions.get_mut(&self.id) {
            session.finished = Some(finished.clone());
        }
        Ok(finished)
    }
}

impl Handle {
    async fn take(&self, chunk: &Chunk) -> Result<u64> {
        if self.fake.discard {
            return Ok(chunk.range().end);
        }
        if let Some(barrier) = &self.fake.barrier {
            barrier.wait().await;
        }
        let fault = self.fake.state.lock().sends.pop_front();
        let fault = fault.unwrap_or(SessionFault::None);
        if fault == SessionFault::Stall {
            pending::<()>().await;
        }
        let mut state = self.fake.state.lock();
        let state = &mut *state;
        state.log.push(Sent {
            index: chunk.index,
            offset: chunk.offset,
            pieces: chunk
                .pieces
                .iter()
                .map(|piece| (piece.as_ptr() as usize, piece.len()))
                .collect(),
        });
        if let Some(journal) = &state.journal {
            let files = std::fs::read_dir(journal).map_or(0, Iterator::count);
            assert_eq!(
                files, 1,
                "a session the journal does not know carries bytes"
            );
        }
        if let Some(hoard) = &mut state.hoard {
            hoard.extend(chunk.pieces.iter().cloned());
        }
        if fault == SessionFault::Forget {
            state.sessions.remove(&self.id);
        }
        let session = state.sessions.get_mut(&self.id);
        let session = session.ok_or_else(|| lost(&self.path))?;
        if session.finished.is_some() {
            return Err(OriginError::UploadDamaged {
                object: self.path.to_string(),
                detail: "the session has ended".to_owned(),
            }
            .into());
        }
        match fault {
            SessionFault::Keep(count) => Ok(chunk.offset + self.keep(session, chunk, count)),
            SessionFault::LoseAfter(count) => {
                self.keep(session, chunk, count);
                Err(passing("after some bytes"))
            }
            SessionFault::Claim(more) => Ok(chunk.range().end + more),
            SessionFault::Regress(count) => {
                session.kept.truncate(count as usize);
                Err(passing("and forgot"))
            }
            SessionFault::Refuse => Err(Error::PermissionDenied {
                path: self.path.to_string(),
                source: "403".into(),
            }),
            SessionFault::LoseResponse => {
                self.keep(session, chunk, u64::MAX);
                Err(passing("after all bytes"))
            }
            _ => Ok(chunk.offset + self.keep(session, chunk, u64::MAX)),
        }
    }
}

#[async_trait]
impl UploadSession for Handle {
    fn token(&self) -> SessionToken {
        SessionToken(self.id.clone())
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        Ok(PartReceipt::to(self.take(&part.into_chunk()?).await?))
    }

    async fn status(&self) -> Result<SessionStatus> {
        let fault = self.fake.state.lock().statuses.pop_front();
        match fault.unwrap_or(SessionFault::None) {
            SessionFault::None => {}
            SessionFault::Stall => pending::<()>().await,
            _ => return Err(passing("status")),
        }
        let state = self.fake.state.lock();
        let Some(session) = state.sessions.get(&self.id) else {
            return Ok(SessionStatus::Gone);
        };
        if let Some(finished) = &session.finished {
            return Ok(SessionStatus::Finished(finished.clone()));
        }
        let digest = |crc| self.fake.checksums.then_some(ContentDigest::Crc32c(crc));
        if self.fake.rule.parallel {
            let mut kept: Vec<_> = session.parts.values().collect();
            kept.sort_by_key(|part| part.0);
            let kept = kept.into_iter().map(|(offset, bytes, crc)| StoredRange {
                range: *offset..*offset + bytes.len() as u64,
                digest: digest(*crc),
            });
            return Ok(SessionStatus::Open(kept.collect()));
        }
        let kept = StoredRange {
            range: 0..session.kept.len() as u64,
            digest: digest(crc32c(&session.kept)),
        };
        let kept = Some(kept).filter(|kept| !kept.range.is_empty());
        Ok(SessionStatus::Open(kept.into_iter().collect()))
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let fault = self.fake.state.lock().ends.pop_front();
        match fault.unwrap_or(SessionFault::None) {
            SessionFault::LoseAfter(count) => {
                let mut state = self.fake.state.lock();
                let session = state.sessions.get_mut(&self.id);
                let session = session.ok_or_else(|| lost(&self.path))?;
                if let Some(tail) = &ending.tail {
                    self.keep(session, tail, count);
                }
                Err(passing("before the end"))
            }
            SessionFault::Forget => {
                self.fake.state.lock().sessions.remove(&self.id);
                Err(lost(&self.path))
            }
            SessionFault::LoseResponse => {
                self.make(ending).await?;
                Err(passing("after the end"))
            }
            SessionFault::LoseResponseAndForget => {
                self.make(ending).await?;
                self.fake.state.lock().sessions.remove(&self.id);
                Err(passing("after the end"))
            }
            SessionFault::WrongChecksum => {
                let finished = self.make(ending).await?;
                Ok(Finished {
                    crc32c: finished.crc32c.map(|crc| crc ^ 1),
                    ..finished
                })
            }
            SessionFault::WrongLength => {
                let finished = self.make(ending).await?;
                Ok(Finished {
                    length: finished.length.map(|length| length - 1),
                    ..finished
                })
            }
            SessionFault::Refuse => Err(Error::PermissionDenied {
                path: self.path.to_string(),
                source: "403".into(),
            }),
            SessionFault::Stall => pending().await,
            _ => self.make(ending).await,
        }
    }

    async fn abort(&self) -> Result<()> {
        let mut state = self.fake.state.lock();
        state.sessions.remove(&self.id);
        state.aborted += 1;
        Ok(())
    }
}

impl fmt::Display for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fake")
    }
}

#[async_trait]
impl Origin for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: self.rule,
            ..Capabilities::of("fake")
        }
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        Ok(self.object(path).await.map(|bytes| Finished {
            length: Some(bytes.len() as u64),
            crc32c: self.checksums.then(|| crc32c(&bytes)),
            ..Finished::default()
        }))
    }

    async fn open_session(
        &self,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Box<dyn UploadSession>> {
        if options.numbered {
            return self.objects.open_session(path, options).await;
        }
        let id = {
            let mut state = self.state.lock();
            state.opened += 1;
            let id = format!("session-{}", state.opened);
            let session = Session {
                options: options.clone(),
                kept: Vec::new(),
                parts: HashMap::new(),
                finished: None,
            };
            state.sessions.insert(id.clone(), session);
            id
        };
        self.resume_session(path, options, &SessionToken(id)).await
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<Box<dyn UploadSession>> {
        if options.numbered {
            return self.objects.resume_session(path, options, token).await;
        }
        Ok(Box::new(Handle {
            fake: self.clone(),
            path: path.clone(),
            id: token.0.clone(),
        }))
    }
}

bywash_support::forward_object_store! {
    impl[] ObjectStore for Fake => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.objects.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.objects.get_opts(path, options).await
        }
    }
}
