//! Uploads of clients in numbered parts: `.bywash/uploads/<id>/` holds a manifest and one file per part.
//!
//! The offset of a part is known only when the upload is completed, so the object is put together then. A writer that
//! knows each offset has a session instead ([`super::session`]), which writes each byte once.
//!
//! Every part is on disk before it is acknowledged, and the folder outlives the process, so an upload can be
//! continued after a restart.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Attributes, Error, PutMultipartOptions, PutResult, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::FolderStore;
use super::attributes::{Stored, with_late};
use super::error::{FolderError, blocking, io_error, refuse_tags};
use super::names::{self, STAGING, UPLOADS};
use super::root::Root;
use super::session::{self, FolderSession};
use super::stage::{Staged, remove_flat_folder};
use crate::interface::{
    AttributeRewrite, Capabilities, CompleteOptions, DeleteCondition, ObjectRename, Origin,
    PartBody, TextHeaders, UploadedPart, VersionDeletes,
};
use crate::limits::MAX_PARTS;
use crate::omissions::{LeftOut, Omissions};
use crate::page::{Level, Objects};
use crate::session::{Finished, NewSession, OpenSession, SessionOptions, SessionToken};
use crate::staged_file::{hold, sync_folder, unique_name};

const MANIFEST: &str = "manifest.json";

/// Description of an upload's object.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) key: String,
    pub(super) attributes: Stored,
    /// Its bytes go to one file, see [`super::session`]; otherwise to one file per part.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) session: bool,
}

/// Returns the name of a part's file, which sorts by number; the ETag is the version of the part.
fn part_file(number: u16, e_tag: &str) -> String {
    format!("{number:05}.{e_tag}")
}

/// Returns whether a string from outside may be (part of) a file name of an upload.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && name.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn no_such_upload(key: &Path, upload: &str) -> Error {
    FolderError::NoSuchUpload(upload.to_owned()).not_found(key)
}

impl Root {
    /// Creates an upload with a folder of `files`, all empty. A session's upload has some, a client's multipart upload none.
    fn create_upload(&self, key: &Path, attributes: &Attributes, files: &[&str]) -> Result<String> {
        let failed = |errno: Errno| create_failed(key, errno);
        // The folder appears under its id with the manifest in it, so a crash leaves no half.
        let (id, _locked) = self.stage_upload(key, attributes, files)?;
        let staging = self.open_folder(STAGING).map_err(failed)?;
        let uploads = self.make_folder(UPLOADS).map_err(failed)?;
        rustix::fs::renameat(&staging, &id, &uploads, &id).map_err(failed)?;
        sync_folder(&uploads).map_err(failed)?;
        Ok(id)
    }

    /// Creates an upload in the staging folder, locked while the returned folder is open.
    pub(super) fn stage_upload(
        &self,
        key: &Path,
        attributes: &Attributes,
        files: &[&str],
    ) -> Result<(String, OwnedFd)> {
        names::places(key)?;
        let failed = |errno: Errno| create_failed(key, errno);
        let manifest = Manifest {
            key: key.to_string(),
            attributes: Stored::new(attributes)?,
            session: !files.is_empty(),
        };
        let json = self.to_json(MANIFEST, &manifest)?;
        let mut staged = self.stage(key)?;
        let written = staged.write([json.into()]).and_then(|()| staged.finish());
        written.map_err(|source| io_error("create an upload of", key.as_ref(), source))?;

        let staging = self.make_folder(STAGING).map_err(failed)?;
        let (id, folder) = self.stage_folder(&staging).map_err(failed)?;
        for file in files {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(&folder, *file, flags, Mode::from(0o666)).map_err(failed)?;
        }
        // Syncs the folder, and so the files' names too.
        staged.place(&folder, MANIFEST, true).map_err(failed)?;
        Ok((id, folder))
    }

