//! Uploads in numbered parts and chunks, as an endpoint and the engine make them of the sessions of a store.

use async_trait::async_trait;
use bywash::origin::{
    Chunk, CompleteRequest, Finished, NewSession, PartSource, SessionOptions, SessionPart,
    SessionToken, UploadSession,
};
use bywash::{CompleteOptions, Origin, PartBody, UploadedPart};
use object_store::path::Path;
use object_store::{PutMode, PutMultipartOptions, Result};

/// The requests of an upload whose parts a client numbers.
#[async_trait]
pub(crate) trait NumberedParts: Origin {
    async fn begin_upload(&self, path: &Path, create: PutMultipartOptions) -> Result<String> {
        let options = SessionOptions {
            attributes: create.attributes,
            tags: create.tags,
            numbered: true,
            ..SessionOptions::default()
        };
        Ok(self.open_session(path, &options).await?.token().0)
    }

    async fn of_id(&self, path: &Path, id: &str, mode: PutMode) -> Result<NewSession> {
        let options = SessionOptions {
            mode,
            numbered: true,
            ..SessionOptions::default()
        };
        let token = SessionToken(id.to_owned());
        self.resume_session(path, &options, &token).await
    }

    async fn send_part(
        &self,
        path: &Path,
        id: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let session = self.of_id(path, id, PutMode::Overwrite).await?;
        let part = SessionPart {
            number: number.into(),
            place: None,
            length,
            source: PartSource::Stream(body),
        };
        Ok(session.put(part).await?.e_tag)
    }

    async fn complete_parts(
        &self,
        path: &Path,
        id: &str,
        parts: &[UploadedPart],
        options: CompleteOptions,
    ) -> Result<Finished> {
        let session = self.of_id(path, id, options.mode).await?;
        let ending = CompleteRequest {
            parts: Some(parts.to_vec()),
            attributes: options.attributes,
            ..CompleteRequest::default()
        };
        session.finish(&ending).await
    }

    async fn abort_parts(&self, path: &Path, id: &str) -> Result<()> {
        let session = self.of_id(path, id, PutMode::Overwrite).await?;
        session.abort().await
    }
}

impl<O: Origin + ?Sized> NumberedParts for O {}

/// Chunks of a session.
#[async_trait]
pub(crate) trait SendChunk {
    /// Returns the offset below which the store has all of the chunk's bytes.
    async fn send(&self, chunk: &Chunk) -> Result<u64>;
}

#[async_trait]
impl<S: UploadSession + ?Sized> SendChunk for S {
    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        Ok(self.put(chunk.into()).await?.end)
    }
}
