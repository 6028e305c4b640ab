//! Adapts an upload to `MultipartUpload`: parts in the order given, whichever future is polled first.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;

use super::Upload;

/// Concatenates parts of any length into one stream, cut into the store's chunks.
#[derive(Debug)]
pub(crate) struct Ordered(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes given and not written yet, in order.
    given: Mutex<VecDeque<Bytes>>,
    upload: tokio::sync::Mutex<Upload>,
}

impl Ordered {
    pub(crate) fn new(upload: Upload) -> Self {
        Self(Arc::new(Shared {
            given: Mutex::default(),
            upload: tokio::sync::Mutex::new(upload),
        }))
    }
}

impl Shared {
    /// Writes all bytes given so far, also of parts with dropped futures.
    async fn write(&self, upload: &mut Upload) -> Result<()> {
        loop {
            let next = self.given.lock().pop_front();
            match next {
                Some(bytes) => upload.write(bytes).await?,
                None => return upload.write(Bytes::new()).await,
            }
        }
    }
}

#[async_trait]
impl MultipartUpload for Ordered {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.0.given.lock().extend(data);
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let mut upload = shared.upload.lock().await;
            shared.write(&mut upload).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let mut upload = self.0.upload.lock().await;
        self.0.write(&mut upload).await?;
        Ok(upload.finish().await?.put)
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.given.lock().clear();
        self.0.upload.lock().await.abort().await
    }
}
