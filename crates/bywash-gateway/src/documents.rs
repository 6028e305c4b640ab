//! Memory of request XML, of pages of listings and of signed chunks: charged before it is taken, that of documents until the last
//! byte of the response has left.
//!
//! `s3s` reads a request's XML whole, builds its values, and renders a response whole. So a request that needs memory for a
//! document reserves it first, in the order of all that do, up to the engine's admission deadline; a request that holds some
//! only tries for more, and gets SlowDown otherwise. Documents of all requests together take at most a part of the memory:
//! readers of objects keep the rest, however many clients list.

use std::sync::Arc;

use bytes::Bytes;
use bywash::{Engine, Reservation, Share};
use parking_lot::Mutex;
use s3s::{Body, S3Error, S3Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::{Doing, from_engine, slow_down};
use crate::limits::{
    MAX_DOCUMENTS_EIGHTHS, MAX_PAGE_BYTES, MAX_SIGNED_CHUNKS_MEMORY_DIVISOR, MIN_DOCUMENTS_BYTES,
    ORIGIN_ENTRY_BYTES,
};

/// Bytes that one permit stands for.
const UNIT: u64 = 1024;
/// Memory of an entry of a page beside its name, in bytes: its value (600), and what the rendered XML holds beside the name, three
/// times, for a buffer that grows by doubling is there twice while it moves.
const ENTRY_BYTES: u64 = 600 + 3 * 430;
/// Memory of each byte of a name as it is written: in the value once, in the growing buffer three times.
const NAME_FACTOR: u64 = 4;

/// Memory of an entry whose name has the most bytes, all plain: short pages hold names of any length.
const LONG_ENTRY_BYTES: u64 = 6 << 10;

/// Memory of one entry of a page that has this name, in bytes.
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

/// What documents of all requests may take, or signed chunks.
#[derive(Debug)]
pub(crate) struct Documents {
    engine: Engine,
    permits: Arc<Semaphore>,
    /// Of permits.
    total: u64,
    /// Whose memory it is.
    share: Share,
    /// Why a request gets SlowDown.
    full: &'static str,
}

/// A charge of one request.
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
        let full = "listings and XML of other requests hold the memory for documents";
        Self::of(total, Share::Download, full, engine)
    }

    /// Memory of signed chunks, apart from documents and from readers: clients that stall in a chunk keep no listing waiting.
    pub(crate) fn signed_chunks(engine: Engine) -> Self {
        let total = engine.budget().limit() / MAX_SIGNED_CHUNKS_MEMORY_DIVISOR;
        let full = "signed chunks of other requests hold the memory for them";
        Self::of(total, Share::Upload, full, engine)
    }

    fn of(total: u64, share: Share, full: &'static str, engine: Engine) -> Self {
        // A semaphore counts to less than this, which is some 500 GiB.
        let total = (total / UNIT).clamp(1, u64::from(u32::MAX) / 8);
        Self {
            engine,
            permits: Arc::new(Semaphore::new(total as usize)),
            total,
            share,
            full,
        }
    }

    /// Bytes of all charges at most.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.total * UNIT
    }

    /// Charges `bytes`, or all that there may be if that is less, after waiting in order.
    pub(crate) async fn charge(&self, bytes: u64, doing: Doing<'_>) -> S3Result<Charge> {
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
            .reserve(self.share, bytes, doing.operation, &object)
            .await
            .map_err(|error| from_engine(doing, &error))?;
        Ok(Charge {
            permits,
            reservation,
        })
    }

    /// As [`Self::charge`] without waiting; `None` if there is no room.
    pub(crate) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        let units = bytes.div_ceil(UNIT).clamp(1, self.total);
        let permits = Arc::clone(&self.permits).try_acquire_many_owned(units as u32);
        Some(Charge {
            permits: permits.ok()?,
            reservation: self.engine.try_reserve(self.share, units * UNIT)?,
        })
    }

    /// Raises a charge to `bytes` without waiting, which a request that holds memory must not; false if there is no room.
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

    /// The error of a request for which there is no room.
    pub(crate) fn refused(&self, doing: Doing<'_>) -> S3Error {
        let Doing {
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

    /// Releases what exceeds `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let units = bytes.div_ceil(UNIT);
        let released = (self.bytes() / UNIT).saturating_sub(units);
        // The memory before its permits: there is never a permit without memory.
        self.reservation.shrink_to(units * UNIT);
        drop(self.permits.split(released as usize));
    }
}

/// The documents of one request, and its charge for them.
#[derive(Debug)]
pub(crate) struct RequestDocuments {
    documents: Arc<Documents>,
    charge: Mutex<Option<Charge>>,
}

impl RequestDocuments {
    pub(crate) fn new(documents: Arc<Documents>) -> Self {
        let charge = Mutex::new(None);
        Self { documents, charge }
    }

    pub(crate) fn all(&self) -> &Documents {
        &self.documents
    }

    /// Keeps `charge` until the response has left.
    pub(crate) fn hold(&self, charge: Charge) {
        *self.charge.lock() = Some(charge);
    }

    /// Charges a page of at most `max` entries, of which the origin is asked `asked` at once. Returns the bytes its entries may
    /// take, counted by [`entry_bytes`].
    pub(crate) async fn charge_page(
        &self,
        max: i32,
        asked: i32,
        doing: Doing<'_>,
    ) -> S3Result<u64> {
        let count = |entries: i32| u64::try_from(entries).unwrap_or_default();
        let page = MAX_PAGE_BYTES.min(count(max) * LONG_ENTRY_BYTES).max(UNIT);
        let fetched = count(asked) * ORIGIN_ENTRY_BYTES;
        let charge = self.documents.charge(page + fetched, doing).await?;
        // In a small memory a page has fewer entries.
        let granted = page.min(
            charge
                .bytes()
                .saturating_sub(fetched)
                .max(charge.bytes() / 2),
        );
        self.hold(charge);
        Ok(granted)
    }

    /// Raises the charge by `more` bytes, for a request that may hold one already.
    pub(crate) async fn charge_more(&self, more: u64, doing: Doing<'_>) -> S3Result<()> {
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

    /// Releases the charge but for what the response takes, and binds that to its bytes: they may lie in the connection's buffer
    /// long after the body was polled to its end.
    pub(crate) fn settle(&self, body: Body) -> Body {
        let Some(mut charge) = self.charge.lock().take() else {
            return body;
        };
        let Some(bytes) = body.bytes() else {
            // No operation renders a page as a stream.
            return body;
        };
        if bytes.is_empty() {
            return body;
        }
        drop(body);
        // Exactly as long as it is: the buffer it was rendered into may be twice that.
        let exact: Box<[u8]> = bytes.as_ref().into();
        drop(bytes);
        charge.shrink_to(exact.len() as u64);
        Body::from(Bytes::from_owner(ChargedBytes {
            bytes: exact,
            _charge: charge,
        }))
    }
}

/// Bytes of a response and their charge, released with the last of their slices.
struct ChargedBytes {
    // Before the charge: memory is free before its charge is released.
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
