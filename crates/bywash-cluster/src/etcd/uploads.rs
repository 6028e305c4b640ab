//! Records of open multipart uploads: one key each, and one under a lease for each that became an object.

use std::sync::Arc;

use async_trait::async_trait;
use bywash::cluster_uploads::{
    COMPLETED_FOR, RecordedState, RecordedUpload, SharedPosition, SharedUpload, SharedUploadName,
    SharedUploads, SharedUploadsError,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::client::Etcd;
use super::error::EtcdError;
use super::keys::range_end;
use super::wire::{self, KeyValue, LeaseResponse, RangeResponse, TxnResponse};

/// Max number of open uploads of a cluster. Their records are in etcd's memory, so they take at most a few of its gigabytes.
pub(super) const MAX_RECORDED_UPLOADS: u64 = 10_000;
/// Max length of the record of an upload, in bytes. A key of 1 KiB, an id with metadata of 2 KiB and all attempts take less.
pub(super) const MAX_RECORD_BYTES: usize = 16 << 10;
/// Max number of lists of parts of one upload for which completion was sent. A client repeats one list.
pub(super) const MAX_RECORDED_ATTEMPTS: usize = 16;
/// Times that a change is tried: other nodes change the record of one upload only to complete it at
/// once, and etcd usually has three members; after a failure the next one is asked.
const TRIES: usize = 6;

/// The records of a cluster's uploads in etcd.
#[derive(Debug, Clone)]
pub struct EtcdUploads {
    etcd: Arc<Etcd>,
}

/// Value of an open upload. Times are nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UploadRecord {
    bucket: String,
    key: String,
    id: String,
    initiated: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    algorithm: Option<String>,
    /// Digest of the store that has the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<String>,
    /// When completion was last about to be sent; 0 before.
    #[serde(default, skip_serializing_if = "is_zero")]
    attempted: i64,
    /// Whether it was written when the upload began.
    #[serde(default)]
    begun: bool,
}

/// Age of an attempt after which it is recorded again if it is repeated: less than records are kept
/// after it.
const ATTEMPT_REPEATED: TimeDelta = TimeDelta::hours(1);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn nanos(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or_default()
}

impl UploadRecord {
    fn of(upload: &SharedUpload, begun: bool) -> Self {
        Self {
            bucket: upload.bucket.clone(),
            key: upload.key.clone(),
            id: upload.id.clone(),
            initiated: nanos(upload.initiated),
            algorithm: upload.algorithm.clone(),
            origin: upload.origin.clone(),
            attempts: Vec::new(),
            attempted: 0,
            begun,
        }
    }

    fn state(self) -> RecordedState {
        RecordedState::Open {
            attempts: self.attempts,
            since_begin: self.begun,
        }
    }

    fn recorded(self, revision: u64) -> RecordedUpload {
        let changed = self.initiated.max(self.attempted);
        RecordedUpload {
            changed: DateTime::from_timestamp_nanos(changed),
            revision,
            upload: SharedUpload {
                initiated: DateTime::from_timestamp_nanos(self.initiated),
                bucket: self.bucket,
                key: self.key,
                id: self.id,
                algorithm: self.algorithm,
                origin: self.origin,
            },
        }
    }

    /// Notes that completion from a list of parts is about to be sent. Returns false if the record has that already.
    fn note_attempt(
        &mut self,
        parts: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, SharedUploadsError> {
        let known = self.attempts.iter().any(|known| known == parts);
        let last = DateTime::from_timestamp_nanos(self.attempted);
        if known && now.signed_duration_since(last) < ATTEMPT_REPEATED {
            return Ok(false);
        }
        if !known {
            if self.attempts.len() >= MAX_RECORDED_ATTEMPTS {
                return Err(SharedUploadsError::Full(format!(
                    "completion from {MAX_RECORDED_ATTEMPTS} other lists of parts was requested; abort the upload and begin it again"
                )));
            }
            self.attempts.push(parts.to_owned());
        }
        self.attempted = nanos(now);
        Ok(true)
    }

    fn text(&self) -> Result<String, SharedUploadsError> {
        let text = serde_json::to_string(self).unwrap_or_default();
        if text.len() <= MAX_RECORD_BYTES {
            Ok(text)
        } else {
            Err(SharedUploadsError::Full(format!(
                "the record of a multipart upload has {} bytes, and at most {MAX_RECORD_BYTES} are kept; use less metadata",
                text.len()
            )))
        }
    }
}

/// An upload's keys with their values.
struct Found {
    open: Option<(UploadRecord, u64)>,
    completed: Option<String>,
}

/// Keys of one upload.
struct Keys {
    open: String,
    completed: String,
}

fn unavailable(error: &EtcdError) -> SharedUploadsError {
    SharedUploadsError::Unavailable(error.to_string())
}

impl EtcdUploads {
    /// The records in this etcd, below the cluster's name.
    #[must_use]
    pub fn new(etcd: Arc<Etcd>) -> Self {
        Self { etcd }
    }

