//! Completion of an upload of a cluster, at any node.
//!
//! The parts are as listed by the origin. Before the completion is sent, its list is recorded for
//! all nodes; over S3, where the ETag of the object proves its list, it is sent also while the
//! records are not available. The origin decides between completions at once.

use std::collections::BTreeMap;

use bywash::cluster_uploads::{RecordedState, SharedUploadsError};
use bywash::{Bucket, OriginError, UploadedPart};
use object_store::path::Path;
use object_store::{Error as StoreError, PutMode, PutResult};
use s3s::dto::CompletedPart;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::digest::{Algorithm, Checksum};
use crate::errors::{OperationContext, fault, from_store, no_such_upload, slow_down};
use crate::meta::{bare, upload_mark};
use crate::uploads::{
    Candidate, ClusterUploads, EntryReservation, NamedParts, Part, SealedUpload, Upload, Uploads,
    Verdict, choose, not_recorded, part_of,
};

/// Parts that the origin is asked for at a time.
const PARTS_PER_PAGE: usize = 1000;

/// How a completion ended.
#[derive(Debug)]
pub(crate) struct Completed {
    /// ETag of the object.
    pub(crate) e_tag: Option<String>,
    /// Whether an earlier request had completed the upload.
    pub(crate) is_earlier: bool,
}

impl Completed {
    fn earlier(e_tag: Option<String>) -> Self {
        Self {
            e_tag,
            is_earlier: true,
        }
    }
}

/// Whether the origin has the upload.
pub(crate) enum Found {
    /// An earlier request completed it from the same list.
    Completed(Completed),
    Open(Box<StoredParts>),
}

/// A completion of parts that the origin has.
pub(crate) struct StoredParts {
    job: ClusterJob,
    /// Charge of the origin's list of the parts.
    _charge: EntryReservation,
}

/// A completion that a client requests.
pub(crate) struct ClusterJob {
    cluster: ClusterUploads,
    bucket: Bucket,
    path: Path,
    sealed: SealedUpload,
    requested: Vec<CompletedPart>,
    named: NamedParts,
}

impl ClusterJob {
    pub(crate) fn new(
        cluster: &ClusterUploads,
        (bucket, path): (Bucket, Path),
        sealed: SealedUpload,
        requested: Vec<CompletedPart>,
    ) -> Self {
        let named = NamedParts::new(&requested, bucket.origin_kind() == "s3");
        Self {
            cluster: cluster.clone(),
            bucket,
            path,
            sealed,
            requested,
            named,
        }
    }

    /// Finds the parts that the request names at the origin, or the object that they became.
    ///
    /// # Errors
    /// If the origin does not have them, and errors of the origin.
    pub(crate) async fn find(
        mut self,
        uploads: &Uploads,
        doing: OperationContext<'_>,
    ) -> S3Result<Found> {
        // The origin's list of all parts that are named.
        let charge = uploads.charge_listed_parts(self.requested.len())?;
        let Some(parts) = self.stored_parts(doing).await? else {
            return self.earlier(doing).await.map(Found::Completed);
        };
        self.sealed.upload.parts = parts.into();
        match choose(&self.sealed.upload, &self.requested) {
            // A store that knows only parts does not list them after the completion.
            Err(missing) if !self.bucket.knows_uploads() => match self.verdict(doing).await? {
                (Verdict::OtherObject, _) => Err(missing),
                (verdict, e_tag) => self.result(verdict, e_tag, doing).map(Found::Completed),
            },
            Err(missing) => Err(missing),
            Ok(_) => Ok(Found::Open(Box::new(StoredParts {
                job: self,
                _charge: charge,
            }))),
        }
    }

