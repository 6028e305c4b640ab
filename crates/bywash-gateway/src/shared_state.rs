//! What the endpoints of one engine share: the memory of documents, and what is kept of buckets.

use std::sync::{Arc, OnceLock};

use bywash::Engine;
use s3s::S3Result;

use crate::bucket_rules::{AllRules, BucketRules};
use crate::documents::Documents;
use crate::uploads::Uploads;

/// What the endpoints of one engine share. A cheap handle; the configurations of all of them have the same.
#[derive(Debug, Clone, Default)]
pub struct SharedState(Arc<State>);

#[derive(Debug, Default)]
struct State {
    documents: OnceLock<Arc<Documents>>,
    buckets: OnceLock<KeptOfBuckets>,
}

/// What an S3 endpoint keeps of buckets beside their objects.
#[derive(Debug)]
struct KeptOfBuckets {
    uploads: Arc<Uploads>,
    rules: Arc<AllRules>,
}

impl SharedState {
    /// Returns the memory limit of documents. The first caller's engine is that of all.
    pub(crate) fn documents(&self, engine: &Engine) -> Arc<Documents> {
        let documents = &self.0.documents;
        Arc::clone(documents.get_or_init(|| Arc::new(Documents::new(engine.clone()))))
    }

    /// Adds what an S3 endpoint keeps of buckets, for removals by another endpoint. Only the first call has an effect.
    pub(crate) fn keep(&self, uploads: &Arc<Uploads>, rules: &Arc<AllRules>) {
        let kept = KeptOfBuckets {
            uploads: Arc::clone(uploads),
            rules: Arc::clone(rules),
        };
        // A second S3 endpoint with the same configuration removes what is its own.
        let _ = self.0.buckets.set(kept);
    }

    /// Returns the rules of buckets, once an S3 endpoint has opened them.
    pub(crate) fn rules(&self) -> Option<Arc<AllRules>> {
        self.0.buckets.get().map(|kept| Arc::clone(&kept.rules))
    }

    /// Removes what is kept of a bucket that was deleted.
    pub(crate) async fn bucket_removed(&self, bucket: &str) -> S3Result<()> {
        match self.0.buckets.get() {
            Some(kept) => bucket_removed(&kept.uploads, &kept.rules, bucket).await,
            None => Ok(()),
        }
    }
}

/// Removes the multipart uploads and the rules of a bucket that was deleted: a new one of its name has neither.
pub(crate) async fn bucket_removed(
    uploads: &Arc<Uploads>,
    rules: &Arc<AllRules>,
    bucket: &str,
) -> S3Result<()> {
    uploads.remove_bucket(bucket).await?;
    let forget = rules.change(bucket, |rules| *rules = BucketRules::default());
    forget.await
}
