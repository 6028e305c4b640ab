//! The `memory://` origin: object_store's in-memory store, plus uploads with attributes, ETags of clients, conditional deletes, and renames.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, TagSet,
};
use parking_lot::Mutex;

use super::client_etag::{CLIENT_ETAG, etag_matches, given, join};
use super::interface::{
    AttributeRewrite, Capabilities, CompleteOptions, DeleteCondition, ObjectRename, Origin,
    PartBody, TextHeaders, UploadedPart, VersionDeletes, body_length_error, invalid_part,
};
use crate::error::{OriginError, not_found_error, precondition_error};
use crate::page::{Keys, Objects};
use crate::parts::{PartStore, PartsSession};
use crate::session::{NewSession, SessionOptions, SessionToken};

/// Objects in memory, lost when the process ends.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    /// The client's ETag of an object is one of its attributes.
    objects: Arc<InMemory>,
    /// Held by a change, whose condition is checked before it.
    changes: Arc<Mutex<()>>,
    uploads: Arc<Mutex<HashMap<String, MemoryUpload>>>,
    /// Upload and part ids; only uniqueness matters, hence relaxed.
    next_id: Arc<AtomicU64>,
}

#[derive(Debug)]
struct MemoryUpload {
    path: Path,
    tags: TagSet,
    attributes: Attributes,
    parts: BTreeMap<u16, (String, Vec<Bytes>)>,
}

/// Returns the result of a call of the inner store, which never waits.
fn ready<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never()
        .expect("object_store's memory store waits for nothing")
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

    /// Returns the object without its bytes, with the ETag of the inner store.
    fn stored(&self, path: &Path) -> Result<GetResult> {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        ready(self.objects.get_opts(path, head))
    }

    /// Adds the client's ETag to a listed object.
    fn listed(&self, mut meta: ObjectMeta) -> ObjectMeta {
        // An object that was deleted since is listed as it was.
        if let Ok(found) = self.stored(&meta.location)
            && found.meta.e_tag == meta.e_tag
        {
            meta.e_tag = full_e_tag(&found);
        }
        meta
    }

    /// Deletes an object if it meets `condition`.
    fn delete_now(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        let _turn = self.changes.lock();
        let found = match self.stored(path) {
            Err(Error::NotFound { .. }) if condition.e_tag.is_none() => return Ok(()),
            found => found?,
        };
        let e_tag = full_e_tag(&found).unwrap_or_default();
        let named = match condition.e_tag.as_deref() {
            None | Some("*") => true,
            Some(wanted) => etag_matches(&e_tag, wanted),
        };
        if !named || !condition.allows(&found.meta) {
            return Err(precondition_error(
                path,
                "the object is not the one of the condition",
            ));
        }
        ready(self.objects.delete(path))
    }

    fn put_now(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let _turn = self.changes.lock();
        self.put_locked(path, payload, options)
    }

    /// Gives an object another key, if it is the version of `rename`.
    fn rename_now(&self, from: &Path, to: &Path, rename: &ObjectRename) -> Result<PutResult> {
        let _turn = self.changes.lock();
        let found = self.stored(from)?;
        let e_tag = full_e_tag(&found).unwrap_or_default();
        let wanted = rename.version.e_tag.as_deref().unwrap_or_default();
        if !etag_matches(&e_tag, wanted) {
            return Err(precondition_error(
                from,
                "the object is not the version to rename",
            ));
        }
        let read = ready(self.objects.get_opts(from, GetOptions::default()))?;
        let bytes = ready(read.bytes())?;
        let mut attributes = rename.attributes.clone();
        if let Some(client) = given(&found.attributes) {
            attributes.insert(CLIENT_ETAG, client.to_owned().into());
        }
        let options = PutOptions {
            mode: rename.mode.clone(),
            attributes,
            ..PutOptions::default()
        };
        let put = self.put_locked(to, bytes.into(), options)?;
        ready(self.objects.delete(from))?;
        Ok(put)
    }

    /// Writes an object; the caller holds the lock of changes.
    fn put_locked(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let client = given(&options.attributes).map(str::to_owned);
        if let PutMode::Update(version) = &mut options.mode
            && let Some(wanted) = &version.e_tag
            && let Ok(found) = self.stored(path)
            && full_e_tag(&found).is_some_and(|e_tag| etag_matches(&e_tag, wanted))
        {
            version.e_tag = found.meta.e_tag;
        }
        let mut put = ready(self.objects.put_opts(path, payload, options))?;
        put.e_tag = put.e_tag.map(|e_tag| join(e_tag, client.as_deref()));
        Ok(put)
    }
}

