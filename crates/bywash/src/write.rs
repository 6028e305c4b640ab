//! Writes: the origin first; what is cached changes only after the origin's yes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash_mem::{Frame, Share};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, Error, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::origin::{PartBody, UploadedPart, body_length_error};
use crate::progress::watched;
use crate::retry::{Retries, is_transient, once, stalled, unavailable, with_retries};

/// The most parts an upload may have, as in the S3 protocol.
const PARTS_LIMIT: u16 = 10_000;

/// The largest frame of the pool: a chunk is made of as few frames as it can.
const LARGEST_FRAME_BYTES: usize = 4 << 20;

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
const SLOWEST_PUT_BYTES_PER_S: u64 = 64 << 10;

/// Aborts an upload unless it was completed.
struct AbortOnDrop(Option<(Bucket, Path, String)>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let Some((bucket, path, upload)) = self.0.take() else {
            return;
        };
        // Without a runtime (it is shutting down) the parts stay, seen by nobody.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = bucket.drop_upload(&path, &upload).await {
                tracing::warn!(object = %path, upload, %error, "abort of an unfinished upload failed");
            }
        });
    }
}

/// One chunk of a body, in frames; `last` when the body ended with it.
struct Chunk {
    pieces: Vec<Bytes>,
    length: u64,
    last: bool,
}

/// The rest of a body, and what its last piece had beyond the chunk before.
struct Source {
    body: PartBody,
    rest: Bytes,
    announced: Option<u64>,
    taken: u64,
}