    /// Creates a folder in the staging folder, locked while it is open.
    fn stage_folder(&self, staging: &OwnedFd) -> Result<(String, OwnedFd), Errno> {
        loop {
            let id = unique_name();
            rustix::fs::mkdirat(staging, &id, Mode::from(0o777))?;
            let folder = match self.open_folder(&format!("{STAGING}/{id}")) {
                // Swept before it was locked.
                Err(Errno::NOENT) => continue,
                folder => File::from(folder?),
            };
            if hold(&folder)? {
                return Ok((id, folder.into()));
            }
        }
    }

    /// Returns the manifest of an upload of `key` in `home`, which is [`UPLOADS`] or [`STAGING`].
    pub(super) fn manifest(&self, home: &str, key: &Path, upload: &str) -> Result<Manifest> {
        self.any_manifest(home, key, upload)?
            .filter(|manifest| manifest.key == key.as_ref())
            .ok_or_else(|| no_such_upload(key, upload))
    }

    /// Returns the manifest of an upload of any key; `key` is for the error.
    pub(super) fn any_manifest(
        &self,
        home: &str,
        key: &Path,
        upload: &str,
    ) -> Result<Option<Manifest>> {
        if !is_plain(upload) {
            return Ok(None);
        }
        let name = format!("{home}/{upload}/{MANIFEST}");
        self.read_json("read the upload of", key, &name)
    }

    fn commit_part(
        &self,
        key: &Path,
        upload: &str,
        number: u16,
        mut staged: Staged,
    ) -> Result<String> {
        let failed = |source: std::io::Error| io_error("write a part of", key.as_ref(), source);
        let e_tag = staged.finish().map_err(failed)?.stamp();
        let name = part_file(number, &e_tag);
        let path = format!("{UPLOADS}/{upload}");
        // One lock per part: the last version to arrive stays.
        let _guard = self.lock(&format!("{path}/{number}"));
        let gone = |errno: Errno| match errno {
            Errno::NOENT => no_such_upload(key, upload),
            errno => failed(errno.into()),
        };
        let folder = self.open_folder(&path).map_err(gone)?;
        staged.place(&folder, &name, false).map_err(gone)?;

        let this_number = part_file(number, "");
        let mut replaced = Vec::new();
        let listed = self.read_folder(&path, |other, _| {
            if other.starts_with(&this_number) && other != name {
                replaced.push(other.to_owned());
            }
            true
        });
        listed.map_err(|errno| failed(errno.into()))?;
        for other in replaced {
            // A leftover only takes space until the upload ends.
            let _ = rustix::fs::unlinkat(&folder, other, AtFlags::empty());
        }
        Ok(e_tag)
    }

    fn complete_upload(
        &self,
        key: &Path,
        upload: &str,
        parts: &[UploadedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        let manifest = self.manifest(UPLOADS, key, upload)?;
        let mut staged = self.stage(key)?;
        for part in parts {
            let missing = || {
                FolderError::NoSuchPart {
                    upload: upload.to_owned(),
                    number: part.number,
                    e_tag: part.e_tag.clone(),
                }
                .precondition(key)
            };
            if !is_plain(&part.e_tag) {
                return Err(missing());
            }
            let path = format!("{UPLOADS}/{upload}/{}", part_file(part.number, &part.e_tag));
            let opened = self.open_file(&path);
            let opened = opened.map_err(|errno| io_error("open a part of", key.as_ref(), errno))?;
            let (file, _) = opened.ok_or_else(missing)?;
            staged
                .append(&file)
                .map_err(|source| io_error("put together", key.as_ref(), source))?;
        }
        let attributes = with_late(manifest.attributes, &options.attributes);
        let put = self.commit(key, &mut staged, &attributes, &options.mode)?;
        if let Err(error) = self.drop_upload(key, upload) {
            // The object exists; the parts only take space, and an abort can remove them.
            tracing::warn!(%key, upload, %error, "completed upload not removed");
        }
        Ok(put)
    }

    /// Aborts an upload: it disappears in one step, then its files are removed.
    pub(super) fn drop_upload(&self, key: &Path, upload: &str) -> Result<()> {
        let failed = |errno: Errno| io_error("remove an upload of", key.as_ref(), errno);
        let uploads = self.open_folder(UPLOADS).map_err(failed)?;
        let staging = self.make_folder(STAGING).map_err(failed)?;
        let doomed = unique_name();
        match rustix::fs::renameat(&uploads, upload, &staging, &doomed) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(no_such_upload(key, upload)),
            Err(errno) => return Err(failed(errno)),
        }
        sync_folder(&uploads).map_err(failed)?;
        remove_flat_folder(self, STAGING, &doomed).map_err(failed)
    }
}