    /// Requests the stored parts among the named ones. `None` if the origin does not know the
    /// upload.
    async fn stored_parts(
        &self,
        doing: OperationContext<'_>,
    ) -> S3Result<Option<BTreeMap<u16, Part>>> {
        let number = |part: &CompletedPart| u16::try_from(part.part_number?).ok();
        let wanted: BTreeMap<u16, &CompletedPart> = self
            .requested
            .iter()
            .filter_map(|part| Some((number(part)?, part)))
            .collect();
        let mut found = BTreeMap::new();
        let (Some((first, _)), Some((last, _))) =
            (wanted.first_key_value(), wanted.last_key_value())
        else {
            return Ok(Some(found));
        };
        let mut after = first.saturating_sub(1);
        loop {
            let page = self
                .bucket
                .uploaded_parts(&self.path, &self.sealed.origin, after, PARTS_PER_PAGE)
                .await;
            let page = match page {
                Ok(page) => page,
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(from_store(doing, &error)),
            };
            for listed in page.parts {
                after = listed.number;
                let Some(part) = wanted.get(&listed.number) else {
                    continue;
                };
                let named = part.e_tag.as_ref().map(|e_tag| e_tag.value());
                // A store that keeps a part next to its replacement lists both.
                if named == Some(bare(&listed.e_tag)) || !found.contains_key(&after) {
                    let mut stored = part_of(listed, self.sealed.upload.initiated);
                    stored.checksum = named_checksum(part);
                    found.insert(after, stored);
                }
            }
            if !page.more || after >= *last {
                return Ok(Some(found));
            }
        }
    }

    /// Records that the list is about to be sent. Returns false if the upload has ended.
    async fn record_attempt(&self, doing: OperationContext<'_>) -> S3Result<bool> {
        let shared = &self.cluster.shared;
        let digest = &self.named.digest;
        let record = self.sealed.record(&self.bucket);
        if planted!("gateway-attempt-not-recorded") {
            return Ok(true);
        }
        match shared.attempt(&record, digest).await {
            Ok(RecordedState::Completed(_)) => Ok(false),
            // Its record is the only trace of an upload that such a store has.
            Ok(RecordedState::Open {
                since_begin: false, ..
            }) if !self.bucket.knows_uploads() => {
                self.forget().await;
                Err(no_such_upload(&self.sealed.name.id))
            }
            Ok(_) => Ok(true),
            Err(error @ SharedUploadsError::Unavailable(_)) if self.named.needs_no_record() => {
                let key = &self.sealed.name.key;
                tracing::warn!(key, %error, "the completion of a multipart upload is sent without a record");
                Ok(true)
            }
            Err(error) => Err(not_recorded(doing, &error)),
        }
    }

    /// Completes the upload at the origin in a task of its own: if the client leaves, its end is recorded all the same.
    async fn send(
        &self,
        parts: Vec<UploadedPart>,
        mode: PutMode,
    ) -> S3Result<Result<PutResult, StoreError>> {
        let (cluster, record) = (self.cluster.clone(), self.sealed.record(&self.bucket));
        let (bucket, path) = (self.bucket.clone(), self.path.clone());
        let (origin, digest) = (self.sealed.origin.clone(), self.named.digest.clone());
        let sent = tokio::spawn(async move {
            let result = bucket.complete_upload(&path, &origin, &parts, mode).await;
            if result.is_ok()
                && let Err(error) = cluster.shared.completed(record.name(), &digest).await
            {
                let key = record.key;
                tracing::warn!(key, %error, "a completed multipart upload stays listed");
            }
            result
        });
        sent.await
            .map_err(|error| fault(S3ErrorCode::InternalError, error.to_string()))
    }

    /// Returns the result of an earlier completion from the same list, or the error of an upload that has ended otherwise.
    async fn earlier(&self, doing: OperationContext<'_>) -> S3Result<Completed> {
        let (verdict, e_tag) = self.verdict(doing).await?;
        if verdict == Verdict::OtherObject {
            self.forget().await;
        }
        self.result(verdict, e_tag, doing)
    }

