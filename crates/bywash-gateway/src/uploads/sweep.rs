//! Removes the records of a cluster's uploads that their origin has forgotten: a rule of the store
//! has aborted them, or a completion was not recorded. Otherwise they would stay forever, and take
//! the place of new ones.
//!
//! Each node searches now and then. The removals of several do no harm: each is of a record that has not changed since it was listed.
//! Times are wall clocks of several machines, so ages are days.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bywash::cluster_uploads::{RecordedUpload, SharedPosition, SharedUploadsError};
use bywash::{Bucket, Engine};
use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt as _;
use object_store::{Error as StoreError, ObjectStore as _};

use super::{ClusterUploads, UploadName, Uploads};
use crate::keys::path_of;
use crate::limits::MAX_CHECKED_UPLOADS;

/// Age of a record, since the upload began or completion was last sent, from which the origin is asked for the upload: no client repeats a
/// completion for as long.
const CHECKED: TimeDelta = TimeDelta::days(1);
/// Age from which a record is removed if no origin can be asked about it: a record of a store that
/// knows only parts, once it has none, or of an id that no key of this node opens. Azure keeps
/// parts for a week.
const UNKNOWN: TimeDelta = TimeDelta::days(30);
/// Records listed at a time.
const PAGE: usize = 100;
/// Failed requests to the origin of a bucket after which a search continues with the next bucket.
const FAILURES: usize = 3;

/// The record at which the next search continues: its bucket, key and id.
type Position = UploadName;

/// Searches until the endpoint ends.
pub(super) async fn run(every: Duration, uploads: Weak<Uploads>) {
    let mut position = None;
    loop {
        // So that nodes do not search all at once.
        let part: f64 = rand::random();
        tokio::time::sleep(every.mul_f64(0.5 + part / 2.0)).await;
        let Some(uploads) = uploads.upgrade() else {
            return;
        };
        let Some(cluster) = uploads.cluster() else {
            return;
        };
        let mut search = Search {
            cluster,
            now: Utc::now(),
            checks: 0,
            failures: 0,
            removed: 0,
            position: position.take(),
        };
        let engine = uploads.memory.engine();
        if let Err(error) = search.buckets(engine).await {
            tracing::debug!(%error, "records of multipart uploads could not be searched");
        }
        engine.traffic().note_removed_uploads(search.removed);
        if search.removed > 0 {
            tracing::info!(
                records = search.removed,
                "records of multipart uploads that their origin has forgotten were removed"
            );
        }
        position = search.position;
    }
}

/// One search.
struct Search<'a> {
    cluster: &'a ClusterUploads,
    now: DateTime<Utc>,
    checks: usize,
    /// In the bucket that is searched.
    failures: usize,
    removed: u64,
    /// The record that was looked at last; none at the begin and after the end of all.
    position: Option<Position>,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.checks >= MAX_CHECKED_UPLOADS
    }

    /// Searches all buckets, from the position on.
    async fn buckets(&mut self, engine: &Engine) -> Result<(), SharedUploadsError> {
        let mut names: Vec<String> = engine.buckets().into_iter().map(|of| of.name).collect();
        names.sort();
        let first = self.position.as_ref().map(|of| of.bucket.clone());
        names.retain(|name| first.as_ref().is_none_or(|first| name >= first));
        for name in names {
            self.failures = 0;
            if let Some(bucket) = engine.bucket(&name) {
                let bucket = Searched {
                    origin: bucket.origin_digest(),
                    differs: differs(engine, &name),
                    exists: None,
                    bucket,
                };
                self.bucket(&name, bucket).await?;
            }
            if self.is_over() {
                return Ok(());
            }
        }
        self.position = None;
        Ok(())
    }

    async fn bucket(&mut self, name: &str, mut bucket: Searched) -> Result<(), SharedUploadsError> {
        loop {
            let shared = Arc::clone(&self.cluster.shared);
            let from = match &self.position {
                Some(last) if last.bucket == name => SharedPosition::After(&last.key, &last.id),
                _ => SharedPosition::Key(""),
            };
            let page = shared.list(name, from, PAGE).await?;
            let is_last = page.len() < PAGE;
            for record in page {
                if self.is_over() || self.failures >= FAILURES {
                    return Ok(());
                }
                if self.is_forgotten(&mut bucket, &record).await && shared.forget(&record).await? {
                    self.removed += 1;
                }
                self.position = Some(name_of(&record));
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Returns whether a record is of no use any more.
    async fn is_forgotten(&mut self, searched: &mut Searched, record: &RecordedUpload) -> bool {
        let age = self.now.signed_duration_since(record.changed);
        if age < CHECKED || !searched.may_judge(record, age) {
            return false;
        }
        let Searched { bucket, exists, .. } = searched;
        let Ok(sealed) = self.cluster.open(name_of(record)) else {
            return age >= UNKNOWN;
        };
        let Ok(path) = path_of(&sealed.name.key) else {
            return false;
        };
        self.checks += 1;
        match bucket.uploaded_parts(&path, &sealed.origin, 0, 1).await {
            // Of a bucket that is not there nothing is known: it may be the wrong one.
            Err(StoreError::NotFound { .. }) if bucket.knows_uploads() => match *exists {
                Some(exists) => exists,
                None => *exists.insert(is_there(bucket).await),
            },
            Ok(listed) => !bucket.knows_uploads() && listed.parts.is_empty() && age >= UNKNOWN,
            Err(_) => {
                self.failures += 1;
                false
            }
        }
    }
}

/// A bucket that is searched.
struct Searched {
    bucket: Bucket,
    /// Digest of its store.
    origin: Option<String>,
    /// Whether another node that is a member has other settings of it.
    differs: bool,
    /// Whether the bucket is at its store, once that was asked.
    exists: Option<bool>,
}

impl Searched {
    /// Whether the store of this node's bucket may know the upload of a record.
    ///
    /// That is the store which the record names. Where it names another one, as after a change of its address, or none, as after an attempt at
    /// a node of an older version, the upload may be open at another node's store: for a month, and as long as a node has other settings.
    fn may_judge(&self, record: &RecordedUpload, age: TimeDelta) -> bool {
        match &record.upload.origin {
            Some(origin) if self.origin.as_ref() == Some(origin) => true,
            _ => age >= UNKNOWN && !self.differs,
        }
    }
}

fn name_of(record: &RecordedUpload) -> UploadName {
    let open = &record.upload;
    UploadName {
        bucket: open.bucket.clone(),
        key: open.key.clone(),
        id: open.id.clone(),
    }
}

/// Whether another node has other settings of a bucket. An upload may be that node's then, and this
/// node's origin knows nothing of it.
fn differs(engine: &Engine, bucket: &str) -> bool {
    let members = engine.cluster_status().map(|status| status.members);
    let mut members = members.iter().flatten();
    members.any(|member| member.other_settings.iter().any(|of| of == bucket))
}

/// Returns whether the origin lists the bucket.
async fn is_there(bucket: &Bucket) -> bool {
    matches!(bucket.list(None).next().await, None | Some(Ok(_)))
}