impl Source {
    /// Whether the body has ended. May wait for its next piece.
    async fn ended(&mut self) -> Result<bool> {
        while self.rest.is_empty() {
            match self.body.try_next().await? {
                Some(piece) => self.rest = piece,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// The next piece, at most `limit` bytes of it; empty at the end.
    async fn next(&mut self, limit: usize) -> Result<Bytes> {
        self.ended().await?;
        let piece = self.rest.split_to(limit.min(self.rest.len()));
        self.taken += piece.len() as u64;
        Ok(piece)
    }

    /// The most bytes still to come, as far as announced.
    fn expected(&self, most: u64) -> u64 {
        self.announced
            .map_or(most, |announced| (announced - self.taken).min(most))
    }

    /// Whether the body keeps to the announced length so far. `last`: it has ended.
    fn check_length(&self, path: &Path, last: bool) -> Result<()> {
        let seen = self.taken + self.rest.len() as u64;
        match self.announced {
            Some(announced) if seen > announced || (last && seen < announced) => {
                Err(body_length_error(path, announced, seen))
            }
            _ => Ok(()),
        }
    }
}

impl Bucket {
    /// Streams a body into an object.
    ///
    /// A body of at most one chunk is one atomic put. A longer one becomes an upload in parts,
    /// completed only when the stream ended without an error and with the announced length;
    /// otherwise it is aborted and the error is returned. Nothing half-written is ever visible.
    pub async fn put_stream(
        &self,
        path: &Path,
        options: PutStreamOptions,
        body: PartBody,
    ) -> Result<PutResult> {
        self.shared().counters.request();
        let mut source = Source {
            body,
            rest: Bytes::new(),
            announced: options.length,
            taken: 0,
        };
        let chunk = self.read_chunk(path, &mut source).await?;
        if !chunk.last {
            return self.put_in_parts(path, options, chunk, source).await;
        }
        let mut attributes = options.attributes;
        if let Some(late) = options.late_attributes {
            for (name, value) in &late() {
                attributes.insert(name.clone(), value.clone());
            }
        }
        let put = PutOptions {
            mode: options.mode,
            attributes,
            ..PutOptions::default()
        };
        self.put_once(path, PutPayload::from_iter(chunk.pieces), put)
            .await
    }

    async fn put_in_parts(
        &self,
        path: &Path,
        options: PutStreamOptions,
        first: Chunk,
        source: Source,
    ) -> Result<PutResult> {
        let create = PutMultipartOptions {
            attributes: options.attributes,
            ..PutMultipartOptions::default()
        };
        let upload = self.begin_upload(path, create).await?;
        // Aborted when this fails, and when it is dropped because the caller left.
        let mut abort = AbortOnDrop(Some((self.clone(), path.clone(), upload.clone())));
        let parts = self.put_parts(path, &upload, first, source).await?;
        let result = self
            .finish_upload(path, &upload, &parts, options.mode)
            .await?;
        abort.0 = None;
        Ok(result)
    }

    async fn put_parts(
        &self,
        path: &Path,
        upload: &str,
        first: Chunk,
        mut source: Source,
    ) -> Result<Vec<UploadedPart>> {
        let mut parts = Vec::new();
        let mut chunk = first;
        loop {
            let number = parts.len() as u16 + 1;
            if number > PARTS_LIMIT {
                return Err(EngineError::TooManyParts {
                    object: path.to_string(),
                    limit_parts: PARTS_LIMIT,
                }
                .into());
            }
            let last = chunk.last;
            let payload = PutPayload::from_iter(chunk.pieces);
            let e_tag = self.send_pieces(path, upload, number, payload).await?;
            parts.push(UploadedPart { number, e_tag });
            if last {
                return Ok(parts);
            }
            chunk = self.read_chunk(path, &mut source).await?;
        }
    }

    /// Reads up to one chunk into frames, waiting for their memory before the first byte.
    async fn read_chunk(&self, path: &Path, source: &mut Source) -> Result<Chunk> {
        let engine = &self.shared().engine;
        let expected = source.expected(engine.chunk_size);
        let frame_size = (expected.next_power_of_two() as usize).clamp(1, LARGEST_FRAME_BYTES);
        let count = expected.div_ceil(frame_size as u64) as usize;
        let mut frames = match count {
            0 => Vec::new(),
            count => {
                engine
                    .frames(Share::Upload, frame_size, count, "write", path)
                    .await?
            }
        };
        let mut chunk = Chunk {
            pieces: Vec::new(),
            length: 0,
            last: false,
        };
        while let Some(frame) = frames.pop() {
            let room = (expected - chunk.length).min(frame.capacity() as u64) as usize;
            let piece = fill(frame, room, source).await?;
            let filled = piece.len() == room;
            chunk.length += piece.len() as u64;
            if !piece.is_empty() {
                chunk.pieces.push(piece);
            }
            if !filled {
                break;
            }
        }
        chunk.last = source.ended().await?;
        source.check_length(path, chunk.last)?;
        Ok(chunk)
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
                shared.counters.origin_request();
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
            shared.counters.origin_request();
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
            self.shared().counters.origin_request();
            self.shared().origin.create_upload(path, options.clone())
        })
        .await
    }

    /// Sends a part whose bytes are here, so that it can be sent again.
    pub(crate) async fn send_pieces(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        payload: PutPayload,
    ) -> Result<String> {
        let length = payload.content_length() as u64;
        let mut retries = Retries::new(self.shared().engine.retry);
        loop {
            let pieces: Vec<_> = payload.iter().cloned().map(Ok).collect();
            let body = futures::stream::iter(pieces).boxed();
            match self.send_part(path, upload, number, length, body).await {
                Err(error) if is_transient(&error) && retries.again().await => {}
                Err(error) if is_transient(&error) => {
                    return Err(unavailable("write part of", path, error));
                }
                result => return result,
            }
        }
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
        shared.counters.origin_request();
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
            shared.counters.origin_request();
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
            self.shared().counters.origin_request();
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

/// Fills the first `room` bytes of a frame, or fewer if the body ends.
async fn fill(mut frame: Frame, room: usize, source: &mut Source) -> Result<Bytes> {
    let mut filled = 0;
    while filled < room {
        let piece = source.next(room - filled).await?;
        if piece.is_empty() {
            break;
        }
        frame.as_mut_slice()[filled..filled + piece.len()].copy_from_slice(&piece);
        filled += piece.len();
    }
    Ok(Bytes::from_owner(frame).slice(..filled))
}
