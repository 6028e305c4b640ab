//! Uploads of a wrapped store in numbered parts.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{Error, PutMode, PutPayload, PutResult, Result};

use super::lending::Lending;
use crate::interface::{CompleteOptions, PartBody, UploadedPart, invalid_part};
use crate::part_stream::part_stream;
use crate::parts::PartStore;

/// A client of numbered parts of the program.
#[derive(Clone)]
pub(super) struct WrappedParts {
    pub(super) multipart: Arc<dyn MultipartStore>,
    /// Of parts, which a store may keep until their object is complete.
    pub(super) lending: Arc<Lending>,
    /// The store, in errors.
    pub(super) name: String,
}

impl fmt::Debug for WrappedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappedParts({})", self.name)
    }
}

/// Error of an operation that `store` lacks.
pub(super) fn lacks(store: &impl fmt::Display, operation: String) -> Error {
    Error::NotImplemented {
        operation,
        implementer: format!("the wrapped store {store}"),
    }
}

/// Refuses a condition on an object of more than one chunk: object_store has none for uploads in parts.
pub(super) fn check_mode(store: &impl fmt::Display, path: &Path, mode: &PutMode) -> Result<()> {
    if *mode == PutMode::Overwrite {
        return Ok(());
    }
    let operation = format!(
        "upload of {path} in parts on a condition: write it without one, or by one request (EngineBuilder::chunk_size):"
    );
    Err(lacks(store, operation))
}

#[async_trait]
impl PartStore for WrappedParts {
    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let index = number.checked_sub(1).ok_or_else(|| {
            let e_tag = String::new();
            invalid_part(path, &UploadedPart { number, e_tag })
        })?;
        let pieces: Vec<Bytes> = part_stream(path, length, body).try_collect().await?;
        let payload = PutPayload::from_iter(pieces);
        let (payload, loan) = self.lending.lend(&payload).await;
        let id = upload.to_owned();
        let part = self
            .multipart
            .put_part(path, &id, usize::from(index), payload)
            .await?;
        loan.acknowledged();
        Ok(part.content_id)
    }

    /// The parts must be numbered from 1 without a gap: object_store names them by their place.
    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        CompleteOptions { mode, .. }: CompleteOptions,
    ) -> Result<PutResult> {
        check_mode(&self.name, path, &mode)?;
        let mut ids = Vec::with_capacity(parts.len());
        for (place, part) in (1..).zip(parts) {
            if part.number != place {
                let operation = format!(
                    "upload of {path} of the part {} as its part {place}: number them from 1 without a gap:",
                    part.number
                );
                return Err(lacks(&self.name, operation));
            }
            ids.push(PartId {
                content_id: part.e_tag.clone(),
            });
        }
        let upload = upload.to_owned();
        self.multipart.complete_multipart(path, &upload, ids).await
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let upload = upload.to_owned();
        self.multipart.abort_multipart(path, &upload).await
    }
}
