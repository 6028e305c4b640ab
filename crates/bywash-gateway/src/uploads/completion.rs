//! The completion of an upload, which no other request may join.

use std::sync::Arc;

use s3s::S3Result;

use super::{Change, UploadName, Uploads};

/// An upload being completed. Goes with the origin's work, not with the client that waits for it.
pub(crate) struct Completion {
    pub(super) uploads: Arc<Uploads>,
    pub(super) name: UploadName,
    pub(super) done: bool,
}

impl Completion {
    /// The origin is about to be asked: notes from which parts, in case its answer is lost.
    pub(crate) async fn begin(&self, attempt: String) -> S3Result<()> {
        let name = self.name.clone();
        self.uploads
            .run(move |uploads| {
                uploads.change(&name, Change::Completing(attempt), uploads.room.empty())
            })
            .await
    }

    /// The object is there, or can never be: the upload is gone.
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
