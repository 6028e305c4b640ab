//! Writes: the origin first; known versions are dropped when the write has ended.

use std::future::Future;
use std::sync::Arc;

use bywash_mem::Share;
use bywash_store::{
    Capability, CompleteOptions, CompleteRequest, ENCRYPTION, ObjectTags, OriginError, PartBody,
    PartSource, SessionOptions, SessionPart, SessionToken, UploadSession, UploadedPart,
};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetResult, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, TagSet,
};

use crate::bucket::Bucket;
use crate::conditional_put::ConditionalPut;
use crate::content_check::ContentCompared;
use crate::copy_memory::{CopyMemory, CopyReads, CopySizes};
use crate::error::EngineError;
use crate::part_body::joined;
use crate::progress::send_watched;
use crate::read;
use crate::retry::{once, with_retries};
use crate::upload::{Upload, UploadOptions};
use crate::written_blocks::WrittenBlocks;

/// Options of a streamed body.
#[derive(Default)]
pub struct PutStreamOptions {
    /// Replace, create only, or replace a known version only.
    pub mode: PutMode,
    /// Content headers and user metadata.
    pub attributes: Attributes,
    /// Tags, for a store that keeps tags of its objects ([`Bucket::has_tags`]).
    pub tags: TagSet,
    /// Attributes known only after the body was read, such as a checksum sent as a trailer. Of a body longer than one chunk they are
    /// kept if [`Bucket::takes_late_attributes`].
    pub late_attributes: Option<Box<dyn FnOnce() -> Attributes + Send>>,
    /// Exact number of bytes to come, if known. Any other number is an error and stores nothing.
    pub length: Option<u64>,
    /// Memory reserved for the copy that the body is of; see [`Bucket::copy_memory`].
    pub memory: Option<CopyMemory>,
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

/// Aborts an upload unless it was finished.
struct AbortOnDrop(Option<Upload>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let Some(mut upload) = self.0.take() else {
            return;
        };
        // Without a runtime (at shutdown) the parts stay at the store, invisible.
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

/// Converts the error of parts that do not have the digest in the key.
fn wrong_content(error: Error) -> Error {
    match OriginError::find(&error) {
        Some(OriginError::WrongDigest {
            object,
            expected,
            got,
        }) => EngineError::WrongContent {
            object: object.clone(),
            expected: *expected,
            got: *got,
        }
        .into(),
        _ => error,
    }
}

impl Bucket {
    /// Streams a body into an object.
    ///
    /// A body of at most one chunk is one atomic put. A longer one is an [`Upload`], finished only if the stream
    /// ended without an error and with the announced length. Otherwise it is aborted and the error is returned. No
    /// partial object ever becomes visible.
    pub async fn put_stream(
        &self,
        path: &Path,
        options: PutStreamOptions,
        mut body: PartBody,
    ) -> Result<PutResult> {
        let upload = UploadOptions {
            mode: options.mode,
            attributes: options.attributes,
            tags: options.tags,
            length: options.length,
            transient: true,
            ..UploadOptions::default()
        };
        let mut upload = self.upload(path, upload).await?;
        let mut memory = options.memory;
        if let Some(chunk) = memory.as_mut().and_then(CopyMemory::take_chunk) {
            upload.fill_into(chunk);
        }
        // Aborted on an error, and when the caller drops the future.
        let mut guard = AbortOnDrop(Some(upload));
        let upload = guard.0.as_mut().expect("it was put there just now");
        while let Some(piece) = body.try_next().await? {
            upload.write(piece).await?;
        }
        if let Some(late) = options.late_attributes {
            upload.add_attributes(&late());
        }
        let result = upload.finish().await?;
        guard.0 = None;
        Ok(result.put)
    }

    /// Reserves the memory of a copy of `length` bytes to `path`, with these tags: of a chunk to send, and of the buffers that
    /// [`Self::get_for_copy`] reads into. Waits in the order of all copies and then of all writes, up to the admission deadline,
    /// and holds nothing during the wait. The caller must hold no memory either.
    ///
    /// # Errors
    /// [`crate::EngineError::SlowDown`] at the deadline; [`crate::EngineError::InvalidSetting`] if the memory can never hold a chunk
    /// of such an object.
    pub async fn copy_memory(&self, path: &Path, length: u64, tags: &TagSet) -> Result<CopyMemory> {
        let options = UploadOptions {
            tags: tags.clone(),
            length: Some(length),
            ..UploadOptions::default()
        };
        let chunk = self.chunk_bytes(&options)?;
        let sizes = CopySizes { length, chunk };
        CopyMemory::reserve(&self.shared().engine, sizes, path).await
    }

    /// As [`Self::copy_memory`], for a copy of `length` bytes to a part of an upload, which passes them on as they are read.
    ///
    /// # Errors
    /// As [`Self::copy_memory`].
    pub async fn part_copy_memory(&self, path: &Path, length: u64) -> Result<CopyMemory> {
        let sizes = CopySizes { length, chunk: 0 };
        CopyMemory::reserve(&self.shared().engine, sizes, path).await
    }

    /// As [`object_store::ObjectStore::get_opts`], into memory reserved for a copy: the body waits for no other memory. Of the bodies
    /// of one copy, each is begun after the one before it has ended.
    pub async fn get_for_copy(
        &self,
        path: &Path,
        options: GetOptions,
        memory: &CopyReads,
    ) -> Result<GetResult> {
        read::get_for_copy(self.shared(), path, options, memory).await
    }

    /// Requests the metadata of an object from its store, also if they are known here.
    pub async fn head_now(&self, path: &Path) -> Result<ObjectMeta> {
        read::head_now(self.shared(), path).await
    }

    pub(crate) async fn put_once(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        options.attributes.remove(&ENCRYPTION);
        let shared = Arc::clone(self.shared());
        if options.extensions.remove::<ContentCompared>().is_none() {
            shared.check_content(path, payload.iter()).await?;
        }
        let kept = shared.keeps_writes().then(|| payload.clone());
        let put = self.write(path, move |path| async move {
            let mut retry = shared.retry();
            retry.policy.stall = retry.policy.limit(payload.content_length() as u64);
            if options.mode != PutMode::Overwrite {
                let put = ConditionalPut {
                    shared: &shared,
                    path: &path,
                    payload,
                    options,
                    retry,
                };
                return put.send().await;
            }
            let attempt = || {
                shared.origin_request(Capability::Write);
                shared
                    .origin
                    .put_opts(&path, payload.clone(), options.clone())
            };
            with_retries(retry, "write", &path, attempt).await
        });
        let put = put.await?;
        if let Some(payload) = kept {
            read::keep_written(self.shared(), path, &payload, put.e_tag.as_deref()).await;
        }
        Ok(put)
    }

    /// Keeps the blocks of an upload that the origin has confirmed.
    pub(crate) async fn keep_upload(
        &self,
        path: &Path,
        blocks: WrittenBlocks,
        length: u64,
        e_tag: Option<&str>,
    ) {
        read::keep_upload(self.shared(), path, blocks, length, e_tag).await;
    }

    /// Runs `change` at the origin, then drops the known version of `path`, in a cluster at all nodes.
    ///
    /// Runs in a task of its own. If it were dropped with its caller, the origin might still apply the change
    /// after the invalidation.
    pub(crate) async fn write<T, F>(&self, path: &Path, change: impl FnOnce(Path) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let shared = Arc::clone(self.shared());
        let change = change(path.clone());
        let path = path.clone();
        let task = tokio::spawn(async move {
            let turn = shared.turn(vec![path.clone()]).await;
            let result = change.await;
            shared.invalidate(&path);
            turn.end(result).await
        });
        task.await.map_err(|source| Error::JoinError { source })?
    }

    /// Requests the tags of an object, where the store keeps them ([`Self::has_tags`]). They are not cached.
    pub async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        let shared = self.shared();
        shared.counters.request();
        with_retries(shared.retry(), "read the tags of", path, || {
            shared.counters.origin_request();
            shared.origin.object_tags(path)
        })
        .await
    }

    /// Replaces the tags of an object in one step, where the store keeps them; none deletes them all.
    ///
    /// # Errors
    /// [`crate::OriginError::InvalidTag`] if the store refuses a tag; otherwise as any request.
    pub async fn set_object_tags(&self, path: &Path, tags: ObjectTags) -> Result<()> {
        let shared = Arc::clone(self.shared());
        shared.counters.request();
        self.write(path, move |path| async move {
            with_retries(shared.retry(), "tag", &path, || {
                shared.origin_request(Capability::Write);
                shared.origin.set_object_tags(&path, &tags)
            })
            .await
        })
        .await
    }

    /// Begins an upload with parts in any order; nothing is visible until it is completed.
    ///
    /// # Errors
    /// In a bucket whose keys have the digests of their objects, [`EngineError::KeyWithoutDigest`], and [`EngineError::NeedsWholeWrite`]
    /// if the store does not compare parts; otherwise as any request.
    pub async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.shared().counters.request();
        self.shared().digest_of_parts(path)?;
        self.begin_upload(path, options).await
    }

