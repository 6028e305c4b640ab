//! Conditions of a write on the generation of the replaced object: they become the origin's own.

use bywash::{Bucket, EngineError};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, ObjectMeta, ObjectStore, PutMode, UpdateVersion,
};

use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use crate::copying::{is_unmet, version_of};
use crate::errors::{OperationContext, from_store};

/// The conditions of a write, as a mode of the origin, which evaluates it when the object becomes visible.
#[derive(Debug, Clone)]
pub(crate) struct WriteCondition {
    pub(crate) mode: PutMode,
    /// Whether the mode only binds the write to the version for which the conditions held: a failure is a conflict with
    /// another write.
    bound: bool,
}

/// Finds the current version of an object, and its numbers: 0 without a version.
pub(crate) async fn current(
    bucket: &Bucket,
    path: &Path,
    doing: OperationContext<'_>,
) -> GcsResult<(Option<ObjectMeta>, VersionNumbers)> {
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    match bucket.get_opts(path, head).await {
        Ok(found) => {
            let numbers = VersionNumbers::of(bucket, &found);
            Ok((Some(found.meta), numbers))
        }
        Err(StoreError::NotFound { .. }) => Ok((None, VersionNumbers::default())),
        Err(error) => Err(from_store(doing, &error).into()),
    }
}

/// Names an object in messages.
pub(crate) fn named(doing: OperationContext<'_>) -> String {
    format!("{}/{}", doing.bucket, doing.key)
}

impl WriteCondition {
    pub(crate) async fn find(
        bucket: &Bucket,
        path: &Path,
        conditions: &Conditions,
        doing: OperationContext<'_>,
    ) -> GcsResult<Self> {
        let exact = |mode| Ok(Self { mode, bound: false });
        if conditions.is_empty() {
            return exact(PutMode::Overwrite);
        }
        if conditions.is_absent_only() {
            return exact(PutMode::Create);
        }
        conditions.refuse_unbound(bucket)?;
        let (found, numbers) = current(bucket, path, doing).await?;
        conditions.check_write(numbers, &named(doing))?;
        let bound = !conditions.names_version();
        let Some(meta) = found else {
            let mode = PutMode::Create;
            return Ok(Self { mode, bound });
        };
        if meta.e_tag.is_none() {
            return Err(GcsError::not_served(format!(
                "{}: the origin has no ETags, so a write cannot depend on a generation.",
                named(doing)
            )));
        }
        let mode = PutMode::Update(version_of(&meta));
        Ok(Self { mode, bound })
    }

    /// The condition that the object is the version that an earlier attempt of the same request wrote.
    pub(crate) fn of_version(version: UpdateVersion) -> Self {
        Self {
            mode: PutMode::Update(version),
            bound: true,
        }
    }

    /// Converts an error of the origin.
    pub(crate) fn error(&self, doing: OperationContext<'_>, error: &StoreError) -> GcsError {
        if self.bound {
            return bound_error(doing, error);
        }
        from_store(doing, error).into()
    }
}

/// Converts an error of a request that is bound to the version that was found, where the client's condition names none: if another
/// replaced that one, the condition may hold still.
pub(crate) fn bound_error(doing: OperationContext<'_>, error: &StoreError) -> GcsError {
    if is_unmet(error) && EngineError::find(error).is_none() {
        return GcsError::unavailable(format!(
            "{}: another request changed the object at the same time; try again.",
            named(doing)
        ));
    }
    from_store(doing, error).into()
}

/// Refuses requests that delete an object only if it is still a version, at an origin that cannot.
pub(crate) fn refuse_unbound_deletes(
    bucket: &Bucket,
    doing: OperationContext<'_>,
) -> GcsResult<()> {
    if bucket.deletes_versions() {
        Ok(())
    } else {
        Err(GcsError::not_served(format!(
            "{}: the origin compares no versions of deletes, as far as is known (set aws_conditional_delete to etag, or \
             google_conditional_delete to generation, if it does).",
            named(doing)
        )))
    }
}
