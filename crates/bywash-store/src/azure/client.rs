//! I/O of sessions over blocks: sends the requests of `session.rs`, and converts its outcomes into the engine's
//! errors.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use object_store::path::Path;
use object_store::{Error, PutMode, Result};
use parking_lot::Mutex;

use super::session::{self, Block, BlockLists, Blocks};
use super::upload::{BlockUpload, block_list, error_code, part_tag};
use super::{AzureStore, STORE, committed, condition};
use crate::digest::pieces_md5;
use crate::error::{OriginError, generic_error};
use crate::http_client::{Request, Response};
use crate::interface::{ListedParts, UploadedPart, invalid_part};
use crate::limits::MAX_BLOCK_LIST_BYTES;
use crate::session::{
    CompleteRequest, Finished, PartReceipt, SessionOptions, SessionPart, SessionStatus,
    SessionToken, StoredRange, UploadSession,
};

/// An upload by blocks. Azure knows only the blocks, not the upload.
pub(crate) struct AzureSession {
    store: AzureStore,
    path: Path,
    upload: BlockUpload,
    mode: PutMode,
    /// Stall limit of a request; `None` if a client numbers the parts, whose progress the caller watches.
    stall: Option<Duration>,
    /// Acknowledged or listed blocks.
    blocks: Mutex<Blocks>,
}

impl fmt::Debug for AzureSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AzureSession({}/{})", self.store, self.path)
    }
}

/// The operation of a session's list in errors.
const LIST: &str = "list blocks of";

fn generic(text: String) -> Error {
    generic_error(STORE, text)
}

impl AzureStore {
    /// Opens a session. Sends no request: Azure needs none before the first block.
    pub(crate) fn open(&self, path: &Path, options: &SessionOptions) -> Result<AzureSession> {
        // Fails before the first byte is sent rather than after the last.
        condition(&options.mode)?;
        Ok(self.session(path, options, BlockUpload::begin(&options.attributes)))
    }

    pub(crate) fn take_over(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<AzureSession> {
        if options.numbered {
            let upload = BlockUpload::parse(path, &token.0)?;
            return Ok(self.session(path, options, upload));
        }
        let (name, blocks) = session::parse_token(&token.0).ok_or_else(|| {
            generic(format!(
                "resume upload of {path}: the recorded session is not valid; upload it again"
            ))
        })?;
        let upload = BlockUpload::named(name, &options.attributes);
        let session = self.session(path, options, upload);
        *session.blocks.lock() = blocks;
        Ok(session)
    }

    fn session(&self, path: &Path, options: &SessionOptions, upload: BlockUpload) -> AzureSession {
        AzureSession {
            store: self.clone(),
            path: path.clone(),
            upload,
            mode: options.mode.clone(),
            stall: (!options.numbered).then_some(options.stall),
            blocks: Mutex::default(),
        }
    }
}

impl AzureSession {
    async fn send(&self, mut request: Request) -> Result<Response> {
        if let Some(stall) = self.stall {
            request = request.stall(stall);
        }
        let request = request.max_response_bytes(MAX_BLOCK_LIST_BYTES);
        self.store.send(&self.path, request).await
    }

    fn refused(&self, operation: &str, response: &Response) -> Error {
        let is_create = matches!(self.mode, PutMode::Create);
        self.store
            .refused(operation, &self.path, response, is_create)
    }

    /// Sends a block: the headers and body of `block`.
    async fn put_block(&self, operation: &str, id: &str, block: Request) -> Result<()> {
        let block = block.query("comp", "block").query("blockid", id);
        let response = self.send(block).await?;
        if response.status.is_success() {
            return Ok(());
        }
        Err(self.refused(operation, &response))
    }

    /// Lists the blob's blocks; `None` if there is no blob and no block.
    async fn list(&self, operation: &str) -> Result<Option<(BlockLists, Option<String>)>> {
        let request = Request::new(Method::GET).query("comp", "blocklist");
        let response = self.send(request.query("blocklisttype", "all")).await?;
        let code = error_code(&response);
        if response.status == StatusCode::NOT_FOUND && code != "ContainerNotFound" {
            return Ok(None);
        }
        if !response.status.is_success() {
            return Err(self.refused(operation, &response));
        }
        let lists = BlockLists::parse(&response.body)
            .map_err(|error| generic(format!("{operation} {}: {error}", self.path)))?;
        Ok(Some((lists, response.header("etag").map(str::to_owned))))
    }

    /// Requests that the blob become these blocks.
    async fn commit(&self, ids: &[String]) -> Result<Response> {
        let request = Request::new(Method::PUT)
            .texts(self.upload.headers())
            .texts(condition(&self.mode)?)
            .body(vec![block_list(ids).into()]);
        self.send(request.query("comp", "blocklist")).await
    }

