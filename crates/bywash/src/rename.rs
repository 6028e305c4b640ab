//! Another key for an object: by a rename of its store, else by a copy and the deletion of the version that was copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bywash_store::{Capability, DeleteCondition, ObjectRename, VersionDeletes};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutResult, RenameOptions, RenameTargetMode, Result, UpdateVersion,
};

use crate::bucket::Bucket;
use crate::retry::{once, with_retries};
use crate::shared::BucketShared;

/// Attempts at a rename of the current version while others replace it.
const RENAME_ATTEMPTS: usize = 3;

impl Bucket {
    /// Gives an object another key in one step, if it is the version of `rename`; see [`crate::Origin::rename_version`]. Returns
    /// `None`, and has changed nothing, if its store has no renames of this object.
    ///
    /// Not retried: the first attempt may have succeeded.
    ///
    /// # Errors
    /// `NotFound` or `Precondition` with the path `from` if the object is another version; with the path `to`, or `AlreadyExists`, if
    /// the mode does not allow the write. Otherwise as any request.
    pub async fn rename_version(
        &self,
        from: &Path,
        to: &Path,
        rename: ObjectRename,
    ) -> Result<Option<PutResult>> {
        refuse_same(from, to)?;
        let shared = Arc::clone(self.shared());
        shared.counters.request();
        shared.check_same_content(from, to)?;
        let (from, to) = (from.clone(), to.clone());
        // In a task of its own, as each write.
        let task = tokio::spawn(async move {
            let turn = shared.turn(vec![from.clone(), to.clone()]).await;
            shared.origin_request(Capability::Write);
            let stall = shared.engine.retry.stall;
            let sent = shared.origin.rename_version(&from, &to, &rename);
            let renamed = once(stall, "rename", &from, sent).await;
            shared.invalidate(&from);
            shared.invalidate(&to);
            turn.end(renamed).await
        });
        match task.await.map_err(|source| Error::JoinError { source })? {
            Err(Error::NotImplemented { .. }) => Ok(None),
            renamed => renamed.map(Some),
        }
    }

    /// Whether it has [`Self::delete_version`].
    #[must_use]
    pub fn deletes_versions(&self) -> bool {
        let shared = self.shared();
        shared.key_turns.is_some()
            || shared.origin.capabilities().version_deletes == VersionDeletes::ByStore
    }

    /// Deletes an object, if it is still the version `found`. Where it is not known whether the store compares versions, the object
    /// is requested once more, and no write of this process is between that and the delete; another process may write between the
    /// two requests.
    ///
    /// # Errors
    /// `NotFound` or `Precondition` if it is another version, `NotImplemented` if the store is known to compare none, or is not known to
    /// and belongs to a cluster; otherwise as any request.
    pub async fn delete_version(&self, found: &ObjectMeta) -> Result<()> {
        let path = found.location.clone();
        let mut condition = DeleteCondition {
            e_tag: found
                .e_tag
                .as_deref()
                .map(|e_tag| e_tag.trim_matches('"').to_owned()),
            version: found.version.clone(),
            ..DeleteCondition::default()
        };
        let shared = Arc::clone(self.shared());
        let Some(turns) = shared.key_turns.clone() else {
            return self.delete_if(&path, condition).await;
        };
        condition.size = Some(found.size);
        condition.modified = Some(found.last_modified);
        shared.counters.request();
        let task = tokio::spawn(async move {
            let alone = turns.alone(path.clone()).await;
            let turn = shared.turn_with(vec![path.clone()], alone).await;
            let deleted = delete_if_same(&shared, &path, &condition).await;
            shared.invalidate(&path);
            turn.end(deleted).await
        });
        task.await.map_err(|source| Error::JoinError { source })?
    }

    /// As [`ObjectStore::rename_opts`]: no version is deleted but the one that was renamed or copied.
    pub(crate) async fn rename_current(
        &self,
        from: &Path,
        to: &Path,
        options: RenameOptions,
    ) -> Result<()> {
        refuse_same(from, to)?;
        let (mode, copy_mode) = match options.target_mode {
            RenameTargetMode::Overwrite => (PutMode::Overwrite, CopyMode::Overwrite),
            RenameTargetMode::Create => (PutMode::Create, CopyMode::Create),
        };
        let mut attempts = 0..RENAME_ATTEMPTS;
        let found = loop {
            let head = GetOptions::new().with_head(true);
            let found = self.get_opts(from, head).await?;
            if found.meta.e_tag.is_none() {
                break found;
            }
            let rename = ObjectRename {
                version: UpdateVersion {
                    e_tag: found.meta.e_tag.clone(),
                    version: found.meta.version.clone(),
                },
                attributes: found.attributes.clone(),
                mode: mode.clone(),
            };
            match self.rename_version(from, to, rename).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => break found,
                Err(error) if is_replaced(&error, from) && attempts.next().is_some() => {}
                Err(error) => return Err(error),
            }
        };
        let copy = CopyOptions::new().with_mode(copy_mode);
        self.copy_opts(from, to, copy).await?;
        self.delete_version(&found.meta).await
    }
}

/// Returns whether a rename failed because the object is another version than the one to rename.
fn is_replaced(error: &Error, from: &Path) -> bool {
    matches!(error, Error::Precondition { path, .. } if path == from.as_ref())
}

/// Requests the object, and deletes it if it meets `condition`.
async fn delete_if_same(
    shared: &BucketShared,
    path: &Path,
    condition: &DeleteCondition,
) -> Result<()> {
    // Whether a delete was sent: then an absent object was deleted by it.
    let sent = &AtomicBool::new(false);
    with_retries(shared.retry(), "delete", path, async || {
        shared.counters.origin_request();
        match shared.origin.head(path).await {
            // Relaxed: attempts follow each other in one task.
            Err(Error::NotFound { .. }) if sent.load(Relaxed) => return Ok(()),
            found => condition.check(path, &found?)?,
        }
        shared.origin_request(Capability::Write);
        sent.store(true, Relaxed);
        shared.origin.delete(path).await
    })
    .await
}

/// Refuses a rename onto itself, after which there would be no object.
fn refuse_same(from: &Path, to: &Path) -> Result<()> {
    if from == to {
        Err(Error::Generic {
            store: "Bywash",
            source: format!("{from}: the source and the target of a rename are the same").into(),
        })
    } else {
        Ok(())
    }
}