    /// Returns the etcd, once its version is accepted: an older etcd may return replaced values.
    fn accepted(&self) -> Result<&Etcd, SharedUploadsError> {
        if self.etcd.is_accepted() {
            Ok(&self.etcd)
        } else {
            Err(SharedUploadsError::Unavailable(
                "etcd has not stated its version since this node started; see its log".to_owned(),
            ))
        }
    }

    fn keys(&self, upload: SharedUploadName<'_>) -> Keys {
        let SharedUploadName { bucket, key, id } = upload;
        let hash = hash(id);
        let name = self.etcd.name();
        Keys {
            open: name.upload(bucket, key, &hash),
            completed: name.completed_upload(bucket, key, &hash),
        }
    }

    /// Does a transaction that may be done more than once, with the next endpoint after a failure.
    async fn transaction(
        &self,
        compare: &[Value],
        success: &[Value],
    ) -> Result<TxnResponse, SharedUploadsError> {
        let txn = json!({"compare": compare, "success": success});
        let mut tries = 1..TRIES / 2;
        loop {
            match self.accepted()?.post("v3/kv/txn", &txn).await {
                Ok(done) => return Ok(done),
                Err(EtcdError::NoResponse { .. }) if tries.next().is_some() => {}
                Err(error) => return Err(unavailable(&error)),
            }
        }
    }

