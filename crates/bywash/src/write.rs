//! Writes: the origin first; what is cached changes only after the origin's yes.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::origin::{PartBody, UploadedPart, body_length_error};

/// The most parts an upload may have, as in the S3 protocol.
const PARTS_LIMIT: u16 = 10_000;

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

/// One chunk of a body, in pieces; `last` when the body ended with it.
struct Chunk {
    pieces: Vec<Bytes>,
    length: u64,
    last: bool,
}

impl Bucket {
    /// Streams a body into an object.
    ///
    /// A body of at most one chunk is one atomic put. A longer one becomes an upload in parts,
    /// completed only when the stream ended without an error and with the announced length;
    /// otherwise it is aborted and the error is returned. Nothing half-written is ever visible.
    pub async fn put_stream(&self, path: &Path, options: PutStreamOptions, body: PartBody) -> Result<PutResult> {
        self.shared().counters.request();
        let mut body = body;
        let mut rest = Bytes::new();
        let chunk = self.read_chunk(&mut body, &mut rest).await?;
        if !chunk.last {
            return self.put_in_parts(path, options, chunk, body, rest).await;
        }
        check_length(path, options.length, chunk.length, true)?;
        let mut attributes = options.attributes;
        if let Some(late) = options.late_attributes {
            for (name, value) in &late() {
                attributes.insert(name.clone(), value.clone());
            }
        }
        let put = PutOptions { mode: options.mode, attributes, ..PutOptions::default() };
        self.put_once(path, PutPayload::from_iter(chunk.pieces), put).await
    }

    async fn put_in_parts(
        &self,
        path: &Path,
        options: PutStreamOptions,
        first: Chunk,
        mut body: PartBody,
        mut rest: Bytes,
    ) -> Result<PutResult> {
        let create = PutMultipartOptions { attributes: options.attributes, ..PutMultipartOptions::default() };
        let upload = self.create_upload(path, create).await?;
        let result = self.put_parts(path, &upload, options.length, first, &mut body, &mut rest).await;
        let parts = match result {
            Ok(parts) => parts,
            Err(error) => {
                // The upload's own failure is what the caller needs to hear; an abort that fails
                // too leaves parts that nobody sees, and is logged.
                if let Err(abort) = self.abort_upload(path, &upload).await {
                    tracing::warn!(object = %path, upload, error = %abort, "abort of a failed upload failed");
                }
                return Err(error);
            }
        };
        self.complete_upload(path, &upload, &parts, options.mode).await
    }

    async fn put_parts(
        &self,
        path: &Path,
        upload: &str,
        expected: Option<u64>,
        first: Chunk,
        body: &mut PartBody,
        rest: &mut Bytes,
    ) -> Result<Vec<UploadedPart>> {
        let mut parts = Vec::new();
        let mut total = 0;
        let mut chunk = first;
        loop {
            total += chunk.length;
            check_length(path, expected, total, chunk.last)?;
            let number = parts.len() as u16 + 1;
            if number > PARTS_LIMIT {
                return Err(EngineError::TooManyParts { object: path.to_string(), limit_parts: PARTS_LIMIT }.into());
            }
            let last = chunk.last;
            let pieces = futures::stream::iter(chunk.pieces.into_iter().map(Ok)).boxed();
            let e_tag = self.put_part(path, upload, number, chunk.length, pieces).await?;
            parts.push(UploadedPart { number, e_tag });
            if last {
                return Ok(parts);
            }
            chunk = self.read_chunk(body, rest).await?;
        }
    }

    /// Reads up to one chunk; `rest` carries what a piece had beyond it.
    async fn read_chunk(&self, body: &mut PartBody, rest: &mut Bytes) -> Result<Chunk> {
        let size = self.shared().engine.chunk_size;
        let mut chunk = Chunk { pieces: Vec::new(), length: 0, last: false };
        loop {
            let mut piece = std::mem::take(rest);
            if piece.is_empty() {
                match body.try_next().await? {
                    Some(next) => piece = next,
                    None => {
                        chunk.last = true;
                        return Ok(chunk);
                    }
                }
            }
            let room = size - chunk.length;
            if piece.len() as u64 > room {
                *rest = piece.split_off(room as usize);
            }
            chunk.length += piece.len() as u64;
            if !piece.is_empty() {
                chunk.pieces.push(piece);
            }
            if !rest.is_empty() {
                return Ok(chunk);
            }
        }
    }

    pub(crate) async fn put_once(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.shared().counters.origin_request();
        self.shared().origin.put_opts(path, payload, options).await
    }

    /// Opens an upload whose parts may come in any order; nothing is visible until it is completed.
    pub async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.shared().counters.origin_request();
        self.shared().origin.create_upload(path, options).await
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
        self.shared().counters.origin_request();
        self.shared().origin.put_part(path, upload, number, length, body).await
    }

    /// Makes the object of `parts` visible in one step; see [`crate::Origin::complete_upload`].
    pub async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        self.shared().counters.origin_request();
        self.shared().origin.complete_upload(path, upload, parts, mode).await
    }

    /// Drops an upload and its parts.
    pub async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        self.shared().counters.origin_request();
        self.shared().origin.abort_upload(path, upload).await
    }
}

fn check_length(path: &Path, expected: Option<u64>, got: u64, ended: bool) -> Result<()> {
    match expected {
        Some(expected) if got > expected || (ended && got < expected) => Err(body_length_error(path, expected, got)),
        _ => Ok(()),
    }
}
