//! Memory of the lists of open uploads and their parts, charged before use and until the upload ends.

use std::mem::size_of;
use std::sync::Arc;

use bywash::{Engine, Reservation, Share};
use parking_lot::Mutex;
use s3s::{S3Error, S3Result};

use super::{Part, Upload, UploadName};
use crate::errors::{OperationContext, from_engine, slow_down};
use crate::limits::{
    MAX_LOADED_UPLOADS_MEMORY_DIVISOR, MAX_UPLOADS_MEMORY_DIVISOR, MIN_UPLOADS_BYTES,
};

/// Bytes charged at a time.
const STEP: u64 = 64 << 10;
/// Bytes charged for a part before its ETag and checksum are known: twice the usual size.
pub(super) const PART_BYTES: u64 = 512;
/// Bytes of a part of an origin's list, with its ETag and a checksum: the parts of the largest
/// completion fit in the least memory.
pub(super) const LISTED_PART_BYTES: u64 = 256;
/// Bytes charged for an upload's id before it is known, and for its mark: more than usual.
const ID_BYTES: u64 = 1024;
/// Bytes of allocator and string without the characters.
const STRING_BYTES: u64 = 16;

/// Bytes of a value in a B-tree, whose nodes are two thirds full.
fn in_tree<T>() -> u64 {
    size_of::<T>() as u64 * 3 / 2
}

fn text_bytes(text: &str) -> u64 {
    text.len() as u64 + STRING_BYTES
}

/// Bytes of one stored part.
pub(super) fn part_bytes(part: &Part) -> u64 {
    let checksum = part.checksum.as_ref();
    in_tree::<(u16, Part)>()
        + text_bytes(&part.e_tag)
        + checksum.map_or(0, |checksum| text_bytes(&checksum.value))
        + part.md5.as_deref().map_or(0, text_bytes)
}

/// Bytes of one list of parts of a completion.
pub(super) fn attempt_bytes(attempt: &str) -> u64 {
    in_tree::<String>() + text_bytes(attempt)
}

/// Bytes of an upload without parts, including its first completion.
fn bare_bytes(bucket: &str, key: &str) -> u64 {
    in_tree::<(UploadName, Upload)>() + text_bytes(bucket) + text_bytes(key) + 256
}

/// Bytes charged for an upload before its id is known.
pub(super) fn begun_bytes(doing: OperationContext<'_>) -> u64 {
    bare_bytes(doing.bucket, doing.key) + ID_BYTES
}

/// Bytes of an upload and its parts.
pub(super) fn upload_bytes(name: &UploadName, upload: &Upload) -> u64 {
    let mark = upload.mark.as_deref().map_or(0, text_bytes);
    let parts: u64 = upload.parts.values().map(part_bytes).sum();
    // All have one length. The first is charged with the upload.
    let attempts = upload.attempts.iter().skip(1);
    let attempts: u64 = attempts.map(|attempt| attempt_bytes(attempt)).sum();
    bare_bytes(&name.bucket, &name.key) + text_bytes(&name.id) + mark + parts + attempts
}

/// Memory of the lists of all uploads.
#[derive(Debug)]
pub(crate) struct UploadMemory {
    engine: Engine,
    charges: Mutex<ListCharges>,
}

#[derive(Debug, Default)]
struct ListCharges {
    bytes: u64,
    /// Uploads admitted and not started.
    beginning: usize,
    /// At least `bytes`, except for lists of an earlier server that exceed the memory.
    charge: Option<Reservation>,
}

impl ListCharges {
    fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, Reservation::bytes)
    }

    fn add(&mut self, more: Reservation) {
        match &mut self.charge {
            Some(charge) => charge.merge(more),
            None => self.charge = Some(more),
        }
    }
}