fn create_failed(key: &Path, errno: Errno) -> Error {
    io_error("create an upload of", key.as_ref(), errno)
}

/// Writes a part's body to a staged file, piece by piece; the file is removed on an error.
async fn receive(
    mut staged: Staged,
    path: &Path,
    number: u16,
    length: u64,
    mut body: PartBody,
) -> Result<Staged> {
    let wrong_length = |got| FolderError::PartLength {
        number,
        expected: length,
        got,
    };
    let mut got = 0;
    while let Some(piece) = body.next().await.transpose()? {
        got += piece.len() as u64;
        if got > length {
            return Err(wrong_length(got).generic());
        }
        let key = path.to_string();
        staged = blocking(move || {
            let written = staged.write([piece]);
            written.map_err(|source| io_error("write a part of", key, source))?;
            Ok(staged)
        })
        .await?;
    }
    if got != length {
        return Err(wrong_length(got).generic());
    }
    Ok(staged)
}

#[async_trait]
impl Origin for FolderStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: session::RULE,
            // Each write is a visit to a blocking thread.
            wants_joined_pieces: true,
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

    async fn create_upload(&self, path: &Path, opts: PutMultipartOptions) -> Result<String> {
        refuse_tags(&opts.tags)?;
        let (root, path) = (Arc::clone(&self.root), path.clone());
        blocking(move || root.create_upload(&path, &opts.attributes, &[])).await
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(FolderError::PartNumber(number).generic());
        }
        let (root, key, id) = (Arc::clone(&self.root), path.clone(), upload.to_owned());
        let staged = blocking(move || {
            root.manifest(UPLOADS, &key, &id)?;
            root.stage(&key)
        })
        .await?;
        let staged = receive(staged, path, number, length, body).await?;
        let (root, key, id) = (Arc::clone(&self.root), path.clone(), upload.to_owned());
        blocking(move || root.commit_part(&key, &id, number, staged)).await
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        options: CompleteOptions,
    ) -> Result<PutResult> {
        let (root, key) = (Arc::clone(&self.root), path.clone());
        let (id, parts) = (upload.to_owned(), parts.to_vec());
        blocking(move || root.complete_upload(&key, &id, &parts, &options)).await
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
        let (root, key) = (Arc::clone(&self.root), path.clone());
        let attributes = options.attributes.clone();
        if options.transient {
            let mode = options.mode.clone();
            let open = move || FolderSession::open_transient(root, key, &attributes, mode);
            return Ok(Some(Box::new(blocking(open).await?)));
        }
        let id = blocking(move || root.create_upload(&key, &attributes, &session::FILES)).await?;
        self.resume_session(path, options, &SessionToken(id)).await
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        Ok(Some(Box::new(FolderSession::new(
            Arc::clone(&self.root),
            path.clone(),
            token.0.clone(),
            options.mode.clone(),
        ))))
    }

    /// Uploads that wait for parts of the S3 protocol are not included.
    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        self.run(|root| root.open_sessions()).await
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let (root, key, id) = (Arc::clone(&self.root), path.clone(), upload.to_owned());
        blocking(move || {
            root.manifest(UPLOADS, &key, &id)?;
            root.drop_upload(&key, &id)
        })
        .await
    }
}
