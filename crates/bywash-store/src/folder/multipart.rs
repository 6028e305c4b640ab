//! object_store's multipart upload, as an upload session that ends with its process.

use std::sync::Arc;

use async_trait::async_trait;
use crc_fast::{CrcAlgorithm, Digest};
use object_store::path::Path;
use object_store::{
    Attributes, MultipartUpload, PutMultipartOptions, PutPayload, PutResult, Result, UploadPart,
};

use super::error::{blocking, refuse_tags};
use super::root::Root;
use super::session::FolderSession;
use crate::error::OriginError;
use crate::session::{Chunk, SessionOptions, UploadSession};

/// The upload behind [`object_store::ObjectStore::put_multipart_opts`]. A part's offset follows from the order of the
/// calls. Dropping it unfinished removes it.
#[derive(Debug)]
pub(super) struct FolderUpload {
    path: Path,
    /// `None` from the end on, so that the space of an aborted upload is free.
    session: Option<FolderSession>,
    parts: u64,
    /// Bytes of all parts.
    length: u64,
}

impl FolderUpload {
    pub(super) async fn create(
        root: &Arc<Root>,
        path: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Self> {
        refuse_tags(&opts.tags)?;
        let (root, key) = (Arc::clone(root), path.clone());
        let options = SessionOptions {
            attributes: opts.attributes,
            transient: true,
            ..SessionOptions::default()
        };
        let open = move || FolderSession::open(root, key, &options);
        Ok(Self {
            path: path.clone(),
            session: Some(blocking(open).await?),
            parts: 0,
            length: 0,
        })
    }

    fn session(&self) -> Result<FolderSession> {
        self.session.clone().ok_or_else(|| {
            OriginError::UploadEnded {
                object: self.path.to_string(),
                how: "ended",
            }
            .into()
        })
    }
}

#[async_trait]
impl MultipartUpload for FolderUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (index, offset) = (self.parts, self.length);
        self.parts += 1;
        self.length += data.content_length() as u64;
        let session = self.session();
        Box::pin(async move {
            let send = move |session: &FolderSession| {
                let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
                data.iter().for_each(|piece| digest.update(piece));
                session.send_now(&Chunk {
                    index,
                    offset,
                    pieces: data.into_iter().collect(),
                    // The CRC has 32 bits.
                    crc32c: digest.finalize() as u32,
                })
            };
            session?.run(send).await.map(|_| ())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let length = self.length;
        let complete =
            move |session: &FolderSession| session.complete_now(length, &Attributes::new());
        let placed = self.session()?.run(complete).await?;
        self.session = None;
        Ok(placed.into())
    }

    async fn abort(&mut self) -> Result<()> {
        if let Some(session) = &self.session {
            session.abort().await?;
        }
        self.session = None;
        Ok(())
    }
}

impl Drop for FolderUpload {
    /// Blocks for the removal of the parts.
    fn drop(&mut self) {
        if let Some(session) = &self.session
            && let Err(error) = session.abort_now()
        {
            tracing::debug!(path = %self.path, %error, "unfinished upload not removed");
        }
    }
}
