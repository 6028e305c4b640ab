//! Writes: the origin first; what is cached changes only after the origin's yes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, Error, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use crate::bucket::Bucket;
use crate::origin::{Ability, PartBody, UploadedPart};
use crate::part_body::joined;
use crate::progress::watched;
use crate::retry::{is_transient, once, stalled, with_retries};
use crate::upload::{Upload, UploadOptions};

/// How a streamed body is stored.
#[derive(Default)]
pub struct PutStreamOptions {
    /// Replace, create only, or replace a known version only.
    pub mode: PutMode,
    /// Content headers and user metadata.
    pub attributes: Attributes,
    /// Attributes known only when the body has been read, such as a checksum sent as a trailer.
    /// Asked for, and kept, when the body fits one chunk; a longer body's attributes are sent
    /// before its bytes.
    pub late_attributes: Option<Box<dyn FnOnce() -> Attributes + Send>>,
    /// The exact number of bytes to come, if known. Another number is an error and stores nothing.
    pub length: Option<u64>,
}

impl std::fmt::Debug for PutStreamOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PutStreamOptions")
            .field("mode", &self.mode)
            .field("attributes", &self.attributes)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// The slowest origin we bear with while it takes a body, in bytes a second: a put may take as
/// long as this needs, beyond the time limit of any request.
pub(crate) const SLOWEST_PUT_BYTES_PER_S: u64 = 64 << 10;

/// Aborts an upload unless it was finished.
struct AbortOnDrop(Option<Upload>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let Some(mut upload) = self.0.take() else {
            return;
        };
        // Without a runtime (it is shutting down) what was sent stays, seen by nobody.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = upload.abort().await {
                tracing::warn!(?upload, %error, "abort of an unfinished upload failed");
            }
        });
    }
}

impl Bucket {
    /// Streams a body into an object.
    ///
    /// A body of at most one chunk is one atomic put. A longer one is an [`Upload`], finished only when the stream ended without
    /// an error and with the announced length; otherwise it is aborted and the error is returned. Nothing half-written is ever
    /// visible.
    pub async fn put_stream(
        &self,
        path: &Path,
        options: PutStreamOptions,
        mut body: PartBody,
    ) -> Result<PutResult> {
        let upload = UploadOptions {
            mode: options.mode,
            attributes: options.attributes,
            length: options.length,
            transient: true,
            ..UploadOptions::default()
        };
        let upload = self.upload(path, upload).await?;
        // Aborted when this fails, and when it is dropped because the caller left.
        let mut guard = AbortOnDrop(Some(upload));
        let upload = guard.0.as_mut().expect("it was put there just now");
        while let Some(piece) = body.try_next().await? {
            upload.write(piece).await?;
        }
        if let Some(late) = options.late_attributes
            && upload.is_small()
        {
            upload.add_attributes(&late());
        }
        let result = upload.finish().await?;
        guard.0 = None;
        Ok(result.put)
    }

    pub(crate) async fn put_once(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let shared = Arc::clone(self.shared());
        self.write(path, move |path| async move {
            let mut policy = shared.engine.retry;
            policy.stall +=
                Duration::from_secs(payload.content_length() as u64 / SLOWEST_PUT_BYTES_PER_S);
            let attempt = || {
                shared.origin_request(Ability::Write);
                shared
                    .origin
                    .put_opts(&path, payload.clone(), options.clone())
            };
            // A conditional put must not run twice: had the first one succeeded and only its
            // answer been lost, the second would be refused and look like a failure.
            match options.mode {
                PutMode::Overwrite => with_retries(policy, "write", &path, attempt).await,
                PutMode::Create | PutMode::Update(_) => {
                    once(policy.stall, "write", &path, attempt()).await
                }
            }
        })
        .await
    }

    /// Runs what changes `path` at the origin, then forgets the version it replaced.
    ///
    /// In a task of its own: were it dropped with its caller, the origin might still carry it out
    /// after we had looked for what to forget.
    pub(crate) async fn write<T, F>(&self, path: &Path, change: impl FnOnce(Path) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let shared = Arc::clone(self.shared());
        let change = change(path.clone());
        let path = path.clone();
        let task = tokio::spawn(async move {
            let result = change.await;
            shared.written(&path);
            result
        });
        task.await.map_err(|source| Error::JoinError { source })?
    }

