//! Any [`ObjectStore`] that the program has configured itself, as an origin.
//!
//! Each call is passed on, and each response compared with its request. An operation that the store lacks is refused by name.

mod checked;
mod lending;
mod parts;
mod session;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use self::checked::{Asked, checked};
use self::lending::Lending;
use self::parts::WrappedParts;
use self::session::OrderedSession;
use super::interface::{Capabilities, Origin, StoreIdentity};
use super::odd_keys::check;
use super::parts::PartsSession;
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
    /// See [`StoreIdentity::address`].
    address: Option<String>,
    /// Of whole objects.
    puts: Lending,
    /// Of parts, which a store may keep until their object is complete.
    lending: Arc<Lending>,
}

impl WrappedStore {
    /// Wraps `store`; `multipart` uploads numbered parts to the same store, and `address` is its [`StoreIdentity::address`].
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
            lending: Arc::default(),
        }
    }

    /// Returns the client of numbered parts.
    fn parts_of(&self, path: &Path) -> Result<WrappedParts> {
        let multipart = self.multipart.as_ref().ok_or_else(|| {
            let operation = format!(
                "upload of {path} in numbered parts, or in chunks with tags: give it as WrapOptions::multipart, or write the object as one \
                 stream without tags:"
            );
            parts::lacks(&self.store, operation)
        })?;
        Ok(WrappedParts {
            multipart: Arc::clone(multipart),
            lending: Arc::clone(&self.lending),
            name: self.store.to_string(),
        })
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

    fn identity(&self) -> Option<StoreIdentity> {
        // No store that the engine opens itself has such an address.
        let address = self.address.as_ref()?;
        Some(StoreIdentity::of(format!("wrapped {address}")))
    }

    /// Without a client of numbered parts, the parts go to the store as one stream, which no other process can continue.
    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        check(path)?;
        parts::check_mode(&self.store, path, &options.mode)?;
        let begin = PutMultipartOptions {
            attributes: options.attributes.clone(),
            tags: options.tags.clone(),
            ..PutMultipartOptions::default()
        };
        let needs_parts = options.numbered || !options.tags.encoded().is_empty();
        if self.multipart.is_some() || needs_parts {
            let parts = self.parts_of(path)?;
            let id = parts.multipart.create_multipart_opts(path, begin).await?;
            return Ok(PartsSession::begun(parts, path, options, id));
        }
        let upload = self.store.put_multipart_opts(path, begin).await?;
        let session = OrderedSession::new(path, upload, Arc::clone(&self.lending));
        Ok(Box::new(session))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        if self.multipart.is_none() && !options.numbered {
            return Err(OriginError::upload_lost(path));
        }
        PartsSession::resume(self.parts_of(path)?, path, options, token)
    }
}
