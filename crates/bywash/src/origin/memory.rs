//! The `memory://` origin: object_store's in-memory store, plus uploads with attributes.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::interface::{Origin, PartBody, UploadedPart, body_length_error, invalid_part};

/// Objects in memory, lost when the process ends.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    objects: Arc<InMemory>,
    uploads: Arc<Mutex<HashMap<String, MemoryUpload>>>,
    /// Upload and part ids; only uniqueness matters, hence relaxed.
    next_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct MemoryUpload {
    path: Path,
    options: PutMultipartOptions,
    parts: BTreeMap<u16, (String, Vec<Bytes>)>,
}

impl MemoryStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn id(&self, kind: &str) -> String {
        format!("{kind}-{}", self.next_id.fetch_add(1, Relaxed))
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory://")
    }
}

fn no_such_upload(path: &Path, upload: &str) -> Error {
    Error::NotFound {
        path: path.to_string(),
        source: format!("no upload {upload}").into(),
    }
}

#[async_trait]
impl Origin for MemoryStore {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        let id = self.id("upload");
        let upload = MemoryUpload {
            path: path.clone(),
            options,
            parts: BTreeMap::new(),
        };
        self.uploads.lock().insert(id.clone(), upload);
        Ok(id)
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        mut body: PartBody,
    ) -> Result<String> {
        let mut pieces = Vec::new();
        let mut got = 0;
        while let Some(piece) = body.next().await {
            // Copied, so that an object does not keep the sender's buffers alive.
            let piece = Bytes::copy_from_slice(&piece?);
            got += piece.len() as u64;
            pieces.push(piece);
        }
        if got != length {
            return Err(body_length_error(path, length, got));
        }
        let e_tag = self.id("part");
        match self.uploads.lock().get_mut(upload) {
            Some(found) if found.path == *path => {
                found.parts.insert(number, (e_tag.clone(), pieces))
            }
            _ => return Err(no_such_upload(path, upload)),
        };
        Ok(e_tag)
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        let (payload, options) = {
            let uploads = self.uploads.lock();
            let found = uploads.get(upload).filter(|found| found.path == *path);
            let found = found.ok_or_else(|| no_such_upload(path, upload))?;
            let mut pieces = Vec::new();
            for part in parts {
                match found.parts.get(&part.number) {
                    Some((e_tag, part_pieces)) if *e_tag == part.e_tag => {
                        pieces.extend(part_pieces.iter().cloned())
                    }
                    _ => return Err(invalid_part(path, part)),
                }
            }
            let options = PutOptions {
                mode,
                tags: found.options.tags.clone(),
                attributes: found.options.attributes.clone(),
                ..PutOptions::default()
            };
            (PutPayload::from_iter(pieces), options)
        };
        let result = self.objects.put_opts(path, payload, options).await?;
        self.uploads.lock().remove(upload);
        Ok(result)
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let removed = self.uploads.lock().remove(upload);
        removed
            .map(|_| ())
            .ok_or_else(|| no_such_upload(path, upload))
    }
}

crate::forward_object_store! {
    impl[] ObjectStore for MemoryStore => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            // Copied for the same reason as a part.
            let copied: Vec<u8> = payload.iter().flatten().copied().collect();
            self.objects.put_opts(path, copied.into(), options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.objects.get_opts(path, options).await
        }
    }
}
