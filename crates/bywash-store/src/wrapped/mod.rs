//! Any [`ObjectStore`] that the program has configured itself, as an origin.
//!
//! Each call is passed on, and each response compared with its request. An operation that the store lacks is refused by name.

mod checked;
mod lending;
mod session;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use self::checked::{Asked, checked};
use self::lending::Lending;
use self::session::OrderedSession;
use super::interface::{
    Capabilities, CompleteOptions, Origin, PartBody, UploadedPart, invalid_part,
};
use super::odd_keys::check;
use super::part_stream::part_stream;
use super::session::{ChunkRule, NewSession, SessionOptions, SessionToken};
use crate::error::OriginError;
use crate::page::{Keys, Objects};

/// Parts that stores on networks accept: object_store requires at least 5 MiB of portable programs, except for the last one.
const PARTS: ChunkRule = ChunkRule {
    min: 5 << 20,
    ..ChunkRule::PARTS
};

/// A store of the program behind the interface of an origin.
pub struct WrappedStore {
    store: Arc<dyn ObjectStore>,
    /// Uploads of the same store in numbered parts.
    multipart: Option<Arc<dyn MultipartStore>>,
    /// See [`Origin::durable_address`].
    address: Option<String>,
    /// Of whole objects.
    puts: Lending,
    /// Of parts, which a store may keep until their object is complete.
    parts: Arc<Lending>,
}

impl WrappedStore {
    /// Wraps `store`; `multipart` uploads numbered parts to the same store, and `address` is its [`Origin::durable_address`].
    pub fn new(
        store: Arc<dyn ObjectStore>,
        multipart: Option<Arc<dyn MultipartStore>>,
        address: Option<String>,
    ) -> Self {
        Self {
            store,
            multipart,
            address,
            puts: Lending::default(),
            parts: Arc::default(),
        }
    }

    fn lacks(&self, operation: String) -> Error {
        Error::NotImplemented {
            operation,
            implementer: format!("the wrapped store {}", self.store),
        }
    }

    /// Returns the client of numbered parts.
    fn parts_of(&self, path: &Path) -> Result<&Arc<dyn MultipartStore>> {
        self.multipart.as_ref().ok_or_else(|| {
            self.lacks(format!(
                "upload of {path} in numbered parts, or in chunks with tags: give it as WrapOptions::multipart, or write the object as one \
                 stream without tags:"
            ))
        })
    }

    /// Refuses a condition on an object of more than one chunk: object_store has none for uploads in parts.
    fn check_mode(&self, path: &Path, mode: &PutMode) -> Result<()> {
        if *mode == PutMode::Overwrite {
            return Ok(());
        }
        Err(self.lacks(format!(
            "upload of {path} in parts on a condition: write it without one, or by one request (EngineBuilder::chunk_size):"
        )))
    }
}

impl fmt::Debug for WrappedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedStore")
            .field("store", &self.store)
            .field("multipart", &self.multipart.is_some())
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for WrappedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.store, f)
    }
}

#[async_trait]
impl ObjectStore for WrappedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        check(path)?;
        let (payload, loan) = self.puts.lend(&payload).await;
        let put = self.store.put_opts(path, payload, options).await?;
        loan.acknowledged();
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        check(path)?;
        self.store.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        check(path)?;
        let asked = Asked::of(&options);
        let result = self.store.get_opts(path, options).await?;
        checked(path, &asked, result)
    }

    fn delete_stream(&self, paths: Keys) -> Keys {
        let checked = paths.and_then(|path| std::future::ready(check(&path).map(|()| path)));
        self.store.delete_stream(Box::pin(checked))
    }

    fn list(&self, prefix: Option<&Path>) -> Objects {
        self.store.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Objects {
        self.store.list_with_offset(prefix, offset)
    }

    /// Sorted, as some stores list without order.
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.store.list_with_delimiter(prefix).await?;
        listed
            .objects
            .sort_unstable_by(|a, b| a.location.cmp(&b.location));
        listed.common_prefixes.sort_unstable();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        check(from)?;
        check(to)?;
        self.store.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl Origin for WrappedStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: PARTS,
            gathers_parts: true,
            // Not known of any store: its uploads are known by their parts.
            knows_uploads: false,
            ..Capabilities::of("wrapped")
        }
    }

    fn durable_address(&self) -> Option<String> {
        // No store that the engine opens itself has such an address.
        self.address
            .as_ref()
            .map(|address| format!("wrapped {address}"))
    }

    async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        check(path)?;
        self.parts_of(path)?
            .create_multipart_opts(path, options)
            .await
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let parts = self.parts_of(path)?;
        let index = number.checked_sub(1).ok_or_else(|| {
            let e_tag = String::new();
            invalid_part(path, &UploadedPart { number, e_tag })
        })?;
        let pieces: Vec<Bytes> = part_stream(path, length, body).try_collect().await?;
        let payload = PutPayload::from_iter(pieces);
        let (payload, loan) = self.parts.lend(&payload).await;
        let id = upload.to_owned();
        let part = parts
            .put_part(path, &id, usize::from(index), payload)
            .await?;
        loan.acknowledged();
        Ok(part.content_id)
    }

    /// The parts must be numbered from 1 without a gap: object_store names them by their place.
    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        CompleteOptions { mode, .. }: CompleteOptions,
    ) -> Result<PutResult> {
        let store = self.parts_of(path)?;
        self.check_mode(path, &mode)?;
        let mut ids = Vec::with_capacity(parts.len());
        for (place, part) in (1..).zip(parts) {
            if part.number != place {
                return Err(self.lacks(format!(
                    "upload of {path} of the part {} as its part {place}: number them from 1 without a gap:",
                    part.number
                )));
            }
            ids.push(PartId {
                content_id: part.e_tag.clone(),
            });
        }
        store
            .complete_multipart(path, &upload.to_owned(), ids)
            .await
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let parts = self.parts_of(path)?;
        parts.abort_multipart(path, &upload.to_owned()).await
    }

    /// Without a client of numbered parts, the parts go to the store as one stream, which no other process can continue.
    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        check(path)?;
        self.check_mode(path, &options.mode)?;
        if self.multipart.is_some() {
            return Ok(None);
        }
        let begin = PutMultipartOptions {
            attributes: options.attributes.clone(),
            ..PutMultipartOptions::default()
        };
        let upload = self.store.put_multipart_opts(path, begin).await?;
        let session = OrderedSession::new(path, upload, Arc::clone(&self.parts));
        Ok(Some(Box::new(session)))
    }

    async fn resume_session(
        &self,
        path: &Path,
        _: &SessionOptions,
        _: &SessionToken,
    ) -> Result<NewSession> {
        if self.multipart.is_some() {
            return Ok(None);
        }
        Err(OriginError::upload_lost(path))
    }
}
