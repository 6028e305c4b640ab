//! Memory of request XML and listing pages. It is charged before use, until the last byte of the response is sent.
//!
//! `s3s` buffers request XML and responses whole. So a request reserves memory for a document first, in FIFO order,
//! up to the engine's admission deadline. A request that already holds memory only tries to get more, and otherwise
//! fails with SlowDown. Documents of all requests together are limited to a part of the memory, so that listings
//! never starve readers of objects.

use std::sync::Arc;

use bytes::Bytes;
use bywash::{Engine, Reservation, Share};
use parking_lot::Mutex;
use s3s::{Body, S3Error, S3Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::{OperationContext, from_engine, slow_down};
use crate::limits::{
    MAX_DOCUMENTS_EIGHTHS, MAX_PAGE_BYTES, MIN_DOCUMENTS_BYTES, ORIGIN_ENTRY_BYTES,
};

/// Bytes of one permit.
const UNIT: u64 = 1024;
/// Bytes of a listing entry without its name: its value (600), and its XML three times, because a growing buffer
/// exists twice while it moves.
const ENTRY_BYTES: u64 = 600 + 3 * 430;
/// Memory of each byte of a name as written: once in the value, three times in the growing buffer.
const NAME_FACTOR: u64 = 4;

/// Memory of an entry with the longest plain name: short pages must hold names of any length.
const LONG_ENTRY_BYTES: u64 = 6 << 10;

/// Memory of a listing entry with this name.
pub(crate) fn entry_bytes(name: &str) -> u64 {
    let written = |byte: u8| match byte {
        b'<' | b'>' | b'&' | b'"' | b'\'' => 6,
        b'-' | b'_' | b'.' | b'~' | b'/' => 1,
        byte if byte.is_ascii_alphanumeric() => 1,
        // As `encoding-type=url` writes it.
        _ => 3,
    };
    ENTRY_BYTES + NAME_FACTOR * name.bytes().map(written).sum::<u64>()
}

/// Memory limit of the documents of all requests.
#[derive(Debug)]
pub(crate) struct Documents {
    engine: Engine,
    permits: Arc<Semaphore>,
    /// Number of permits.
    total: u64,
}

/// Memory charged to one request.
#[derive(Debug)]
pub(crate) struct Charge {
    permits: OwnedSemaphorePermit,
    reservation: Reservation,
}

impl Documents {
    pub(crate) fn new(engine: Engine) -> Self {
        let memory = engine.budget().limit();
        let total = (memory / 8 * MAX_DOCUMENTS_EIGHTHS)
            .max(MIN_DOCUMENTS_BYTES)
            .min(memory / 2);
        // A semaphore supports fewer permits than this: some 500 GiB.
        let total = (total / UNIT).clamp(1, u64::from(u32::MAX) / 8);
        Self {
            engine,
            permits: Arc::new(Semaphore::new(total as usize)),
            total,
        }
    }

    /// Whether nothing is charged.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.permits.available_permits() as u64 == self.total
    }

    /// Charges `bytes`, at most the limit, after waiting in FIFO order.
    pub(crate) async fn charge(&self, bytes: u64, doing: OperationContext<'_>) -> S3Result<Charge> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.total);
        let turn = Arc::clone(&self.permits).acquire_many_owned(units as u32);
        let deadline = self.engine.admission_deadline();
        let permits = match tokio::time::timeout(deadline, turn).await {
            Ok(Ok(permits)) => permits,
            Ok(Err(_)) | Err(_) => return Err(self.refused(doing)),
        };
        let bytes = units * UNIT;
        let object = format!("{}/{}", doing.bucket, doing.key);
        let reservation = self
            .engine
            .reserve(Share::Download, bytes, doing.operation, &object)
            .await
            .map_err(|error| from_engine(doing, &error))?;
        Ok(Charge {
            permits,
            reservation,
        })
    }

    /// Raises a charge to `bytes` without waiting: waiting while holding memory could deadlock. Returns false if the
    /// memory is not available.
    pub(crate) fn try_raise(&self, charge: &mut Charge, bytes: u64) -> bool {
        let units = bytes.div_ceil(UNIT);
        let more = units.saturating_sub(charge.bytes() / UNIT);
        if more == 0 {
            return true;
        }
        let Ok(count) = u32::try_from(more) else {
            return false;
        };
        let Ok(permits) = Arc::clone(&self.permits).try_acquire_many_owned(count) else {
            return false;
        };
        if !self.engine.try_grow(&mut charge.reservation, more * UNIT) {
            return false;
        }
        charge.permits.merge(permits);
        true
    }

    /// The error of a request that exceeds the limit.
    pub(crate) fn refused(&self, doing: OperationContext<'_>) -> S3Error {
        let OperationContext {
            operation,
            bucket,
            key,
        } = doing;
        slow_down(format!(
            "{operation} {bucket}/{key}: listings and XML of other requests hold the memory for documents; try again, or raise the memory limit"
        ))
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Releases the excess above `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let units = bytes.div_ceil(UNIT);
        let released = (self.bytes() / UNIT).saturating_sub(units);
        // Memory before permits, so that no permit exists without memory.
        self.reservation.shrink_to(units * UNIT);
        drop(self.permits.split(released as usize));
    }
}

/// The documents of one request, and their charge.
#[derive(Debug)]
pub(crate) struct RequestDocuments {
    documents: Arc<Documents>,
    charge: Mutex<Option<Charge>>,
    /// Whether the batch of the request has charged its document.
    prepaid: bool,
}

impl RequestDocuments {
    pub(crate) fn new(documents: Arc<Documents>) -> Self {
        Self {
            documents,
            charge: Mutex::new(None),
            prepaid: false,
        }
    }

    /// Of a call of a batch, which has charged its document.
    pub(crate) fn of_batch(documents: Arc<Documents>) -> Self {
        Self {
            prepaid: true,
            ..Self::new(documents)
        }
    }

    /// Charges a document of `bytes` while it is read; `None` if the batch of the request has.
    pub(crate) async fn charge_document(
        &self,
        bytes: usize,
        doing: OperationContext<'_>,
    ) -> S3Result<Option<Charge>> {
        match self.prepaid {
            true => Ok(None),
            false => self.documents.charge(bytes as u64, doing).await.map(Some),
        }
    }

    pub(crate) fn all(&self) -> &Documents {
        &self.documents
    }

    /// Keeps `charge` until the response is sent.
    pub(crate) fn hold(&self, charge: Charge) {
        *self.charge.lock() = Some(charge);
    }

    /// Charges a page of at most `max` entries, of which `requested` are requested from the origin at a time. Returns the
    /// bytes that its entries may take, by [`entry_bytes`].
    pub(crate) async fn charge_page(
        &self,
        max: i32,
        requested: i32,
        doing: OperationContext<'_>,
    ) -> S3Result<u64> {
        let count = |entries: i32| u64::try_from(entries).unwrap_or_default();
        let page = MAX_PAGE_BYTES.min(count(max) * LONG_ENTRY_BYTES).max(UNIT);
        let fetched = count(requested) * ORIGIN_ENTRY_BYTES;
        let charge = self.documents.charge(page + fetched, doing).await?;
        // With little memory a page has fewer entries.
        let granted = page.min(
            charge
                .bytes()
                .saturating_sub(fetched)
                .max(charge.bytes() / 2),
        );
        self.hold(charge);
        Ok(granted)
    }

    /// Releases what the charge has above `bytes`.
    pub(crate) fn shrink(&self, bytes: u64) {
        if let Some(charge) = &mut *self.charge.lock() {
            charge.shrink_to(bytes);
        }
    }

    /// Raises the charge by `more` bytes, for a request that may hold one already.
    pub(crate) async fn charge_more(&self, more: u64, doing: OperationContext<'_>) -> S3Result<()> {
        let held = self.charge.lock().take();
        let Some(mut charge) = held else {
            let charge = self.documents.charge(more, doing).await?;
            self.hold(charge);
            return Ok(());
        };
        let bytes = charge.bytes() + more;
        let raised = self.documents.try_raise(&mut charge, bytes);
        self.hold(charge);
        if raised {
            Ok(())
        } else {
            Err(self.documents.refused(doing))
        }
    }

    /// Reduces the charge to the size of the response, and binds it to the response's bytes: the connection may
    /// buffer them long after the body ended.
    pub(crate) fn settle(&self, body: Body) -> Body {
        let Some(mut charge) = self.charge.lock().take() else {
            return body;
        };
        let Some(bytes) = body.bytes() else {
            // No operation streams a page.
            return body;
        };
        if bytes.is_empty() {
            return body;
        }
        drop(body);
        // Copy to the exact size: the rendering buffer may be twice as long.
        let exact: Box<[u8]> = bytes.as_ref().into();
        drop(bytes);
        charge.shrink_to(exact.len() as u64);
        Body::from(Bytes::from_owner(ChargedBytes {
            bytes: exact,
            _charge: charge,
        }))
    }
}

/// Bytes of a response and their charge, released with the last slice.
struct ChargedBytes {
    // Dropped before the charge: memory is freed before its charge is released.
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The error of a request that could not raise its charge.
pub(crate) fn no_room(what: &str) -> String {
    format!("There is no memory for {what} now; try again, or raise the memory limit.")
}
