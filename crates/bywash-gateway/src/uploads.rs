//! Multipart uploads in progress, and the rules of their parts.
//!
//! Kept in memory: an upload is forgotten when the server ends, and its parts stay with the origin.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bywash::UploadedPart;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use s3s::dto::CompletedPart;
use s3s::{S3ErrorCode, S3Result};

use crate::digest::{Algorithm, Checksum};
use crate::errors::{fault, no_such_upload, slow_down};
use crate::meta::bare;

/// The highest part number, as in S3.
pub(crate) const PART_NUMBER_MAX: u16 = 10_000;
/// The smallest part in bytes, but for the last one, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;

/// One stored part.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// As the engine gave it.
    pub(crate) e_tag: String,
    pub(crate) size: u64,
    pub(crate) checksum: Option<Checksum>,
    pub(crate) modified: DateTime<Utc>,
}

/// One upload.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) initiated: DateTime<Utc>,
    /// The checksum announced when it began.
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether that checksum is to be over the whole object.
    pub(crate) full_object: bool,
    pub(crate) parts: BTreeMap<u16, Part>,
    /// A completion is on its way; nothing else may touch the upload.
    completing: bool,
}

impl Upload {
    pub(crate) fn new(
        initiated: DateTime<Utc>,
        algorithm: Option<Algorithm>,
        full_object: bool,
    ) -> Self {
        Self {
            initiated,
            algorithm,
            full_object,
            parts: BTreeMap::new(),
            completing: false,
        }
    }
}

/// Names an upload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UploadName {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) id: String,
}

/// All uploads of an endpoint.
#[derive(Debug)]
pub(crate) struct Uploads {
    open: Mutex<BTreeMap<UploadName, Upload>>,
    limit: usize,
}

