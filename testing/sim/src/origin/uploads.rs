//! Multipart uploads, with parts in any order.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::origin::{
    Capabilities, NewSession, PartStore, PartsSession, SessionOptions, SessionToken, StoreIdentity,
};
use bywash::{CompleteOptions, Origin, PartBody, UploadedPart};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    Attributes, Error, MultipartUpload, PutMode, PutPayload, PutResult, Result, UploadPart,
};

use super::{Operation, STORE, SimOrigin, not_found};

#[derive(Debug)]
pub(super) struct Upload {
    path: Path,
    attributes: Attributes,
    parts: BTreeMap<u16, (String, Bytes)>,
}

#[async_trait]
impl Origin for SimOrigin {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("sim")
    }

    fn identity(&self) -> Option<StoreIdentity> {
        Some(StoreIdentity::of(format!("sim://{}", self.shared.seed)))
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        let id = self.begin(path, options.attributes.clone()).await?;
        Ok(PartsSession::begun(self.clone(), path, options, id))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        PartsSession::resume(self.clone(), path, options, token)
    }
}

impl SimOrigin {
    /// Begins an upload and returns its id.
    pub(super) async fn begin(&self, path: &Path, attributes: Attributes) -> Result<String> {
        let pending = self
            .shared
            .receive(Operation::CreateUpload, path, None, false);
        pending.delay_or_fail(&self.shared, path).await?;
        let id = format!("upload-{}", pending.index);
        let upload = Upload {
            path: path.clone(),
            attributes,
            parts: BTreeMap::new(),
        };
        self.shared.state.lock().uploads.insert(id.clone(), upload);
        pending.acknowledge()?;
        Ok(id)
    }
}

#[async_trait]
impl PartStore for SimOrigin {
    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let pending = self.shared.receive(Operation::PutPart, path, None, false);
        pending.delay_or_fail(&self.shared, path).await?;
        let pieces: Vec<Bytes> = body.try_collect().await?;
        let bytes = Bytes::from(pieces.concat());
        if bytes.len() as u64 != length {
            return Err(Error::Generic {
                store: STORE,
                source: format!(
                    "part {number} has {} bytes, announced were {length}",
                    bytes.len()
                )
                .into(),
            });
        }
        let e_tag = format!("\"p{}\"", pending.index);
        {
            let mut state = self.shared.state.lock();
            let found = state
                .uploads
                .get_mut(upload)
                .filter(|upload| upload.path == *path);
            found
                .ok_or_else(|| not_found(path))?
                .parts
                .insert(number, (e_tag.clone(), bytes));
        }
        pending.acknowledge()?;
        Ok(e_tag)
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        CompleteOptions { mode, .. }: CompleteOptions,
    ) -> Result<PutResult> {
        let pending = self
            .shared
            .receive(Operation::CompleteUpload, path, None, false);
        pending.delay_or_fail(&self.shared, path).await?;
        let result = {
            let mut state = self.shared.state.lock();
            let found = state
                .uploads
                .get(upload)
                .filter(|upload| upload.path == *path);
            let found = found.ok_or_else(|| not_found(path))?;
            let mut body = Vec::new();
            for part in parts {
                match found.parts.get(&part.number) {
                    Some((e_tag, bytes)) if *e_tag == part.e_tag => body.extend_from_slice(bytes),
                    _ => {
                        return Err(Error::Precondition {
                            path: path.to_string(),
                            source: format!("InvalidPart: {}", part.number).into(),
                        });
                    }
                }
            }
            let attributes = found.attributes.clone();
            let result = self
                .shared
                .put(&mut state, path, body.into(), attributes, &mode)?;
            state.uploads.remove(upload);
            result
        };
        pending.acknowledge()?;
        Ok(result)
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let pending = self
            .shared
            .receive(Operation::AbortUpload, path, None, false);
        pending.delay_or_fail(&self.shared, path).await?;
        let removed = self.shared.state.lock().uploads.remove(upload);
        removed.ok_or_else(|| not_found(path))?;
        pending.acknowledge()
    }
}

/// Upload of object_store's trait, which numbers the parts in the order of its calls.
#[derive(Debug)]
pub(super) struct SequentialUpload {
    pub(super) origin: SimOrigin,
    pub(super) path: Path,
    pub(super) id: Arc<str>,
    pub(super) parts: Arc<parking_lot::Mutex<Vec<Option<UploadedPart>>>>,
}

#[async_trait]
impl MultipartUpload for SequentialUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let index = {
            let mut parts = self.parts.lock();
            parts.push(None);
            parts.len() - 1
        };
        let (origin, path, id, parts) = (
            self.origin.clone(),
            self.path.clone(),
            Arc::clone(&self.id),
            Arc::clone(&self.parts),
        );
        async move {
            let number = u16::try_from(index + 1).map_err(|source| Error::Generic {
                store: STORE,
                source: source.into(),
            })?;
            let length = data.content_length() as u64;
            let body = stream::iter(data.into_iter().map(Ok)).boxed();
            let sent = origin.put_part(&path, &id, number, length, body);
            let e_tag = sent.await?;
            parts.lock()[index] = Some(UploadedPart { number, e_tag });
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let parts: Option<Vec<_>> = self.parts.lock().iter().cloned().collect();
        let parts = parts.ok_or_else(|| Error::Generic {
            store: STORE,
            source: "a part is missing".into(),
        })?;
        let mode = PutMode::Overwrite.into();
        self.origin
            .complete_upload(&self.path, &self.id, &parts, mode)
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        self.origin.abort_upload(&self.path, &self.id).await
    }
}