    /// Returns the object if the blob consists of this upload's blocks: the commit succeeded.
    async fn find_committed(&self) -> Result<Option<Finished>> {
        let listed = self.list(LIST).await?;
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
        let listed = self.list(LIST).await?;
        let mut blocks = self.blocks.lock();
        if let Some((lists, _)) = listed {
            for (start, block) in lists.open(self.upload.name()) {
                blocks.entry(start).or_insert(block);
            }
        }
        session::covering(&blocks, length).ok_or_else(|| self.lost())
    }

    /// Has the blob become the blocks of `parts`, which a client has numbered.
    async fn finish_numbered(&self, parts: &[UploadedPart]) -> Result<Finished> {
        let blocks = parts
            .iter()
            .map(|part| self.upload.block(part.number.into(), &part.e_tag));
        let blocks: Option<Vec<String>> = blocks.collect();
        let Some(first) = parts.first() else {
            return Err(generic("an upload has no part".to_owned()));
        };
        let Some(blocks) = blocks else {
            return Err(invalid_part(&self.path, first));
        };
        let response = self.commit(&blocks).await?;
        match response.status {
            status if status.is_success() => Ok(committed(&response)),
            StatusCode::BAD_REQUEST if error_code(&response) == "InvalidBlockList" => {
                Err(invalid_part(&self.path, first))
            }
            _ => Err(self.refused("complete upload of", &response)),
        }
    }

    fn lost(&self) -> Error {
        OriginError::upload_lost(&self.path)
    }
}

#[async_trait]
impl UploadSession for AzureSession {
    fn token(&self) -> SessionToken {
        SessionToken(match self.stall {
            Some(_) => session::token_of(self.upload.name(), &self.blocks.lock()),
            None => self.upload.id(),
        })
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let Some(place) = part.place else {
            let tag = part_tag();
            let block = self.upload.block(part.number, &tag);
            let block = block.ok_or_else(|| generic("a part's tag is malformed".to_owned()))?;
            let body = part.source.into_body()?;
            let request = Request::new(Method::PUT).part(&self.path, part.length, body);
            self.put_block("send part of", &block, request).await?;
            return Ok(PartReceipt { end: 0, e_tag: tag });
        };
        let chunk = part.into_chunk()?;
        let block = Block::of(self.upload.name(), &chunk);
        let (end, md5) = (chunk.range().end, pieces_md5(&chunk.pieces));
        let request = Request::new(Method::PUT).text("content-md5", &md5);
        let request = request.body(chunk.pieces);
        self.put_block("send block of", &block.id, request).await?;
        self.blocks.lock().insert(place.offset, block);
        Ok(PartReceipt::to(end))
    }

    /// The uncommitted blocks of the blob, whose ids name the upload, the part's number and its tag.
    async fn parts(&self, after: u16, max: usize) -> Result<ListedParts> {
        let Some((lists, _)) = self.list("list parts of").await? else {
            return Ok(ListedParts::default());
        };
        let parts = lists.parts(|id| self.upload.part_of(id));
        Ok(ListedParts::page(parts, after, max, false))
    }

    async fn status(&self) -> Result<SessionStatus> {
        let listed = match self.list(LIST).await {
            // A signature may allow writing and not listing: then only acknowledged blocks are known.
            Err(Error::PermissionDenied { .. }) => {
                let known = self.blocks.lock();
                return Ok(SessionStatus::Open(
                    known.values().map(Block::stored).collect(),
                ));
            }
            listed => listed?,
        };
        // An upload without blocks is open all the same: Azure does not know that it was opened.
        let Some((lists, e_tag)) = listed else {
            return Ok(SessionStatus::Open(Vec::new()));
        };
        if let Some(finished) = self.finished(&lists, e_tag) {
            return Ok(SessionStatus::Finished(finished));
        }
        let open = lists.open(self.upload.name());
        let stored: Vec<StoredRange> = open.values().map(Block::stored).collect();
        Ok(SessionStatus::Open(stored))
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        if let Some(parts) = &ending.parts {
            return self.finish_numbered(parts).await;
        }
        let ids = self.commit_list(ending.length).await?;
        let response = self.commit(&ids).await?;
        if response.status.is_success() {
            return Ok(committed(&response));
        }
        if !response.status.is_client_error() {
            return Err(self.refused("commit upload of", &response));
        }
        // An earlier commit with a lost response may conflict with this one.
        if let Some(finished) = self.find_committed().await? {
            return Ok(finished);
        }
        match error_code(&response).as_str() {
            "InvalidBlockList" => Err(self.lost()),
            _ => Err(self.refused("commit upload of", &response)),
        }
    }

    /// Azure has no such request: the blocks are removed by the next commit to the blob, or after a week.
    async fn abort(&self) -> Result<()> {
        Ok(())
    }
}
