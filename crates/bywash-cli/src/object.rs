//! One version of an object, read part by part.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetRange, ObjectMeta, ObjectStore};

use crate::address::Address;
use crate::failure::Failure;
use crate::stores::Stores;

/// An object at a known version. All parts are read from that version.
#[derive(Clone)]
pub(crate) struct Object {
    /// Name as the user wrote it.
    name: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    pub(crate) meta: ObjectMeta,
    /// Content headers and user metadata.
    pub(crate) attributes: Attributes,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("name", &self.name)
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

impl Object {
    /// Looks up the current version.
    pub(crate) async fn open(address: &Address, stores: &Stores) -> Result<Self, Failure> {
        let (path, store) = (address.object()?, stores.of(address)?);
        Self::at(&address.to_string(), store, path).await
    }

    /// Looks up the object at a path of a store; `name` is the user's spelling.
    pub(crate) async fn at(
        name: &str,
        store: Arc<dyn ObjectStore>,
        path: Path,
    ) -> Result<Self, Failure> {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = store.get_opts(&path, head).await;
        let found = found.map_err(|error| Failure::store(format!("cannot read {name}"), &error))?;
        Ok(Self {
            name: name.to_owned(),
            store,
            path,
            meta: found.meta,
            attributes: found.attributes,
        })
    }

    /// Reads a small object by one request, so that all bytes are of one version.
    pub(crate) async fn read_whole(
        address: &Address,
        stores: &Stores,
    ) -> Result<(Self, Bytes), Failure> {
        let (path, store) = (address.object()?, stores.of(address)?);
        let failed = |error| Failure::store(format!("cannot read {address}"), &error);
        let found = store.get_opts(&path, GetOptions::default()).await;
        let found = found.map_err(failed)?;
        let (meta, attributes) = (found.meta.clone(), found.attributes.clone());
        let bytes = found.bytes().await.map_err(failed)?;
        let object = Self {
            name: address.to_string(),
            store,
            path,
            meta,
            attributes,
        };
        object.check_length(bytes.len(), object.meta.size)?;
        Ok((object, bytes))
    }

    /// Reads a range of the known version. Fails if the object was replaced.
    pub(crate) async fn part(&self, range: Range<u64>) -> Result<Bytes, Failure> {
        let wanted = range.end - range.start;
        let options = GetOptions {
            if_match: self.meta.e_tag.clone(),
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let read = async {
            self.store
                .get_opts(&self.path, options)
                .await?
                .bytes()
                .await
        };
        let bytes = read
            .await
            .map_err(|error| Failure::store(format!("cannot read {}", self.name), &error))?;
        self.check_length(bytes.len(), wanted)?;
        Ok(bytes)
    }

    fn check_length(&self, got: usize, wanted: u64) -> Result<(), Failure> {
        if got as u64 == wanted {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "cannot read {}: the endpoint sent {got} bytes of a part of {wanted}; try again",
            self.name
        )))
    }
}