/// Returns the ETag of an object, with the client's.
fn full_e_tag(found: &GetResult) -> Option<String> {
    let e_tag = found.meta.e_tag.clone()?;
    Some(join(e_tag, given(&found.attributes)))
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory://")
    }
}

fn no_such_upload(path: &Path, upload: &str) -> Error {
    not_found_error(path, format!("no upload {upload}"))
}

#[async_trait]
impl Origin for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            compares_parts: true,
            takes_late_attributes: true,
            text_headers: TextHeaders::Everywhere,
            version_deletes: VersionDeletes::ByStore,
            rewrites_in_place: true,
            ..Capabilities::of("memory")
        }
    }

    async fn rewrite_in_place(
        &self,
        path: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let version = rewrite.version.clone();
        let read = GetOptions {
            if_match: version.e_tag.clone(),
            ..GetOptions::default()
        };
        // The bytes are shared by both versions.
        let bytes = self.get_opts(path, read).await?.bytes().await?;
        let options = PutOptions {
            mode: PutMode::Update(version),
            attributes: rewrite.attributes.clone(),
            tags: rewrite.tags.clone(),
            ..PutOptions::default()
        };
        self.put_now(path, bytes.into(), options).map(Some)
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.delete_now(path, condition)
    }

    async fn rename_version(
        &self,
        from: &Path,
        to: &Path,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        self.rename_now(from, to, rename)
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        let id = self.id("upload");
        let upload = MemoryUpload {
            path: path.clone(),
            tags: options.tags.clone(),
            attributes: options.attributes.clone(),
            parts: BTreeMap::new(),
        };
        self.uploads.lock().insert(id.clone(), upload);
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

#[async_trait]
impl PartStore for MemoryStore {
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
        CompleteOptions {
            mode,
            attributes,
            digest,
        }: CompleteOptions,
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
            let mut options = PutOptions {
                mode,
                tags: found.tags.clone(),
                attributes: found.attributes.clone(),
                ..PutOptions::default()
            };
            for (name, value) in &attributes {
                options.attributes.insert(name.clone(), value.clone());
            }
            (PutPayload::from_iter(pieces), options)
        };
        if let Some(expected) = digest {
            let pieces: Vec<Bytes> = payload.iter().cloned().collect();
            let got = tokio::task::spawn_blocking(move || expected.same_of(&pieces));
            let got = got.await.map_err(|source| Error::JoinError { source })?;
            OriginError::compare(path, expected, got)?;
        }
        let result = self.put_now(path, payload, options)?;
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

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        // Copied for the same reason as a part.
        let copied: Vec<u8> = payload.iter().flatten().copied().collect();
        self.put_now(path, copied.into(), options)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, mut options: GetOptions) -> Result<GetResult> {
        // The conditions name ETags that the inner store does not know: checked here, on the version that is read.
        let conditions = GetOptions {
            if_match: options.if_match.take(),
            if_none_match: options.if_none_match.take(),
            if_modified_since: options.if_modified_since.take(),
            if_unmodified_since: options.if_unmodified_since.take(),
            ..GetOptions::default()
        };
        loop {
            let found = self.stored(path)?;
            let e_tag = full_e_tag(&found);
            let mut meta = found.meta.clone();
            meta.e_tag = e_tag.clone();
            conditions.check_preconditions(&meta)?;
            options.if_match = found.meta.e_tag;
            match ready(self.objects.get_opts(path, options.clone())) {
                // Replaced in between.
                Err(Error::Precondition { .. }) => {}
                Err(error) => return Err(error),
                Ok(mut result) => {
                    result.meta.e_tag = e_tag;
                    result.attributes.remove(&CLIENT_ETAG);
                    return Ok(result);
                }
            }
        }
    }

    fn delete_stream(&self, paths: Keys) -> Keys {
        let store = self.clone();
        let delete = move |path: Result<Path>| {
            let path = path?;
            store.delete_now(&path, &DeleteCondition::default())?;
            Ok(path)
        };
        paths.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> Objects {
        let (store, listed) = (self.clone(), self.objects.list(prefix));
        listed.map(move |meta| Ok(store.listed(meta?))).boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Objects {
        let listed = self.objects.list_with_offset(prefix, offset);
        let store = self.clone();
        listed.map(move |meta| Ok(store.listed(meta?))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.objects.list_with_delimiter(prefix).await?;
        let objects = std::mem::take(&mut listed.objects).into_iter();
        listed.objects = objects.map(|meta| self.listed(meta)).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _turn = self.changes.lock();
        ready(self.objects.copy_opts(from, to, options))
    }
}
