//! The I/O of sessions over blocks: sends what `session.rs` says, and turns its findings into the engine's errors.

use std::fmt;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderName, Method, StatusCode};
use md5::{Digest as _, Md5};
use object_store::path::Path;
use object_store::{Error, PutMode, Result};
use parking_lot::Mutex;

use super::session::{self, Block, BlockLists, Blocks, RULE};
use super::upload::{BlockUpload, block_list, error_code};
use super::{AzureStore, condition};
use crate::EngineError;
use crate::limits::MAX_BLOCK_LIST_BYTES;
use crate::upload::http::{Answer, Request};
use crate::upload::{
    Chunk, ChunkRule, Ending, Finished, Kept, SessionOptions, SessionStatus, SessionToken,
    UploadSession,
};

/// Names this kind of store in errors.
const STORE: &str = "MicrosoftAzure";

/// An upload by blocks. Azure knows nothing of it but the blocks.
pub(super) struct AzureSession {
    store: AzureStore,
    path: Path,
    upload: BlockUpload,
    mode: PutMode,
    /// What was acknowledged or listed.
    blocks: Mutex<Blocks>,
}

impl fmt::Debug for AzureSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AzureSession({}/{})", self.store, self.path)
    }
}

fn generic(text: String) -> Error {
    Error::Generic {
        store: STORE,
        source: text.into(),
    }
}

impl AzureStore {
    /// Opens a session. Sends no request: Azure needs to know nothing before the first block.
    pub(super) fn open(&self, path: &Path, options: &SessionOptions) -> Result<AzureSession> {
        // Wrong before a byte is sent rather than after all of them.
        condition(&self.client.requests, options.mode.clone())?;
        Ok(self.session(path, options, BlockUpload::begin(&options.attributes)))
    }

    pub(super) fn take_over(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<AzureSession> {
        let name = session::name_of(&token.0).ok_or_else(|| {
            generic(format!(
                "resume upload of {path}: what was kept of its session is no upload of Azure; upload it again"
            ))
        })?;
        let upload = BlockUpload::named(name, &options.attributes);
        Ok(self.session(path, options, upload))
    }

    fn session(&self, path: &Path, options: &SessionOptions, upload: BlockUpload) -> AzureSession {
        AzureSession {
            store: self.clone(),
            path: path.clone(),
            upload,
            mode: options.mode.clone(),
            blocks: Mutex::default(),
        }
    }
}

impl AzureSession {
    async fn ask(
        &self,
        method: Method,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        body: Vec<Bytes>,
    ) -> Result<Answer> {
        let length = body.iter().map(|piece| piece.len() as u64).sum();
        let signed = self
            .store
            .sign(method, &self.path, query, headers, length)
            .await?;
        let mut request = Request::new(signed.method, signed.url)
            .body(body)
            .answer_limit(MAX_BLOCK_LIST_BYTES);
        for (name, value) in &signed.headers {
            // The client writes it from the body.
            if name != http::header::CONTENT_LENGTH || length == 0 {
                request = request.header(name.clone(), value.clone());
            }
        }
        self.store.client.sessions.send(request).await
    }

    fn refused(&self, operation: &str, answer: &Answer) -> Error {
        let (object, code) = (
            self.path.to_string(),
            error_code(&answer.headers, &answer.body),
        );
        match code.as_str() {
            "BlobAlreadyExists" => Error::AlreadyExists {
                path: object,
                source: code.into(),
            },
            // The bytes were damaged on their way, and go again.
            "Md5Mismatch" => generic(format!("{operation} {object}: {code}")),
            _ => match answer.error(STORE, operation, &object, &code) {
                Error::Precondition { path, source } if matches!(self.mode, PutMode::Create) => {
                    Error::AlreadyExists { path, source }
                }
                error => error,
            },
        }
    }

    /// Asks for the blob's blocks; `None` if there is no blob and no block.
    async fn list(&self) -> Result<Option<(BlockLists, Option<String>)>> {
        let query = [("comp", "blocklist"), ("blocklisttype", "all")];
        let answer = self.ask(Method::GET, &query, &[], Vec::new()).await?;
        let code = error_code(&answer.headers, &answer.body);
        if answer.status == StatusCode::NOT_FOUND && code != "ContainerNotFound" {
            return Ok(None);
        }
        if !answer.status.is_success() {
            return Err(self.refused("list blocks of", &answer));
        }
        let lists = BlockLists::parse(&answer.body)
            .map_err(|error| generic(format!("list blocks of {}: {error}", self.path)))?;
        Ok(Some((lists, answer.header("etag").map(str::to_owned))))
    }

