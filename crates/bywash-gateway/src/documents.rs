//! Memory of request XML and listing pages. It is charged before use, for documents until the last byte of the response is sent.
//!
//! `s3s` buffers request XML and responses whole. So a request reserves memory for a document first, in FIFO order,
//! up to the engine's admission deadline. A request that already holds memory only tries to get more, and otherwise
//! fails with SlowDown. Documents of all requests together are limited to a part of the memory, so that listings
//! never starve readers of objects.

use std::sync::Arc;

use bytes::Bytes;
use bywash::{ByteQuota, Engine, QuotaPermit, Reservation, Share};
use parking_lot::Mutex;
use s3s::{Body, S3Error, S3Result};

use crate::errors::{OperationContext, from_engine, slow_down};
use crate::limits::{
    MAX_DOCUMENTS_EIGHTHS, MAX_GUNZIPS_MEMORY_DIVISOR, MAX_HELD_MEMORY_DIVISOR, MAX_PAGE_BYTES,
    MIN_DOCUMENTS_BYTES, MIN_HELD_BYTES, ORIGIN_ENTRY_BYTES,
};

/// Smallest charge: a request of few bytes needs other memory too.
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

/// Memory limit of all requests for documents, for decompressions, or for memory held by batches.
#[derive(Debug)]
pub(crate) struct Documents {
    engine: Engine,
    quota: Arc<ByteQuota>,
    /// Share of the budget.
    share: Share,
    /// Message of SlowDown.
    full: &'static str,
}

/// Memory charged to one request.
#[derive(Debug)]
pub(crate) struct Charge {
    // Released before the permit, so that no permit is free without its memory.
    reservation: Reservation,
    permit: QuotaPermit,
}

impl Documents {
    pub(crate) fn new(engine: Engine) -> Self {
        let part = |memory: u64| {
            (memory / 8 * MAX_DOCUMENTS_EIGHTHS)
                .max(MIN_DOCUMENTS_BYTES)
                .min(memory / 2)
        };
        let full = "listings and XML of other requests hold the memory for documents";
        Self::of(part, Share::Download, full, engine)
    }

    /// Limit of the memory that requests hold while their writes wait for memory: batches with the
    /// responses to their calls, and compressed bodies. Writes that have their memory wait for none
    /// of this.
    pub(crate) fn held_by_writes(engine: Engine) -> Self {
        let part = |memory: u64| {
            (memory / MAX_HELD_MEMORY_DIVISOR)
                .max(MIN_HELD_BYTES)
                .min(memory / 4)
        };
        let full = "batches and compressed bodies of other requests hold the memory for them";
        Self::of(part, Share::Upload, full, engine)
    }

    /// Limit for decompressions of objects, which hold their memory while their reads wait for more.
    pub(crate) fn gunzips(engine: Engine) -> Self {
        let part = |memory| memory / MAX_GUNZIPS_MEMORY_DIVISOR;
        let full = "decompressions for other requests hold the memory for them";
        Self::of(part, Share::Download, full, engine)
    }

    fn of(
        part: impl Fn(u64) -> u64 + Send + Sync + 'static,
        share: Share,
        full: &'static str,
        engine: Engine,
    ) -> Self {
        Self {
            quota: engine.byte_quota(move |memory| part(memory).max(UNIT)),
            engine,
            share,
            full,
        }
    }

    /// Whether nothing is charged.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.quota.try_acquire(self.quota.total()).is_some()
    }

    /// Charges `bytes`, at most the limit, after waiting in FIFO order.
    pub(crate) async fn charge(&self, bytes: u64, doing: OperationContext<'_>) -> S3Result<Charge> {
        let turn = self.quota.acquire(bytes.max(UNIT));
        let deadline = self.engine.admission_deadline();
        let permit = tokio::time::timeout(deadline, turn).await;
        let permit = permit.map_err(|_| self.refused(doing))?;
        let object = format!("{}/{}", doing.bucket, doing.key);
        let reservation = self
            .engine
            .reserve(self.share, permit.bytes(), doing.operation, &object)
            .await
            .map_err(|error| from_engine(doing, &error))?;
        Ok(Charge {
            reservation,
            permit,
        })
    }

    /// As [`Self::charge`], without waiting; `None` if the memory is not available.
    pub(crate) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        let permit = self.quota.try_acquire(bytes.max(UNIT))?;
        Some(Charge {
            reservation: self.engine.try_reserve(self.share, permit.bytes())?,
            permit,
        })
    }

    /// Raises a charge to `bytes` without waiting: waiting while holding memory could deadlock. Returns false if the
    /// memory is not available.
    pub(crate) fn try_raise(&self, charge: &mut Charge, bytes: u64) -> bool {
        let more = bytes.saturating_sub(charge.bytes());
        if more == 0 {
            return true;
        }
        if !charge.permit.try_grow(more) {
            return false;
        }
        let raised = self.engine.try_grow(&mut charge.reservation, more);
        if !raised {
            charge.permit.shrink_to(charge.reservation.bytes());
        }
        raised
    }

    /// The error of a request that exceeds the limit.
    pub(crate) fn refused(&self, doing: OperationContext<'_>) -> S3Error {
        let OperationContext {
            operation,
            bucket,
            key,
        } = doing;
        let full = self.full;
        slow_down(format!(
            "{operation} {bucket}/{key}: {full}; try again, or raise the memory limit"
        ))
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Releases the excess above `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        // Memory before the permit, as when dropped.
        self.reservation.shrink_to(bytes);
        self.permit.shrink_to(bytes);
    }
}

/// The documents of one request, and their charge.
#[derive(Debug)]
pub(crate) struct RequestDocuments {
    documents: Arc<Documents>,
    charge: Mutex<Option<Charge>>,
    /// Whether the document of the request is part of another charge.
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

    /// Of a request whose document is part of another charge, as in a batch.
    pub(crate) fn prepaid(documents: Arc<Documents>) -> Self {
        Self {
            prepaid: true,
            ..Self::new(documents)
        }
    }

    /// Charges a document of `bytes` while it is read; `None` if another charge has.
    pub(crate) async fn charge_document(
        &self,
        bytes: usize,
        doing: OperationContext<'_>,
    ) -> S3Result<Option<Charge>> {
        if self.prepaid {
            Ok(None)
        } else {
            self.documents.charge(bytes as u64, doing).await.map(Some)
        }
    }

    pub(crate) fn all(&self) -> &Arc<Documents> {
        &self.documents
    }

    /// Keeps `charge` until the response is sent.
    pub(crate) fn hold(&self, charge: Charge) {
        *self.charge.lock() = Some(charge);
    }

    /// Charges a page of at most `max` entries, requested from the origin `requested` at a time.
    /// Returns the bytes that its entries may take, by [`entry_bytes`].
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

    /// Shrinks the charge to at most `bytes`.
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