    /// Session of an upload whose parts a client numbers. Sends no request.
    pub(crate) async fn numbered(
        &self,
        path: &Path,
        upload: &str,
        mode: PutMode,
    ) -> Result<Box<dyn UploadSession>> {
        let options = SessionOptions {
            mode,
            numbered: true,
            ..SessionOptions::default()
        };
        let token = SessionToken(upload.to_owned());
        let origin = &self.shared().origin;
        origin.resume_session(path, &options, &token).await
    }

    /// Stores one part of exactly `length` bytes, replacing an earlier one of the same number, and returns its ETag. If the body fails or
    /// has another length, no part is stored; an earlier part of that number may stay. A part is one attempt: its bytes are not kept.
    pub async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let shared = self.shared();
        shared.counters.request();
        let mut policy = shared.engine.retry;
        let _charge = if shared.origin.capabilities().gathers_parts {
            // The body is taken before it is sent, so its sending shows no progress.
            policy.stall = policy.limit(length);
            let object = path.as_ref();
            let charge = shared
                .engine
                .reserve(Share::Upload, length, "upload a part of", object);
            Some(charge.await?)
        } else {
            None
        };
        shared.origin_request(Capability::Write);
        let body = if shared.origin.capabilities().wants_joined_pieces {
            joined(body, &shared.engine)
        } else {
            body
        };
        let session = self.numbered(path, upload, PutMode::Overwrite).await?;
        let sent = send_watched(policy, body, |body| {
            session.put(SessionPart {
                number: number.into(),
                place: None,
                length,
                source: PartSource::Stream(body),
            })
        });
        Ok(sent.await?.e_tag)
    }

    /// Completes an upload: the object of `parts`, in this order, becomes visible in one step. The mode is checked then.
    ///
    /// # Errors
    /// [`crate::OriginError::InvalidPart`] for an unknown part or a wrong ETag, `NotFound` for an unknown upload,
    /// [`EngineError::WrongContent`] for parts without the digest in the key. None leaves a shorter object, and the upload stays. Otherwise
    /// as any request.
    pub async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        options: impl Into<CompleteOptions>,
    ) -> Result<PutResult> {
        self.shared().counters.request();
        let mut options = options.into();
        // Also of an upload that began before the bucket had the setting.
        options.digest = self.shared().digest_of_parts(path)?;
        let finished = self.finish_upload(path, upload, parts, options).await;
        finished.map_err(wrong_content)
    }

    /// Aborts an upload and removes its parts.
    pub async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        self.shared().counters.request();
        self.drop_upload(path, upload).await
    }

    pub(crate) async fn begin_upload(
        &self,
        path: &Path,
        mut options: PutMultipartOptions,
    ) -> Result<String> {
        options.attributes.remove(&ENCRYPTION);
        let options = SessionOptions {
            attributes: options.attributes,
            tags: options.tags,
            numbered: true,
            ..SessionOptions::default()
        };
        let begun = with_retries(self.shared().retry(), "begin upload of", path, || {
            self.shared().origin_request(Capability::Write);
            self.shared().origin.open_session(path, &options)
        });
        Ok(begun.await?.token().0)
    }

    pub(crate) async fn finish_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        options: CompleteOptions,
    ) -> Result<PutResult> {
        let shared = Arc::clone(self.shared());
        let session = self.numbered(path, upload, options.mode).await?;
        let ending = CompleteRequest {
            parts: Some(parts.to_owned()),
            attributes: options.attributes,
            digest: options.digest,
            ..CompleteRequest::default()
        };
        self.write(path, move |path| async move {
            let limit = shared.engine.retry.with_server_work().stall;
            shared.origin_request(Capability::Write);
            let finished = session.finish(&ending);
            let finished = once(limit, "complete upload of", &path, finished).await?;
            Ok(finished.into())
        })
        .await
    }

    pub(crate) async fn drop_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let session = self.numbered(path, upload, PutMode::Overwrite).await?;
        with_retries(self.shared().retry(), "abort upload of", path, || {
            self.shared().origin_request(Capability::Write);
            session.abort()
        })
        .await
    }
}