    /// The object, if the blob is made of this upload's blocks: a commit was carried out.
    async fn committed(&self) -> Result<Option<Finished>> {
        let listed = self.list().await?;
        Ok(listed.and_then(|(lists, e_tag)| self.finished(&lists, e_tag)))
    }

    fn finished(&self, lists: &BlockLists, e_tag: Option<String>) -> Option<Finished> {
        let length = lists.committed(self.upload.name())?;
        Some(Finished {
            e_tag,
            length: Some(length),
            ..Finished::default()
        })
    }

    async fn commit_list(&self, length: u64) -> Result<Vec<String>> {
        let known = session::covering(&self.blocks.lock(), length);
        if let Some(ids) = known {
            return Ok(ids);
        }
        let listed = self.list().await?;
        let mut blocks = self.blocks.lock();
        if let Some((lists, _)) = listed {
            for (start, block) in lists.open(self.upload.name()) {
                blocks.entry(start).or_insert(block);
            }
        }
        session::covering(&blocks, length).ok_or_else(|| self.lost())
    }

    fn lost(&self) -> Error {
        EngineError::UploadLost {
            object: self.path.to_string(),
        }
        .into()
    }
}

#[async_trait]
impl UploadSession for AzureSession {
    fn rule(&self) -> ChunkRule {
        RULE
    }

    fn token(&self) -> SessionToken {
        SessionToken(session::token_of(self.upload.name()))
    }

    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        let block = Block::of(self.upload.name(), chunk);
        let mut md5 = Md5::new();
        chunk.pieces.iter().for_each(|piece| md5.update(piece));
        let md5 = BASE64_STANDARD.encode(md5.finalize());
        let headers = [(HeaderName::from_static("content-md5"), md5)];
        let query = [("comp", "block"), ("blockid", &*block.id)];
        let answer = self
            .ask(Method::PUT, &query, &headers, chunk.pieces.clone())
            .await?;
        if !answer.status.is_success() {
            return Err(self.refused("send block of", &answer));
        }
        self.blocks.lock().insert(chunk.offset, block);
        Ok(chunk.range().end)
    }

    async fn status(&self) -> Result<SessionStatus> {
        // An upload without blocks is open all the same: Azure does not know that it was opened.
        let Some((lists, e_tag)) = self.list().await? else {
            return Ok(SessionStatus::Open(Vec::new()));
        };
        if let Some(finished) = self.finished(&lists, e_tag) {
            return Ok(SessionStatus::Finished(finished));
        }
        let open = lists.open(self.upload.name());
        let kept: Vec<Kept> = open.values().map(Block::kept).collect();
        Ok(SessionStatus::Open(kept))
    }

    async fn finish(&self, ending: &Ending) -> Result<Finished> {
        let ids = self.commit_list(ending.length).await?;
        let mut headers = self.upload.headers();
        headers.extend(condition(&self.store.client.requests, self.mode.clone())?);
        let body = vec![Bytes::from(block_list(&ids))];
        let query = [("comp", "blocklist")];
        let answer = self.ask(Method::PUT, &query, &headers, body).await?;
        if answer.status.is_success() {
            return Ok(Finished {
                e_tag: answer.header("etag").map(str::to_owned),
                version: answer.header("x-ms-version-id").map(str::to_owned),
                ..Finished::default()
            });
        }
        if !answer.status.is_client_error() {
            return Err(self.refused("commit upload of", &answer));
        }
        // An earlier commit, whose answer was lost, may be in the way of this one.
        if let Some(finished) = self.committed().await? {
            return Ok(finished);
        }
        match error_code(&answer.headers, &answer.body).as_str() {
            "InvalidBlockList" => Err(self.lost()),
            _ => Err(self.refused("commit upload of", &answer)),
        }
    }

    /// Azure has no such request: the blocks go with the next commit to the blob, or after a week.
    async fn abort(&self) -> Result<()> {
        Ok(())
    }
}
