//! Implementation of object_store's trait.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

use super::uploads::SequentialUpload;
use super::{Operation, OriginState, Shared, SimOrigin, not_found};

impl Shared {
    /// Writes `body` as the current version if `mode` allows it.
    pub(super) fn put(
        &self,
        state: &mut OriginState,
        path: &Path,
        body: Bytes,
        attributes: Attributes,
        mode: &PutMode,
    ) -> Result<PutResult> {
        let current = self.oracle.current(path);
        match (mode, &current) {
            (PutMode::Create, Some(_)) => {
                return Err(Error::AlreadyExists {
                    path: path.to_string(),
                    source: "412 Precondition Failed".into(),
                });
            }
            (PutMode::Update(wanted), current)
                if current.as_ref().is_none_or(|now| {
                    now.meta.e_tag.is_none() || now.meta.e_tag != wanted.e_tag
                }) =>
            {
                return Err(Error::Precondition {
                    path: path.to_string(),
                    source: "412 Precondition Failed".into(),
                });
            }
            _ => {}
        }
        let version = self.commit(state, path, body, attributes);
        Ok(PutResult {
            e_tag: version.meta.e_tag.clone(),
            version: None,
            extensions: Default::default(),
        })
    }
}

#[async_trait]
impl ObjectStore for SimOrigin {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let pending = self.shared.receive(Operation::Put, location, None, false);
        pending.delay_or_fail(&self.shared, location).await?;
        let result = {
            let mut state = self.shared.state.lock();
            // Copied: slices of the payload would keep the writer's buffers allocated.
            let body = payload
                .iter()
                .flat_map(|piece| piece.iter().copied())
                .collect();
            self.shared
                .put(&mut state, location, body, opts.attributes, &opts.mode)?
        };
        pending.acknowledge()?;
        Ok(result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let id = self.begin(location, opts.attributes).await?.into();
        Ok(Box::new(SequentialUpload {
            origin: self.clone(),
            path: location.clone(),
            id,
            parts: Arc::default(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.respond(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let origin = self.clone();
        locations
            .and_then(move |path| {
                let shared = Arc::clone(&origin.shared);
                async move {
                    let pending = shared.receive(Operation::Delete, &path, None, false);
                    pending.delay_or_fail(&shared, &path).await?;
                    shared.remove(&path);
                    pending.acknowledge()?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (origin, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        stream::once(async move {
            let pending = origin.shared.receive(Operation::List, &prefix, None, false);
            pending.delay_or_fail(&origin.shared, &prefix).await?;
            let metas = origin
                .shared
                .oracle
                .all()
                .into_iter()
                .map(|version| version.meta.clone());
            let below: Vec<_> = metas
                .filter(|meta| below(&meta.location, &prefix).is_some_and(|n| n > 0))
                .collect();
            Ok::<_, Error>(stream::iter(below.into_iter().map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let all: Vec<ObjectMeta> = self.list(Some(&prefix)).try_collect().await?;
        let (mut objects, mut common) = (Vec::new(), BTreeSet::new());
        for meta in all {
            let mut parts = meta.location.prefix_match(&prefix).into_iter().flatten();
            let (first, second) = (parts.next(), parts.next());
            match (first, second) {
                (Some(first), Some(_)) => {
                    common.insert(prefix.clone().join(first));
                }
                _ => objects.push(meta.clone()),
            }
        }
        Ok(ListResult {
            objects,
            common_prefixes: common.into_iter().collect(),
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let pending = self.shared.receive(Operation::Copy, to, None, false);
        pending.delay_or_fail(&self.shared, to).await?;
        let source = self
            .shared
            .oracle
            .current(from)
            .ok_or_else(|| not_found(from))?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        {
            let mut state = self.shared.state.lock();
            self.shared.put(
                &mut state,
                to,
                source.body.clone(),
                source.attributes.clone(),
                &mode,
            )?;
        }
        pending.acknowledge()
    }
}

/// Returns the number of parts of `path` below `prefix`; `None` if it is not below.
fn below(path: &Path, prefix: &Path) -> Option<usize> {
    path.prefix_match(prefix).map(Iterator::count)
}