impl UploadMemory {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            charges: Mutex::default(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Max bytes of all lists.
    pub(super) fn limit(&self) -> u64 {
        let memory = self.engine.budget().limit();
        (memory / MAX_UPLOADS_MEMORY_DIVISOR)
            .max(MIN_UPLOADS_BYTES)
            .min(memory / 4)
    }

    /// Bytes used, and bytes charged.
    #[cfg(test)]
    pub(super) fn held(&self) -> (u64, u64) {
        let charges = self.charges.lock();
        (charges.bytes, charges.charged())
    }

    /// Counts the lists of an earlier server, and charges as much as possible.
    pub(super) fn load(&self, bytes: u64) {
        let memory = self.engine.budget().limit();
        let limit = self.limit();
        if bytes > limit {
            tracing::warn!(
                bytes,
                limit,
                "the open multipart uploads of an earlier server exceed their memory; new ones and parts get SlowDown until enough \
                 are completed or aborted, or the memory limit is raised"
            );
        }
        let charged = bytes.min(memory / MAX_LOADED_UPLOADS_MEMORY_DIVISOR);
        let mut charges = self.charges.lock();
        charges.bytes = bytes;
        charges.charge = self
            .engine
            .try_reserve(Share::Upload, charged)
            .filter(|_| bytes > 0);
    }

    /// Uses `bytes` that are already charged.
    fn try_charge(&self, charges: &mut ListCharges, bytes: u64) -> ChargeOutcome {
        if charges.bytes + bytes > self.limit() {
            return ChargeOutcome::Full;
        }
        if charges.bytes + bytes > charges.charged() {
            return ChargeOutcome::Uncharged;
        }
        charges.bytes += bytes;
        ChargeOutcome::Done
    }

    /// Uses `bytes`. Waits for memory in FIFO order with all requests, so the caller must hold none.
    pub(super) async fn take(
        self: &Arc<Self>,
        bytes: u64,
        doing: OperationContext<'_>,
    ) -> S3Result<EntryReservation> {
        let mut outcome = self.try_charge(&mut self.charges.lock(), bytes);
        while matches!(outcome, ChargeOutcome::Uncharged) {
            let object = format!("{}/{}", doing.bucket, doing.key);
            let more = self
                .engine
                .reserve(Share::Upload, STEP.max(bytes), doing.operation, &object)
                .await
                .map_err(|error| from_engine(doing, &error))?;
            let mut charges = self.charges.lock();
            charges.add(more);
            outcome = self.try_charge(&mut charges, bytes);
        }
        match outcome {
            ChargeOutcome::Full => Err(full()),
            ChargeOutcome::Uncharged | ChargeOutcome::Done => Ok(EntryReservation {
                memory: Arc::clone(self),
                bytes,
            }),
        }
    }

    /// Admits one upload if fewer than `free` are admitted and not started.
    pub(super) fn begin(self: &Arc<Self>, free: usize) -> Option<UploadSlot> {
        let mut charges = self.charges.lock();
        if charges.beginning >= free {
            return None;
        }
        charges.beginning += 1;
        Some(UploadSlot(Arc::clone(self)))
    }

    /// An empty hold, for a caller that holds memory and must not wait.
    pub(super) fn empty(self: &Arc<Self>) -> EntryReservation {
        EntryReservation {
            memory: Arc::clone(self),
            bytes: 0,
        }
    }

    /// Uses `bytes` without waiting. Returns false if the memory is not available.
    fn take_now(&self, bytes: u64) -> bool {
        let mut charges = self.charges.lock();
        let mut outcome = self.try_charge(&mut charges, bytes);
        if matches!(outcome, ChargeOutcome::Uncharged)
            && let Some(more) = self.engine.try_reserve(Share::Upload, STEP.max(bytes))
        {
            charges.add(more);
            outcome = self.try_charge(&mut charges, bytes);
        }
        matches!(outcome, ChargeOutcome::Done)
    }

    pub(super) fn release(&self, bytes: u64) {
        let mut charges = self.charges.lock();
        charges.bytes = charges.bytes.saturating_sub(bytes);
        let left = charges.bytes;
        if left == 0 {
            charges.charge = None;
        }
        if let Some(charge) = &mut charges.charge
            && charge.bytes() > left + 2 * STEP
        {
            charge.shrink_to(left + STEP);
        }
    }
}

enum ChargeOutcome {
    Done,
    /// More memory must be charged first.
    Uncharged,
    /// Above the limit of all lists.
    Full,
}

fn full() -> S3Error {
    slow_down(
        "The parts of open multipart uploads hold all memory for them; complete or abort some, or raise the memory limit."
            .to_owned(),
    )
}

/// An admitted upload that has not started.
#[derive(Debug)]
pub(crate) struct UploadSlot(Arc<UploadMemory>);

impl Drop for UploadSlot {
    fn drop(&mut self) {
        self.0.charges.lock().beginning -= 1;
    }
}

/// Bytes for an entry to be stored, released on drop.
#[derive(Debug)]
#[must_use = "dropping it releases the bytes"]
pub(crate) struct EntryReservation {
    memory: Arc<UploadMemory>,
    bytes: u64,
}

impl EntryReservation {
    /// Ensures that `bytes` are held. Never waits.
    pub(super) fn cover(&mut self, bytes: u64) -> S3Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !self.memory.take_now(more) {
            return Err(full());
        }
        self.bytes += more;
        Ok(())
    }

    /// Transfers `added` bytes to the table in place of `replaced`, and releases the rest.
    pub(super) fn keep(mut self, added: u64, replaced: u64) {
        let held = std::mem::take(&mut self.bytes);
        self.memory.release((held + replaced).saturating_sub(added));
    }
}

impl Drop for EntryReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests;
