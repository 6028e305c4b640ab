//! object_store's two multipart interfaces, on top of [`Origin`]'s uploads.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    MultipartUpload, PutMode, PutMultipartOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use super::FolderStore;
use super::error::FolderError;
use super::uploads::check_number;
use crate::origin::{Origin, PartBody, UploadedPart};

fn payload_body(payload: PutPayload) -> PartBody {
    stream::iter(payload.into_iter().map(Ok)).boxed()
}

#[async_trait]
impl MultipartStore for FolderStore {
    async fn create_multipart(&self, path: &Path) -> Result<String> {
        self.create_upload(path, PutMultipartOptions::default())
            .await
    }

    async fn create_multipart_opts(
        &self,
        path: &Path,
        opts: PutMultipartOptions,
    ) -> Result<String> {
        self.create_upload(path, opts).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &String,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let number = check_number(part_idx.saturating_add(1))?;
        let length = data.content_length() as u64;
        let content_id =
            Origin::put_part(self, path, id, number, length, payload_body(data)).await?;
        Ok(PartId { content_id })
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &String,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let numbered = parts.into_iter().enumerate().map(|(index, part)| {
            Ok(UploadedPart {
                number: check_number(index + 1)?,
                e_tag: part.content_id,
            })
        });
        let parts = numbered.collect::<Result<Vec<_>>>()?;
        self.complete_upload(path, id, &parts, PutMode::Overwrite)
            .await
    }

    async fn abort_multipart(&self, path: &Path, id: &String) -> Result<()> {
        self.abort_upload(path, id).await
    }
}

/// The upload behind [`object_store::ObjectStore::put_multipart_opts`]; it numbers its parts in the order of the
/// calls. Its id is not shared, so dropping it unfinished removes it.
pub(super) struct FolderUpload {
    store: FolderStore,
    path: Path,
    id: String,
    /// ETags by part; `None` until the part is stored.
    parts: Arc<Mutex<Vec<Option<String>>>>,
    open: bool,
}

impl fmt::Debug for FolderUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderUpload")
            .field("path", &self.path)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl FolderUpload {
    pub(super) async fn create(
        store: FolderStore,
        path: Path,
        opts: PutMultipartOptions,
    ) -> Result<Self> {
        let id = store.create_upload(&path, opts).await?;
        Ok(Self {
            store,
            path,
            id,
            parts: Arc::default(),
            open: true,
        })
    }
}

#[async_trait]
impl MultipartUpload for FolderUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let index = {
            let mut parts = self.parts.lock();
            parts.push(None);
            parts.len() - 1
        };
        let (store, path, id) = (self.store.clone(), self.path.clone(), self.id.clone());
        let parts = Arc::clone(&self.parts);
        Box::pin(async move {
            let part = MultipartStore::put_part(&store, &path, &id, index, data).await?;
            parts.lock()[index] = Some(part.content_id);
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let parts = self.parts.lock().clone();
        let stored = parts.into_iter().enumerate().map(|(index, part)| {
            let content_id = part.ok_or_else(|| FolderError::PartMissing(index + 1).generic())?;
            Ok(PartId { content_id })
        });
        let parts = stored.collect::<Result<Vec<_>>>()?;
        let put = self
            .store
            .complete_multipart(&self.path, &self.id, parts)
            .await?;
        self.open = false;
        Ok(put)
    }

    async fn abort(&mut self) -> Result<()> {
        self.store.abort_upload(&self.path, &self.id).await?;
        self.open = false;
        Ok(())
    }
}

impl Drop for FolderUpload {
    /// Blocks for the removal of the parts.
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.store.inner.drop_upload(&self.path, &self.id)
        {
            tracing::debug!(path = %self.path, %error, "unfinished upload not removed");
        }
    }
}