    async fn find(&self, keys: &Keys) -> Result<Found, SharedUploadsError> {
        let gets = [wire::get(&keys.open), wire::get(&keys.completed)];
        let response = self.transaction(&[], &gets).await?;
        let mut kvs = response
            .responses
            .into_iter()
            .map(|of| of.response_range.kvs.into_iter().next());
        let open = match kvs.next().flatten() {
            None => None,
            Some(kv) => Some((parse(&kv)?, kv.mod_revision)),
        };
        let completed = kvs.next().flatten().map(|kv| kv.value);
        Ok(Found { open, completed })
    }
}

/// Names an upload among the uploads of its object. Ids may be longer than a key should be.
fn hash(id: &str) -> String {
    let digest = Sha256::digest(id);
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn parse(kv: &KeyValue) -> Result<UploadRecord, SharedUploadsError> {
    serde_json::from_str(&kv.value).map_err(|error| {
        let text = format!("the record of a multipart upload is not understood: {error}");
        SharedUploadsError::Unavailable(text)
    })
}

#[async_trait]
impl SharedUploads for EtcdUploads {
    async fn begun(&self, upload: &SharedUpload) -> Result<(), SharedUploadsError> {
        let keys = self.keys(upload.name());
        let text = UploadRecord::of(upload, true).text()?;
        let all = self.etcd.name().uploads(None);
        let absent = [
            wire::exists(&keys.open, false),
            wire::exists(&keys.completed, false),
        ];
        let put = [
            wire::put(&keys.open, &text, 0),
            wire::count(&all, &range_end(&all)),
        ];
        let response = self.transaction(&absent, &put).await?;
        let count = response.responses.get(1);
        let count = count.map_or(0, |count| count.response_range.count);
        if response.succeeded && count > MAX_RECORDED_UPLOADS {
            self.transaction(&[], &[wire::delete(&keys.open)]).await?;
            return Err(SharedUploadsError::Full(format!(
                "{MAX_RECORDED_UPLOADS} multipart uploads are open in the cluster; complete or abort some"
            )));
        }
        Ok(())
    }

    async fn attempt(
        &self,
        upload: &SharedUpload,
        parts: &str,
    ) -> Result<RecordedState, SharedUploadsError> {
        let keys = self.keys(upload.name());
        for _ in 0..TRIES {
            let found = self.find(&keys).await?;
            if let Some(completed) = found.completed {
                return Ok(RecordedState::Completed(completed));
            }
            let (mut record, unchanged) = match found.open {
                Some((record, revision)) => (record, wire::has_revision(&keys.open, revision)),
                None => (
                    UploadRecord::of(upload, false),
                    wire::exists(&keys.open, false),
                ),
            };
            if !record.note_attempt(parts, Utc::now())? {
                return Ok(record.state());
            }
            let guard = [unchanged, wire::exists(&keys.completed, false)];
            let put = [wire::put(&keys.open, &record.text()?, 0)];
            // Without a response it may be done; then the list is found at the next try.
            match self.transaction(&guard, &put).await {
                Ok(done) if done.succeeded => return Ok(record.state()),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        let text = "other nodes changed the record of a multipart upload meanwhile";
        Err(SharedUploadsError::Unavailable(text.to_owned()))
    }

    async fn state(
        &self,
        upload: SharedUploadName<'_>,
    ) -> Result<RecordedState, SharedUploadsError> {
        let found = self.find(&self.keys(upload)).await?;
        Ok(match (found.completed, found.open) {
            (Some(completed), _) => RecordedState::Completed(completed),
            (None, Some((record, _))) => record.state(),
            (None, None) => RecordedState::Unknown,
        })
    }

    async fn completed(
        &self,
        upload: SharedUploadName<'_>,
        parts: &str,
    ) -> Result<(), SharedUploadsError> {
        let keys = self.keys(upload);
        // One that is granted and not used ends by itself.
        let grant = json!({"TTL": COMPLETED_FOR.as_secs().to_string(), "ID": "0"});
        let lease: LeaseResponse = self
            .accepted()?
            .post("v3/lease/grant", &grant)
            .await
            .map_err(|error| unavailable(&error))?;
        let ops = [
            wire::delete(&keys.open),
            wire::put(&keys.completed, parts, lease.id),
        ];
        self.transaction(&[], &ops).await?;
        Ok(())
    }

    async fn ended(&self, upload: SharedUploadName<'_>) -> Result<bool, SharedUploadsError> {
        let keys = self.keys(upload);
        let response = self.transaction(&[], &[wire::delete(&keys.open)]).await?;
        let deleted = response.responses.first();
        Ok(deleted.is_some_and(|deleted| deleted.response_delete_range.deleted > 0))
    }

    async fn list(
        &self,
        bucket: &str,
        from: SharedPosition<'_>,
        max: usize,
    ) -> Result<Vec<RecordedUpload>, SharedUploadsError> {
        let all = self.etcd.name().uploads(Some(bucket));
        let mut first = match from {
            SharedPosition::Key(key) => format!("{all}{key}"),
            // The next possible key.
            SharedPosition::After(key, id) => format!("{all}{key}\0{}\0", hash(id)),
        };
        let mut records = Vec::new();
        while records.len() < max {
            let limit = max - records.len();
            let request = json!({
                "key": wire::bytes(&first),
                "range_end": wire::bytes(&range_end(&all)),
                "limit": limit.to_string(),
            });
            let response: RangeResponse = self
                .accepted()?
                .post("v3/kv/range", &request)
                .await
                .map_err(|error| unavailable(&error))?;
            for kv in &response.kvs {
                // Of one that is not understood nothing is shown. It must not hide those after it.
                match parse(kv) {
                    Ok(record) => records.push(record.recorded(kv.mod_revision)),
                    Err(error) => tracing::warn!(key = ?kv.key, %error, "a record was skipped"),
                }
            }
            match response.kvs.last() {
                Some(last) if response.kvs.len() >= limit => first = format!("{}\0", last.key),
                _ => break,
            }
        }
        Ok(records)
    }

    async fn forget(&self, listed: &RecordedUpload) -> Result<bool, SharedUploadsError> {
        let keys = self.keys(listed.upload.name());
        let unchanged = [wire::has_revision(&keys.open, listed.revision)];
        let delete = [wire::delete(&keys.open)];
        Ok(self.transaction(&unchanged, &delete).await?.succeeded)
    }
}
