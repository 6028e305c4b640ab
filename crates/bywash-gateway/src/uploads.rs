//! Multipart uploads in progress.
//!
//! In memory, and optionally in a [folder](crate::S3Config::uploads). A change is on disk before it is visible, so
//! acknowledged state survives a restart.

mod cluster;
mod completion;
mod create;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod journal;
mod memory;
mod open;
mod proof;
mod record;
mod rules;
mod seal;
mod sweep;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::{Engine, UploadedPart};
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha2::{Digest as _, Sha256};

use crate::digest::{Algorithm, Checksum, ChecksumKind};
use crate::errors::{OperationContext, fault, no_such_upload, slow_down};
use crate::meta::bare;
pub use cluster::ClusterUploads;
pub(crate) use cluster::{SealedUpload, not_recorded, part_of};
pub(crate) use completion::Completion;
pub(crate) use create::NewUpload;
use journal::{Journal, Tail};
pub use journal::{OpenUpload, open_uploads};
pub(crate) use memory::{EntryReservation, UploadMemory, UploadSlot};
use memory::{LISTED_PART_BYTES, PART_BYTES, attempt_bytes, begun_bytes, part_bytes, upload_bytes};
pub use open::{AbortError, ClusterUpload, OpenUploads};
pub(crate) use proof::{Candidate, NamedParts, Verdict};
pub(crate) use rules::{choose, part_number};
pub use seal::HmacSeal;

/// One stored part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The engine's ETag.
    pub(crate) e_tag: String,
    /// MD5 of its bytes in hexadecimal digits, if it was computed: the ETag that clients see.
    pub(crate) md5: Option<String>,
    pub(crate) size: u64,
    pub(crate) checksum: Option<Checksum>,
    pub(crate) modified: DateTime<Utc>,
}

impl Part {
    /// The ETag that clients see, without quotes.
    pub(crate) fn client_e_tag(&self) -> &str {
        self.md5.as_deref().unwrap_or_else(|| bare(&self.e_tag))
    }
}

/// One upload.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) initiated: DateTime<Utc>,
    /// Checksum algorithm announced at the start.
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether that checksum covers the whole object.
    pub(crate) full_object: bool,
    /// Mark that the origin stores with an object created by this upload.
    pub(crate) mark: Option<String>,
    /// Shared with completions, which read it without a copy.
    pub(crate) parts: Arc<BTreeMap<u16, Part>>,
    /// Lists of parts for which completion was sent to the origin, as [`attempt`] names them.
    pub(crate) attempts: BTreeSet<String>,
    /// Whether a completion is in progress, which excludes all other changes.
    completing: bool,
    /// Locked during a write to its file, if it has one.
    tail: Arc<Mutex<Tail>>,
}

impl Upload {
    pub(crate) fn new(
        initiated: DateTime<Utc>,
        algorithm: Option<Algorithm>,
        full_object: bool,
        mark: Option<String>,
    ) -> Self {
        Self {
            initiated,
            algorithm,
            full_object,
            mark,
            parts: Arc::default(),
            attempts: BTreeSet::new(),
            completing: false,
            tail: Arc::default(),
        }
    }

    /// Type of the checksum announced at the start.
    pub(crate) fn checksum_kind(&self) -> Option<ChecksumKind> {
        self.algorithm
            .map(|_| ChecksumKind::of_upload(self.full_object))
    }

    fn without_parts(&self) -> Self {
        Self {
            parts: Arc::default(),
            attempts: BTreeSet::new(),
            mark: self.mark.clone(),
            tail: Arc::clone(&self.tail),
            ..*self
        }
    }

    fn apply(&mut self, change: UploadChange) {
        match change {
            UploadChange::Part(number, part) => {
                Arc::make_mut(&mut self.parts).insert(number, part);
            }
            UploadChange::Completing(parts) => {
                self.attempts.insert(parts);
            }
        }
    }

    /// The bytes that a change adds, and the bytes that it replaces.
    fn cost(&self, change: &UploadChange) -> (u64, u64) {
        match change {
            UploadChange::Part(number, part) => (
                part_bytes(part),
                self.parts.get(number).map_or(0, part_bytes),
            ),
            UploadChange::Completing(parts) if self.attempts.contains(parts) => (0, 0),
            // The first attempt is charged with the upload.
            UploadChange::Completing(_) if self.attempts.is_empty() => (0, 0),
            UploadChange::Completing(parts) => (attempt_bytes(parts), 0),
        }
    }
}

