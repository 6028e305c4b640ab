//! Exclusive completion of an upload.

use std::sync::Arc;

use s3s::S3Result;

use super::{UploadChange, UploadName, Uploads};

/// An upload being completed. Owned by the task that completes it, not by the waiting client.
pub(crate) struct Completion {
    pub(super) uploads: Arc<Uploads>,
    pub(super) name: UploadName,
    pub(super) done: bool,
}

impl Completion {
    /// Records the list of parts before the completion is sent to the origin, in case the response is lost.
    pub(crate) async fn begin(&self, attempt: String) -> S3Result<()> {
        let name = self.name.clone();
        self.uploads
            .run(move |uploads| {
                uploads.change(
                    &name,
                    UploadChange::Completing(attempt),
                    uploads.memory.empty(),
                )
            })
            .await
    }

    /// The object exists, or never can: removes the upload.
    pub(crate) async fn done(mut self) -> S3Result<()> {
        self.done = true;
        self.uploads.remove(&self.name).await
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.done
            && let Some(upload) = self.uploads.open.lock().get_mut(&self.name)
        {
            upload.completing = false;
        }
    }
}