    /// Opens an upload whose parts may come in any order; nothing is visible until it is completed.
    pub async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.shared().counters.request();
        self.begin_upload(path, options).await
    }

    /// Stores one part; see [`crate::Origin::put_part`].
    pub async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        self.shared().counters.request();
        self.send_part(path, upload, number, length, body).await
    }

    /// Makes the object of `parts` visible in one step; see [`crate::Origin::complete_upload`].
    pub async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        self.shared().counters.request();
        self.finish_upload(path, upload, parts, mode).await
    }

    /// Drops an upload and its parts.
    pub async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        self.shared().counters.request();
        self.drop_upload(path, upload).await
    }

    /// Deletes up to [`crate::bucket`]'s chunk of objects with one request of the origin; what
    /// fails for a reason that may pass is deleted again one by one.
    pub(crate) async fn delete_chunk(self, paths: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let mut results = Vec::with_capacity(paths.len());
        let mut asked = Vec::with_capacity(paths.len());
        for path in paths {
            match path {
                Ok(path) => asked.push(path),
                error => results.push(error),
            }
        }
        let answers = self.delete_once(asked.clone()).await;
        for (path, answer) in asked.into_iter().zip(answers) {
            results.push(match answer {
                Err(error) if is_transient(&error) => self.delete_with_retries(path).await,
                answer => answer,
            });
        }
        results
    }

    async fn delete_with_retries(&self, path: Path) -> Result<Path> {
        with_retries(self.shared().engine.retry, "delete", &path, async || {
            let mut answers = self.delete_once(vec![path.clone()]).await;
            answers.pop().unwrap_or_else(|| Err(missing_answer()))
        })
        .await
    }

    /// One request; as many answers as paths, in their order.
    async fn delete_once(&self, paths: Vec<Path>) -> Vec<Result<Path>> {
        let shared = Arc::clone(self.shared());
        let stall = shared.engine.retry.stall;
        let count = paths.len();
        let task = tokio::spawn(async move {
            shared.origin_request(Ability::Write);
            let asked = futures::stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let mut answers = shared.origin.delete_stream(asked);
            let mut results = Vec::with_capacity(count);
            while results.len() < count {
                match tokio::time::timeout(stall, answers.next()).await {
                    Ok(Some(answer)) => results.push(answer),
                    // A failed request may answer once for all, and a silent one not at all; what
                    // became of the rest is not known.
                    Ok(None) | Err(_) => break,
                }
            }
            for path in &paths {
                shared.written(path);
            }
            results
        });
        let mut results = task.await.unwrap_or_default();
        results.resize_with(count, || Err(missing_answer()));
        results
    }

    pub(crate) async fn begin_upload(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<String> {
        with_retries(self.shared().engine.retry, "begin upload of", path, || {
            self.shared().origin_request(Ability::Write);
            self.shared().origin.create_upload(path, options.clone())
        })
        .await
    }

    async fn send_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let shared = self.shared();
        shared.origin_request(Ability::Write);
        let body = match shared.origin.wants_joined_pieces() {
            true => joined(body, &shared.engine),
            false => body,
        };
        let (body, progress) = watched(body);
        let sending = shared.origin.put_part(path, upload, number, length, body);
        let result = progress.guard(shared.engine.retry.stall, sending).await;
        result.unwrap_or_else(|| Err(stalled(shared.engine.retry)))
    }

    pub(crate) async fn finish_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        let shared = Arc::clone(self.shared());
        let (upload, parts) = (upload.to_owned(), parts.to_owned());
        self.write(path, move |path| async move {
            let limit = shared.engine.retry.with_server_work().stall;
            shared.origin_request(Ability::Write);
            once(
                limit,
                "complete upload of",
                &path,
                shared.origin.complete_upload(&path, &upload, &parts, mode),
            )
            .await
        })
        .await
    }

    pub(crate) async fn drop_upload(&self, path: &Path, upload: &str) -> Result<()> {
        with_retries(self.shared().engine.retry, "abort upload of", path, || {
            self.shared().origin_request(Ability::Write);
            self.shared().origin.abort_upload(path, upload)
        })
        .await
    }
}

fn missing_answer() -> Error {
    Error::Generic {
        store: "Bywash",
        source: "the origin did not say what became of a delete".into(),
    }
}