/// A change of an open upload.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UploadChange {
    /// A part was stored, replacing one of the same number.
    Part(u16, Part),
    /// A completion from these parts is about to be sent to the origin.
    Completing(String),
}

/// Names a list of parts, injectively.
pub(crate) fn attempt(parts: &[UploadedPart]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.number.to_le_bytes());
        digest.update((part.e_tag.len() as u64).to_le_bytes());
        digest.update(&part.e_tag);
    }
    BASE64_STANDARD.encode(digest.finalize())
}

/// Identifies an upload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UploadName {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) id: String,
}

impl UploadName {
    pub(crate) fn of(doing: OperationContext<'_>, id: String) -> Self {
        Self {
            bucket: doing.bucket.to_owned(),
            key: doing.key.to_owned(),
            id,
        }
    }

    /// The context of an operation on its parts.
    pub(crate) fn listing(&self) -> OperationContext<'_> {
        OperationContext::new("list parts of", &self.bucket, &self.key)
    }
}

/// An entry in a list of uploads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedUpload {
    pub(crate) name: UploadName,
    pub(crate) initiated: DateTime<Utc>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) checksum_kind: Option<ChecksumKind>,
}

/// All uploads of an endpoint.
#[derive(Debug)]
pub(crate) struct Uploads {
    open: Mutex<BTreeMap<UploadName, Upload>>,
    limit: usize,
    memory: Arc<UploadMemory>,
    journal: Option<Journal>,
    /// Set in a cluster, which has its uploads there: `open` stays empty.
    cluster: Option<ClusterUploads>,
}

impl Uploads {
    /// Uploads in memory only: they are lost when the server ends, though their parts stay at the origin.
    pub(crate) fn new(limit: usize, engine: Engine) -> Self {
        Self {
            open: Mutex::new(BTreeMap::new()),
            limit,
            memory: Arc::new(UploadMemory::new(engine)),
            journal: None,
            cluster: None,
        }
    }

    /// Uploads that the nodes of a cluster share. The limits of this node's table do not apply.
    pub(crate) fn in_cluster(cluster: ClusterUploads, engine: Engine) -> Self {
        Self {
            cluster: Some(cluster),
            ..Self::new(0, engine)
        }
    }

    /// Searches for records of uploads that their origin has forgotten, until the endpoint ends.
    pub(crate) fn spawn_sweep(self: &Arc<Self>) {
        if let Some(cluster) = &self.cluster {
            // It ends by itself, at most a pause after the last endpoint.
            drop(tokio::spawn(sweep::run(
                cluster.sweep_every,
                Arc::downgrade(self),
            )));
        }
    }

    /// State that the nodes of a cluster share.
    pub(crate) fn cluster(&self) -> Option<&ClusterUploads> {
        self.cluster.as_ref()
    }

    /// Uploads stored in `folder`, including uploads of earlier servers. These count even above the
    /// limits: new uploads and parts are then rejected until enough have ended. Blocks.
    pub(crate) fn persistent(limit: usize, folder: &Path, engine: Engine) -> io::Result<Self> {
        let (journal, uploads) = Journal::open(folder, &engine)?;
        let open: BTreeMap<_, _> = uploads.into_iter().collect();
        let memory = UploadMemory::new(engine);
        memory.load(
            open.iter()
                .map(|(name, upload)| upload_bytes(name, upload))
                .sum(),
        );
        Ok(Self {
            open: Mutex::new(open),
            limit,
            memory: Arc::new(memory),
            journal: Some(journal),
            cluster: None,
        })
    }

    /// Whether uploads survive the end of this process.
    pub(crate) fn are_persistent(&self) -> bool {
        self.journal.is_some() || self.cluster.is_some()
    }