impl Uploads {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            open: Mutex::new(BTreeMap::new()),
            limit,
        }
    }

    /// Whether one more may begin.
    pub(crate) fn check_room(&self) -> S3Result<()> {
        if self.open.lock().len() < self.limit {
            return Ok(());
        }
        Err(slow_down(format!(
            "{} multipart uploads are open; complete or abort some.",
            self.limit
        )))
    }

    pub(crate) fn begin(&self, name: UploadName, upload: Upload) {
        self.open.lock().insert(name, upload);
    }

    /// What is known of an upload now.
    pub(crate) fn get(&self, name: &UploadName) -> S3Result<Upload> {
        self.open
            .lock()
            .get(name)
            .cloned()
            .ok_or_else(|| no_such_upload(&name.id))
    }

    /// Whether parts of the upload may be stored.
    pub(crate) fn check_open(&self, name: &UploadName) -> S3Result<()> {
        match self.open.lock().get(name) {
            None => Err(no_such_upload(&name.id)),
            Some(upload) if upload.completing => Err(busy(&name.id)),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn add_part(&self, name: &UploadName, number: u16, part: Part) -> S3Result<()> {
        match self.open.lock().get_mut(name) {
            None => Err(no_such_upload(&name.id)),
            Some(upload) => {
                upload.parts.insert(number, part);
                Ok(())
            }
        }
    }

    /// Takes the upload for a completion; [`Completion`] gives it back unless it succeeded.
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

    pub(crate) fn remove(&self, name: &UploadName) {
        self.open.lock().remove(name);
    }

    /// The uploads of a bucket after `(key, id)`, in order; an empty id stands for all of the key.
    pub(crate) fn after(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
    ) -> Vec<(UploadName, DateTime<Utc>, Option<Algorithm>)> {
        let from = UploadName {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            id: id.to_owned(),
        };
        let open = self.open.lock();
        let range = open.range((Bound::Excluded(&from), Bound::Unbounded));
        range
            .take_while(|(name, _)| name.bucket == bucket)
            .filter(|(name, _)| !(id.is_empty() && !key.is_empty() && name.key == key))
            .map(|(name, upload)| (name.clone(), upload.initiated, upload.algorithm))
            .collect()
    }

    /// Forgets every upload of a bucket that is gone, and says which.
    pub(crate) fn of_bucket(&self, bucket: &str) -> Vec<UploadName> {
        self.after(bucket, "", "")
            .into_iter()
            .map(|(name, ..)| name)
            .collect()
    }
}

fn busy(id: &str) -> s3s::S3Error {
    fault(
        S3ErrorCode::OperationAborted,
        format!("The upload {id} is being completed; try again."),
    )
}

/// An upload being completed. Goes with the origin's work, not with the client that waits for it.
pub(crate) struct Completion {
    uploads: Arc<Uploads>,
    name: UploadName,
    done: bool,
}

impl Completion {
    /// The object is there: the upload is gone.
    pub(crate) fn done(mut self) {
        self.done = true;
        self.uploads.remove(&self.name);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.done
            && let Some(upload) = self.uploads.open.lock().get_mut(&self.name)
        {
            upload.completing = false;
        }
    }
}

/// The parts a completion asks for, checked against those stored.
pub(crate) fn choose<'u>(
    upload: &'u Upload,
    asked: &[CompletedPart],
) -> S3Result<Vec<(UploadedPart, &'u Part)>> {
    if asked.is_empty() {
        return Err(fault(
            S3ErrorCode::MalformedXML,
            "The completion names no part; name at least one.",
        ));
    }
    let mut chosen: Vec<(UploadedPart, &Part)> = Vec::with_capacity(asked.len());
    for wanted in asked {
        let number = part_number(wanted.part_number.unwrap_or_default())?;
        if chosen.last().is_some_and(|(last, _)| last.number >= number) {
            let message = "The parts are not in ascending order; sort them by part number.";
            return Err(fault(S3ErrorCode::InvalidPartOrder, message));
        }
        let e_tag = wanted.e_tag.as_ref().map(|e_tag| e_tag.value());
        let stored = upload
            .parts
            .get(&number)
            .filter(|part| e_tag == Some(bare(&part.e_tag)));
        let Some(part) = stored.filter(|part| checksum_agrees(part, wanted)) else {
            let message =
                format!("Part {number} was not uploaded, or its ETag or checksum is another one.");
            return Err(fault(S3ErrorCode::InvalidPart, message));
        };
        chosen.push((
            UploadedPart {
                number,
                e_tag: part.e_tag.clone(),
            },
            part,
        ));
    }
    let small = chosen
        .iter()
        .rev()
        .skip(1)
        .find(|(_, part)| part.size < PART_BYTES_MIN);
    if let Some((small, part)) = small {
        let number = small.number;
        let message = format!(
            "Part {number} has {} bytes; all but the last need {PART_BYTES_MIN}.",
            part.size
        );
        return Err(fault(S3ErrorCode::EntityTooSmall, message));
    }
    Ok(chosen)
}

fn checksum_agrees(part: &Part, wanted: &CompletedPart) -> bool {
    let named = [
        (Algorithm::Crc32, &wanted.checksum_crc32),
        (Algorithm::Crc32c, &wanted.checksum_crc32c),
        (Algorithm::Crc64Nvme, &wanted.checksum_crc64nvme),
        (Algorithm::Sha1, &wanted.checksum_sha1),
        (Algorithm::Sha256, &wanted.checksum_sha256),
    ];
    named
        .into_iter()
        .all(|(algorithm, value)| match (value, &part.checksum) {
            (Some(value), Some(stored)) if stored.algorithm == algorithm => stored.value == *value,
            // No checksum of that kind was stored to compare with.
            _ => true,
        })
}

/// A part number within bounds.
pub(crate) fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|number| (1..=PART_NUMBER_MAX).contains(number))
        .ok_or_else(|| {
            let message = format!(
                "Part number must be an integer between 1 and {PART_NUMBER_MAX}, inclusive."
            );
            fault(S3ErrorCode::InvalidArgument, message)
        })
}
