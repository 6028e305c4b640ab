//! Code that the copies of both endpoints share: sources that are replaced during a copy, and
//! copies of an object onto itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use bywash::origin::{CLIENT_ETAG, kept_client_etag};
use bywash::{Bucket, EngineError, HeldKeys, PartBody};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetResult, ObjectMeta, PutMode, UpdateVersion,
};

use crate::meta::keep_e_tag;

/// Result of one attempt at a copy.
#[derive(Debug)]
pub(crate) enum Attempt<T> {
    Done(T),
    /// The source was replaced during the read, or, of a copy onto itself, before the write: the copy starts over.
    Replaced,
    /// The store compares no versions when it writes.
    NoConditions,
}

/// How a copy of an object onto itself keeps from replacing a version that it has not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The store compares the version when it writes.
    Condition,
    /// The store compares none: the version is looked up after the last byte was read, right before the write.
    LastLook,
}

impl Guard {
    /// Binds a copy of an object onto itself, without a condition of its own, to the version `read`. Returns its mode and its body.
    pub(crate) fn apply(
        self,
        bucket: &Bucket,
        path: &Path,
        read: &ObjectMeta,
        body: PartBody,
    ) -> (PutMode, PartBody) {
        if self == Self::Condition && read.e_tag.is_some() {
            return (PutMode::Update(version_of(read)), body);
        }
        let (bucket, path, read) = (bucket.clone(), path.clone(), read.clone());
        let look = async move {
            let now = bucket.head_now(&path).await?;
            let is_same = (&now.e_tag, now.size, now.last_modified)
                == (&read.e_tag, read.size, read.last_modified);
            let object = || path.to_string();
            if is_same {
                Ok(Bytes::new())
            } else {
                Err(EngineError::VersionChanged { object: object() }.into())
            }
        };
        (PutMode::Overwrite, body.chain(stream::once(look)).boxed())
    }
}

/// Waits for the turn of a copy, if it is of an object onto itself.
pub(crate) async fn turn_onto_itself(
    source: &(Bucket, Path),
    target: &(Bucket, Path),
) -> Option<HeldKeys> {
    let (bucket, path) = target;
    if bucket.is_same_object(path, &source.0, &source.1) {
        Some(bucket.change_turn(path).await)
    } else {
        None
    }
}

/// The condition that an object is still the version that was read.
pub(crate) fn version_of(read: &ObjectMeta) -> UpdateVersion {
    UpdateVersion {
        e_tag: read.e_tag.clone(),
        version: read.version.clone(),
    }
}

/// Whether the body of a read ended because its object was replaced. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replaced(Arc<AtomicBool>);

impl Replaced {
    /// Returns `body`, whose end is noted.
    pub(crate) fn watch(&self, body: PartBody) -> PartBody {
        let note = Arc::clone(&self.0);
        body.inspect_err(move |error| {
            // Relaxed: read by the task that polls the body.
            if is_replaced(error) {
                note.store(true, Relaxed);
            }
        })
        .boxed()
    }

    pub(crate) fn is_seen(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Whether a read of a version failed because the object was replaced or deleted.
pub(crate) fn is_replaced(error: &StoreError) -> bool {
    let changed = matches!(
        EngineError::find(error),
        Some(EngineError::VersionChanged { .. })
    );
    changed
        || matches!(
            error,
            StoreError::Precondition { .. } | StoreError::NotFound { .. }
        )
}

/// Whether the store refused a write because its condition does not hold.
pub(crate) fn is_unmet(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }
    )
}

/// Whether the store has no conditional writes.
pub(crate) fn lacks_conditions(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. }
    )
}

/// Attributes of an object for a write of the same bytes: also attributes that the endpoints keep,
/// and the ETag that clients compute.
pub(crate) fn carried_attributes(bucket: &Bucket, read: &GetResult) -> Attributes {
    let mut attributes = read.attributes.clone();
    // In a store that keeps no ETags of clients, the name is user metadata.
    attributes.remove(&CLIENT_ETAG);
    let known = read.meta.e_tag.as_deref().and_then(kept_client_etag);
    if let Some(known) = known.filter(|_| bucket.takes_late_attributes()) {
        keep_e_tag(&mut attributes, known.to_owned());
    }
    attributes
}