    /// Runs `work` on a blocking thread if it may block. It completes even if the caller is cancelled.
    async fn run<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> S3Result<R> + Send + 'static,
    ) -> S3Result<R> {
        if self.journal.is_none() {
            return work(self);
        }
        let uploads = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || work(&uploads));
        work.await
            .unwrap_or_else(|error| Err(fault(S3ErrorCode::InternalError, error.to_string())))
    }

    /// Charges the memory of `count` parts of an origin's list. Never waits: the caller holds the memory of its request.
    pub(crate) fn charge_listed_parts(&self, count: usize) -> S3Result<EntryReservation> {
        let mut hold = self.memory.empty();
        hold.cover(count as u64 * LISTED_PART_BYTES)?;
        Ok(hold)
    }

    /// Charges the memory of one more upload, if the limit allows one.
    pub(crate) async fn admit(
        &self,
        doing: OperationContext<'_>,
    ) -> S3Result<(EntryReservation, UploadSlot)> {
        let beginning = {
            let open = self.open.lock();
            self.memory.begin(self.limit.saturating_sub(open.len()))
        };
        let Some(beginning) = beginning else {
            return Err(slow_down(format!(
                "{} multipart uploads are open; complete or abort some.",
                self.limit
            )));
        };
        let hold = self.memory.take(begun_bytes(doing), doing).await?;
        Ok((hold, beginning))
    }

    pub(crate) async fn begin(
        self: &Arc<Self>,
        name: UploadName,
        upload: Upload,
        (mut hold, beginning): (EntryReservation, UploadSlot),
    ) -> S3Result<()> {
        let bytes = upload_bytes(&name, &upload);
        hold.cover(bytes)?;
        self.run(move |uploads| {
            if let Some(journal) = &uploads.journal {
                let mut tail = upload.tail.lock();
                journal
                    .write(&name, &upload, &mut tail)
                    .map_err(|error| not_kept(&name, &error))?;
            }
            uploads.open.lock().insert(name, upload);
            hold.keep(bytes, 0);
            drop(beginning);
            Ok(())
        })
        .await
    }

    /// Returns the current state of an upload.
    pub(crate) fn get(&self, name: &UploadName) -> S3Result<Upload> {
        self.open
            .lock()
            .get(name)
            .cloned()
            .ok_or_else(|| no_such_upload(&name.id))
    }

    /// Whether the upload accepts parts.
    pub(crate) fn check_open(&self, name: &UploadName) -> S3Result<()> {
        match self.open.lock().get(name) {
            None => Err(no_such_upload(&name.id)),
            Some(upload) if upload.completing => Err(busy(&name.id)),
            Some(_) => Ok(()),
        }
    }

    /// The algorithm announced at the start of an upload.
    pub(crate) fn algorithm(&self, name: &UploadName) -> Option<Algorithm> {
        self.open.lock().get(name)?.algorithm
    }

    /// Charges the memory of one more part, if the upload accepts parts.
    pub(crate) async fn admit_part(
        &self,
        name: &UploadName,
        doing: OperationContext<'_>,
    ) -> S3Result<EntryReservation> {
        self.check_open(name)?;
        self.memory.take(PART_BYTES, doing).await
    }

    pub(crate) async fn add_part(
        self: &Arc<Self>,
        name: &UploadName,
        number: u16,
        part: Part,
        hold: EntryReservation,
    ) -> S3Result<()> {
        let name = name.clone();
        self.run(move |uploads| uploads.change(&name, UploadChange::Part(number, part), hold))
            .await
    }

    /// Returns at most `count` parts after the number `after`, in order, and the upload without its parts.
    pub(crate) fn parts_after(
        &self,
        name: &UploadName,
        after: i32,
        count: usize,
    ) -> S3Result<(Upload, Vec<(u16, Part)>)> {
        let open = self.open.lock();
        let upload = open.get(name).ok_or_else(|| no_such_upload(&name.id))?;
        let first = u16::try_from(after.saturating_add(1).max(0)).unwrap_or(u16::MAX);
        let parts = upload.parts.range(first..).take(count);
        let parts = parts
            .map(|(number, part)| (*number, part.clone()))
            .collect();
        Ok((upload.without_parts(), parts))
    }

    fn tail(&self, name: &UploadName) -> S3Result<Arc<Mutex<Tail>>> {
        let open = self.open.lock();
        let upload = open.get(name).ok_or_else(|| no_such_upload(&name.id))?;
        Ok(Arc::clone(&upload.tail))
    }

    /// Applies a change, on disk first. Changes of one upload are serialised.
    fn change(
        &self,
        name: &UploadName,
        change: UploadChange,
        mut hold: EntryReservation,
    ) -> S3Result<()> {
        let tail = self.tail(name)?;
        let mut tail = tail.lock();
        let cost = self
            .open
            .lock()
            .get(name)
            .map(|upload| upload.cost(&change));
        let (added, replaced) = cost.ok_or_else(|| no_such_upload(&name.id))?;
        hold.cover(added.saturating_sub(replaced))?;
        if let Some(journal) = &self.journal {
            // It may have ended while the file was locked by another thread. While this thread holds the lock, it
            // cannot.
            self.tail(name)?;
            let written = if Journal::appendable(&tail) {
                journal.append(name, &change, &mut tail)
            } else {
                let mut upload = self.get(name)?;
                upload.apply(change.clone());
                journal.write(name, &upload, &mut tail)
            };
            written.map_err(|error| not_kept(name, &error))?;
        }
        let mut open = self.open.lock();
        let upload = open.get_mut(name).ok_or_else(|| no_such_upload(&name.id))?;
        upload.apply(change);
        hold.keep(added, replaced);
        Ok(())
    }

    /// Claims the upload for a completion. [`Completion`] releases it unless it succeeds.
    pub(crate) fn complete(self: &Arc<Self>, name: &UploadName) -> S3Result<(Completion, Upload)> {
        let mut open = self.open.lock();
        let upload = open.get_mut(name).ok_or_else(|| no_such_upload(&name.id))?;
        if upload.completing {
            return Err(busy(&name.id));
        }
        upload.completing = true;
        Ok((
            Completion {
                uploads: Arc::clone(self),
                name: name.clone(),
                done: false,
            },
            upload.clone(),
        ))
    }

    /// The origin does not know the upload. Removes it, unless it may have become the object, when its completion
    /// still needs it.
    pub(crate) async fn gone(self: &Arc<Self>, name: &UploadName) -> S3Error {
        let ended = |upload: &Upload| upload.attempts.is_empty() && !upload.completing;
        let ended = self.open.lock().get(name).is_some_and(ended);
        if ended && let Err(error) = self.remove(name).await {
            return error;
        }
        no_such_upload(&name.id)
    }

    /// Removes an upload that has ended at the origin.
    pub(crate) async fn remove(self: &Arc<Self>, name: &UploadName) -> S3Result<()> {
        let name = name.clone();
        self.run(move |uploads| {
            let Ok(tail) = uploads.tail(&name) else {
                return Ok(());
            };
            let _tail = tail.lock();
            if let Some(journal) = &uploads.journal
                && let Err(error) = journal.remove(&name)
            {
                tracing::warn!(
                    upload = name.id, %error,
                    "the file of a multipart upload that has ended cannot be removed; it is listed again after a restart"
                );
            }
            let ended = uploads.open.lock().remove(&name);
            let bytes = ended.map_or(0, |upload| upload_bytes(&name, &upload));
            uploads.memory.release(bytes);
            Ok(())
        })
        .await
    }

    /// The first upload of a bucket from `from` on, in the order of keys and ids.
    pub(crate) fn first(&self, bucket: &str, from: Bound<(&str, &str)>) -> Option<ListedUpload> {
        let from = from.map(|(key, id)| UploadName {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            id: id.to_owned(),
        });
        let open = self.open.lock();
        let (name, upload) = open.range((from, Bound::Unbounded)).next()?;
        (name.bucket == bucket).then(|| ListedUpload {
            name: name.clone(),
            initiated: upload.initiated,
            algorithm: upload.algorithm,
            checksum_kind: upload.checksum_kind(),
        })
    }

    /// Removes all uploads of a deleted bucket.
    pub(crate) async fn remove_bucket(self: &Arc<Self>, bucket: &str) -> S3Result<()> {
        while let Some(upload) = self.first(bucket, Bound::Included(("", ""))) {
            self.remove(&upload.name).await?;
        }
        Ok(())
    }
}

fn busy(id: &str) -> S3Error {
    fault(
        S3ErrorCode::OperationAborted,
        format!("The upload {id} is being completed; try again."),
    )
}

fn not_kept(name: &UploadName, error: &io::Error) -> S3Error {
    tracing::error!(upload = name.id, %error, "a multipart upload cannot be kept on disk");
    fault(
        S3ErrorCode::InternalError,
        format!(
            "The upload {} cannot be kept on the server's disk ({error}); try again.",
            name.id
        ),
    )
}

#[cfg(test)]
mod tests;
