//! Deletes: many objects by one request to the origin; known versions are dropped when it has ended.

use std::sync::Arc;

use bywash_store::{Capability, DeleteCondition, OriginError};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, Result};

use crate::bucket::Bucket;
use crate::cluster::WriteEnd;
use crate::read::clone_error;
use crate::retry::{is_transient, once, with_retries};

impl Bucket {
    /// Deletes an object if it meets `condition`, in one step; see [`crate::Origin::delete_if`]. Not retried: the object may be gone
    /// because the first attempt succeeded.
    ///
    /// # Errors
    /// `Precondition` if the condition fails, `NotImplemented` if the origin has no conditional deletes; otherwise as any request.
    pub async fn delete_if(&self, path: &Path, condition: DeleteCondition) -> Result<()> {
        if condition.version.is_some() && condition.wanted_e_tag().is_none() {
            return Err(Error::NotImplemented {
                operation: "deletes on the condition of a version without its ETag".to_owned(),
                implementer: "Bywash".to_owned(),
            });
        }
        let shared = Arc::clone(self.shared());
        shared.counters.request();
        let deleted = self.write(path, move |path| async move {
            shared.origin_request(Capability::Write);
            let stall = shared.engine.retry.stall;
            let sent = shared.origin.delete_if(&path, &condition);
            match once(stall, "delete", &path, sent).await {
                // Clients take it for deleted, so no node may return it.
                Err(error @ Error::NotFound { .. }) => Ok(Err(error)),
                result => result.map(Ok),
            }
        });
        deleted.await?
    }

    /// Deletes one chunk of objects with one request to the origin. Deletes that fail for a transient reason are
    /// retried one by one, until the origin has failed one until the retry deadline.
    pub(crate) async fn delete_chunk(self, paths: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let mut results = Vec::with_capacity(paths.len());
        let mut requested = Vec::with_capacity(paths.len());
        for path in paths {
            match path {
                Ok(path) => requested.push(path),
                error => results.push(error),
            }
        }
        let deleted = self.delete_once(requested.clone()).await;
        let mut unavailable = false;
        for (path, result) in requested.into_iter().zip(deleted) {
            results.push(match result {
                Err(error) if is_transient(&error) && !unavailable => {
                    self.shared().counters.retries().add();
                    let retried = self.delete_with_retries(path).await;
                    unavailable = retried.as_ref().is_err_and(OriginError::is_unavailable);
                    retried
                }
                result => result,
            });
        }
        results
    }

    async fn delete_with_retries(&self, path: Path) -> Result<Path> {
        with_retries(self.shared().retry(), "delete", &path, async || {
            let mut deleted = self.delete_once(vec![path.clone()]).await;
            deleted.pop().unwrap_or_else(|| Err(missing_result()))
        })
        .await
    }

    /// Sends one request; returns as many results as paths, in their order.
    async fn delete_once(&self, paths: Vec<Path>) -> Vec<Result<Path>> {
        let shared = Arc::clone(self.shared());
        let stall = shared.engine.retry.stall;
        let count = paths.len();
        let task = tokio::spawn(async move {
            let turn = shared.turn(paths.clone()).await;
            shared.origin_request(Capability::Write);
            let requested = futures::stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let mut deleted = shared.origin.delete_stream(requested);
            let mut results = Vec::with_capacity(count);
            while results.len() < count {
                match tokio::time::timeout(stall, deleted.next()).await {
                    Ok(Some(result)) => results.push(result),
                    // A failed request may yield one error for all paths, and a stalled one none. The results of the
                    // rest are unknown.
                    Ok(None) | Err(_) => break,
                }
            }
            for path in &paths {
                shared.invalidate(path);
            }
            // An object that is not there counts as deleted for clients too.
            let gone =
                |result: &Result<Path>| matches!(result, Ok(_) | Err(Error::NotFound { .. }));
            let end = if results.iter().any(gone) {
                WriteEnd::Written
            } else {
                WriteEnd::InDoubt
            };
            if let Err(error) = turn.end_as(end).await {
                // No node may return the deleted objects once their deletion is acknowledged.
                let error = Arc::new(error);
                for result in results.iter_mut().filter(|result| gone(result)) {
                    *result = Err(clone_error(&error));
                }
            }
            results
        });
        let mut results = task.await.unwrap_or_default();
        results.resize_with(count, || Err(missing_result()));
        results
    }
}

fn missing_result() -> Error {
    Error::Generic {
        store: "Bywash",
        source: "the origin sent no result for a delete".into(),
    }
}