    /// Judges the object that the origin has now, and returns its ETag.
    async fn verdict(&self, doing: OperationContext<'_>) -> S3Result<(Verdict, Option<String>)> {
        let found = match self.bucket.stored_now(&self.path).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok((Verdict::OtherObject, None)),
            Err(error) => return Err(from_store(doing, &error)),
        };
        let name = self.sealed.shared_name();
        // After the object, so that this read includes the attempt that became it.
        let recorded = self.cluster.shared.state(name).await;
        let object = Candidate {
            mark: upload_mark(&found.attributes),
            e_tag: found.meta.e_tag.as_deref(),
        };
        let mark = self.sealed.upload.mark.as_deref();
        let verdict = self.named.judge(mark, &object, &recorded);
        if verdict == Verdict::Result {
            // The node that sent it may have ended before the other nodes knew of it.
            let confirmed = self.bucket.confirm_write(&self.path).await;
            confirmed.map_err(|error| from_store(doing, &error))?;
        }
        if verdict == Verdict::Result && matches!(recorded, Ok(RecordedState::Open { .. })) {
            let completed = self.cluster.shared.completed(name, &self.named.digest);
            if let Err(error) = completed.await {
                tracing::warn!(key = name.key, %error, "a completed multipart upload stays listed");
            }
        }
        Ok((verdict, found.meta.e_tag))
    }

    /// Removes the record of an upload that the origin does not have.
    async fn forget(&self) {
        if let Err(error) = self.cluster.shared.ended(self.sealed.shared_name()).await {
            let key = &self.sealed.name.key;
            tracing::warn!(key, %error, "a multipart upload that has ended stays listed");
        }
    }

    fn result(
        &self,
        verdict: Verdict,
        e_tag: Option<String>,
        doing: OperationContext<'_>,
    ) -> S3Result<Completed> {
        match verdict {
            Verdict::Result => Ok(Completed::earlier(e_tag)),
            Verdict::OtherObject => Err(no_such_upload(&self.sealed.name.id)),
            Verdict::OtherList => Err(ended(
                doing,
                "the upload was completed from another list of parts; none of this one was stored",
            )),
            Verdict::Unproven => Err(ended(
                doing,
                "the upload has become the object, and whether from this list of parts or from another cannot be proven; compare \
                 the object, or upload it again",
            )),
            Verdict::Unavailable => Err(slow_down(format!(
                "{} {}/{}: the upload has become the object, and that it did from this list of parts cannot be proven while the \
                 records of multipart uploads are not available; try again.",
                doing.operation, doing.bucket, doing.key
            ))),
        }
    }
}

impl StoredParts {
    /// Returns the upload, and its parts that the request names.
    pub(crate) fn chosen(&self) -> S3Result<(&Upload, Vec<(UploadedPart, &Part)>)> {
        let upload = &self.job.sealed.upload;
        Ok((upload, choose(upload, &self.job.requested)?))
    }

    /// Records the list of parts, and completes the upload at the origin under `mode`. The inner errors are the origin's.
    ///
    /// # Errors
    /// If the list cannot be recorded, and if the upload has ended otherwise.
    pub(crate) async fn complete(
        self,
        mode: PutMode,
        doing: OperationContext<'_>,
    ) -> S3Result<Result<Completed, StoreError>> {
        let (_, chosen) = self.chosen()?;
        let chosen: Vec<_> = chosen.into_iter().map(|(part, _)| part).collect();
        let job = &self.job;
        if !job.record_attempt(doing).await? {
            return job.earlier(doing).await.map(Ok);
        }
        match job.send(chosen, mode).await? {
            Ok(put) => Ok(Ok(Completed {
                e_tag: put.e_tag,
                is_earlier: false,
            })),
            Err(StoreError::NotFound { .. }) => job.earlier(doing).await.map(Ok),
            Err(error) if is_refused_after_success(&error) => match job.verdict(doing).await? {
                (Verdict::Result, e_tag) => Ok(Ok(Completed::earlier(e_tag))),
                _ => Ok(Err(error)),
            },
            Err(error) => Ok(Err(error)),
        }
    }
}

fn ended(doing: OperationContext<'_>, reason: &str) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    let message = format!("{operation} {bucket}/{key}: {reason}.");
    fault(S3ErrorCode::NoSuchUpload, message)
}

/// Whether an origin refuses a completion so because an equal one has succeeded.
fn is_refused_after_success(error: &StoreError) -> bool {
    let invalid_part = matches!(
        OriginError::find(error),
        Some(OriginError::InvalidPart { .. })
    );
    let condition = matches!(
        error,
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }
    );
    invalid_part || condition
}

/// The checksum that a completion names for a part. The node that took the part has compared it
/// with the bytes.
fn named_checksum(part: &CompletedPart) -> Option<Checksum> {
    let named = [
        (Algorithm::Crc32, &part.checksum_crc32),
        (Algorithm::Crc32c, &part.checksum_crc32c),
        (Algorithm::Crc64Nvme, &part.checksum_crc64nvme),
        (Algorithm::Sha1, &part.checksum_sha1),
        (Algorithm::Sha256, &part.checksum_sha256),
    ];
    let mut named = named.into_iter();
    named.find_map(|(algorithm, value)| {
        let value = value.clone()?;
        algorithm.decode(&value)?;
        Some(Checksum { algorithm, value })
    })
}
