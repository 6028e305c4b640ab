//! A folder as an origin.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{PutResult, Result};

use super::FolderStore;
use super::error::{blocking, refuse_tags};
use super::session::{self, FolderSession};
use crate::interface::{
    AttributeRewrite, Capabilities, DeleteCondition, ObjectRename, Origin, TextHeaders,
    VersionDeletes,
};
use crate::omissions::{LeftOut, Omissions};
use crate::page::{Level, Objects};
use crate::session::{Finished, NewSession, OpenSession, SessionOptions, SessionToken};

#[async_trait]
impl Origin for FolderStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: session::RULE,
            // Each write is a visit to a blocking thread.
            wants_joined_pieces: true,
            // They are put together in a staged file, which is read back.
            compares_parts: true,
            takes_late_attributes: true,
            text_headers: TextHeaders::Everywhere,
            version_deletes: VersionDeletes::ByStore,
            rewrites_in_place: true,
            ..Capabilities::of("file")
        }
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            max_keys: Some(max),
            page_token: (!after.is_empty()).then(|| after.to_owned()),
            ..PaginatedListOptions::default()
        };
        let page = self.list_paginated(Some(prefix), options).await?;
        let left_out = page.result.extensions.get::<LeftOut>().cloned();
        Ok(Level {
            left_out: left_out.unwrap_or_default(),
            entries: page.result,
            next: page.page_token,
        })
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects {
        self.listed(prefix, after, omissions.clone())
    }

    async fn rewrite_in_place(
        &self,
        path: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let (root, key, rewrite) = (Arc::clone(&self.root), path.clone(), rewrite.clone());
        blocking(move || root.rewrite_in_place(&key, &rewrite)).await
    }

    fn place_of(&self, path: &Path) -> Option<String> {
        let file = self.root.path().join(path.as_ref());
        Some(file.display().to_string())
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        let (root, key) = (Arc::clone(&self.root), path.clone());
        let condition = condition.clone();
        blocking(move || root.delete(&key, &condition)).await
    }

    async fn rename_version(
        &self,
        from: &Path,
        to: &Path,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        let (from, to, rename) = (from.clone(), to.clone(), rename.clone());
        self.run(move |root| root.rename(&from, &to, &rename)).await
    }

    /// Reads the whole object, for its checksum.
    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        let (root, key) = (Arc::clone(&self.root), path.clone());
        blocking(move || root.stat(&key)).await
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        refuse_tags(&options.tags)?;
        let (root, key, options) = (Arc::clone(&self.root), path.clone(), options.clone());
        let open = move || FolderSession::open(root, key, &options);
        Ok(Box::new(blocking(open).await?))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        let (root, id) = (Arc::clone(&self.root), token.0.clone());
        let session = FolderSession::new(root, path.clone(), id, options);
        Ok(Box::new(session))
    }

    /// Uploads that wait for parts of the S3 protocol are not included.
    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        self.run(|root| root.open_sessions()).await
    }
}
