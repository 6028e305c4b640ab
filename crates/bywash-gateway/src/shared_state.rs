//! State that the endpoints of one engine share: the memory of documents, uploads in parts, and the
//! rules of buckets.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bywash::Engine;
use s3s::{S3ErrorCode, S3Result};
use tokio::sync::OnceCell;

use crate::bucket_rules::AllRules;
use crate::documents::Documents;
use crate::errors::{OperationContext, fault, from_engine};
use crate::objects::ObjectError;
use crate::uploads::{ClusterUploads, Uploads};

/// State that the endpoints of one engine share. A cheap handle; the configurations of all
/// endpoints have the same.
#[derive(Debug, Clone, Default)]
pub struct SharedState(Arc<State>);

#[derive(Debug, Default)]
struct State {
    documents: OnceLock<Arc<Documents>>,
    uploads: OnceCell<Arc<Uploads>>,
    rules: OnceLock<Arc<AllRules>>,
}

impl SharedState {
    /// Memory limit of documents. The first caller's engine is used for all callers.
    pub(crate) fn documents(&self, engine: &Engine) -> Arc<Documents> {
        let documents = &self.0.documents;
        Arc::clone(documents.get_or_init(|| Arc::new(Documents::new(engine.clone()))))
    }

    /// Returns the uploads in parts, which the first caller opens: the cluster's, the uploads in
    /// `folder`, or in memory without either.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) async fn uploads(
        &self,
        engine: &Engine,
        cluster: Option<ClusterUploads>,
        folder: Option<&PathBuf>,
        limit: usize,
    ) -> io::Result<Arc<Uploads>> {
        let open = async || {
            if let Some(cluster) = cluster {
                let uploads = Arc::new(Uploads::in_cluster(cluster, engine.clone()));
                uploads.spawn_sweep();
                return Ok(uploads);
            }
            let (engine, folder) = (engine.clone(), folder.cloned());
            let Some(folder) = folder else {
                return Ok(Arc::new(Uploads::new(limit, engine)));
            };
            let read = move || Uploads::persistent(limit, &folder, engine);
            let read = tokio::task::spawn_blocking(read).await;
            read.unwrap_or_else(|error| Err(error.into())).map(Arc::new)
        };
        self.0.uploads.get_or_try_init(open).await.map(Arc::clone)
    }

    /// Adds the rules of buckets, for removals by another endpoint. Only the first call has an effect.
    pub(crate) fn keep(&self, rules: &Arc<AllRules>) {
        // A second S3 endpoint with the same configuration removes its own.
        let _ = self.0.rules.set(Arc::clone(rules));
    }

    /// The rules of buckets, once an S3 endpoint has opened them.
    pub(crate) fn rules(&self) -> Option<Arc<AllRules>> {
        self.0.rules.get().map(Arc::clone)
    }

    /// Deletes a bucket with its uploads and rules. See [`delete_bucket`].
    pub(crate) async fn delete_bucket(&self, engine: &Engine, bucket: &str) -> S3Result<()> {
        let uploads = self.0.uploads.get().cloned();
        delete_bucket(engine, uploads, self.rules(), bucket).await
    }

    /// Deletes a bucket with the state that the endpoints keep of it, for other endpoints.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty`, and errors of files that cannot be removed.
    pub async fn remove_bucket(&self, engine: &Engine, bucket: &str) -> Result<(), ObjectError> {
        let deleted = self.delete_bucket(engine, bucket).await;
        deleted.map_err(ObjectError::from)
    }
}

/// Deletes a bucket with its multipart uploads and its rules: a new one of its name has neither, whenever the server dies. So the rules
/// go first; they are valid again if the bucket stays. Completed even if the caller leaves.
pub(crate) async fn delete_bucket(
    engine: &Engine,
    uploads: Option<Arc<Uploads>>,
    rules: Option<Arc<AllRules>>,
    bucket: &str,
) -> S3Result<()> {
    let (engine, bucket) = (engine.clone(), bucket.to_owned());
    let work = async move {
        if let Some(rules) = &rules {
            rules.set_aside(&bucket).await?;
        }
        if let Err(error) = engine.delete_bucket(&bucket).await {
            if let Some(rules) = &rules {
                rules.put_back(&bucket).await?;
            }
            let doing = OperationContext::new("delete bucket", &bucket, "");
            return Err(from_engine(doing, &error));
        }
        if let Some(uploads) = uploads {
            uploads.remove_bucket(&bucket).await?;
        }
        match rules {
            Some(rules) => rules.forget(&bucket).await,
            None => Ok(()),
        }
    };
    match tokio::spawn(work).await {
        Ok(deleted) => deleted,
        Err(error) => Err(fault(S3ErrorCode::InternalError, error.to_string())),
    }
}
