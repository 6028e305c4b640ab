//! Texts of `/metrics` and `/stats`: rendered seldom, shared by their readers, and charged before they are rendered.
//!
//! Both need no key, and their length depends on the number of buckets: texts of a server of ten
//! thousand buckets have megabytes, and slow readers keep them for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use bywash::{Engine, Reservation, Share};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::charged::charged_text;
use crate::labelled::Counted;
use crate::limits::MAX_REPORT_PAUSE;
use crate::{NO_STORE, Shared};

/// Rendering takes at most this fraction of the time.
const PART_OF_TIME: u32 = 20;
/// Texts that may live at once before a new one is rendered only after [`MAX_REPORT_PAUSE`]: slow readers keep older ones.
pub(crate) const LIVE_TEXTS: usize = 4;
/// Memory kept for reports from the start, so that full memory does not hide the counters that show it: the most, and the fraction of the
/// limit.
const RESERVED_BYTES: u64 = 1 << 20;
const RESERVED_PART: u64 = 64;
/// Bytes of a permit of the reserved memory.
const PERMIT_BYTES: u64 = 1 << 10;

/// Memory of reports and pages: some that is reserved, then the budget's.
#[derive(Debug)]
pub(crate) struct ReportMemory {
    engine: Engine,
    /// Permits of [`PERMIT_BYTES`] each.
    free: Arc<Semaphore>,
    _reserved: Option<Reservation>,
}

/// Charge of a report or page, released on drop.
#[derive(Debug)]
pub(crate) enum ReportCharge {
    Reserved(OwnedSemaphorePermit),
    Budget(Reservation),
}

impl ReportCharge {
    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        match self {
            Self::Reserved(permit) => {
                let kept = bytes.div_ceil(PERMIT_BYTES) as usize;
                drop(permit.split(permit.num_permits().saturating_sub(kept)));
            }
            Self::Budget(reservation) => reservation.shrink_to(bytes),
        }
    }
}

impl ReportMemory {
    pub(crate) fn new(engine: &Engine) -> Self {
        let bytes = RESERVED_BYTES.min(engine.budget().limit() / RESERVED_PART);
        let reserved = engine.try_reserve(Share::Upload, bytes);
        let permits = reserved.as_ref().map_or(0, Reservation::bytes) / PERMIT_BYTES;
        Self {
            engine: engine.clone(),
            free: Arc::new(Semaphore::new(permits as usize)),
            _reserved: reserved,
        }
    }

    /// Charges `bytes`; `None` if they are not free now. Never waits.
    pub(crate) fn charge(&self, bytes: u64) -> Option<ReportCharge> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).ok()?;
        let permit = Arc::clone(&self.free).try_acquire_many_owned(permits);
        match permit {
            Ok(permit) => Some(ReportCharge::Reserved(permit)),
            Err(_) => {
                let reservation = self.engine.try_reserve(Share::Upload, bytes)?;
                Some(ReportCharge::Budget(reservation))
            }
        }
    }
}

/// Response of a request for which there is no memory now.
pub(crate) fn no_memory() -> Response {
    let text = "there is no memory for the response now; send the request again\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], text).into_response()
}

/// Renders a report of some counters, in a buffer of the given length.
pub(crate) type Render = fn(&Shared, &Counted, usize) -> Vec<u8>;

/// One report; all readers get the same text.
#[derive(Debug)]
pub(crate) struct Report {
    content_type: &'static str,
    render: Render,
    /// One permit: one reader renders, and readers that asked before it began share its text.
    turn: Semaphore,
    latest: Mutex<Option<Latest>>,
    live: Arc<AtomicUsize>,
}

/// The newest text.
#[derive(Debug, Clone)]
struct Latest {
    text: Bytes,
    /// When its counters were read.
    began: Instant,
    took: Duration,
}

/// A text that some reader or the report holds.
struct LiveText {
    _charge: ReportCharge,
    live: Arc<AtomicUsize>,
}

impl LiveText {
    fn new(charge: ReportCharge, live: &Arc<AtomicUsize>) -> Self {
        // Relaxed, here and below: a count that orders nothing.
        live.fetch_add(1, Ordering::Relaxed);
        Self {
            _charge: charge,
            live: Arc::clone(live),
        }
    }
}

impl Drop for LiveText {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Report {
    pub(crate) fn new(content_type: &'static str, render: Render) -> Self {
        Self {
            content_type,
            render,
            turn: Semaphore::new(1),
            latest: Mutex::default(),
            live: Arc::default(),
        }
    }

    /// Returns the counters of buckets that `sees` selects, as of now or later. Without memory for that it returns the last text.
    pub(crate) async fn response(
        &self,
        shared: &Shared,
        sees: impl Fn(&str) -> bool + Send + 'static,
    ) -> Response {
        let asked = Instant::now();
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        let latest = self.latest.lock().clone();
        if let Some(latest) = &latest {
            if latest.began >= asked {
                return self.respond(latest.text.clone());
            }
            tokio::time::sleep_until(latest.began + self.pause(latest)).await;
        }
        let began = Instant::now();
        match self.rendered(shared, sees).await {
            Some(text) => {
                let latest = Latest {
                    text: text.clone(),
                    began,
                    took: began.elapsed(),
                };
                *self.latest.lock() = Some(latest);
                self.respond(text)
            }
            None => latest.map_or_else(no_memory, |latest| self.respond(latest.text)),
        }
    }

    /// Number of texts that live now.
    #[cfg(test)]
    pub(crate) fn live_texts(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn pause(&self, latest: &Latest) -> Duration {
        if self.live.load(Ordering::Relaxed) > LIVE_TEXTS {
            return MAX_REPORT_PAUSE;
        }
        MAX_REPORT_PAUSE.min(latest.took * PART_OF_TIME)
    }

    /// Renders on a blocking thread; `None` without memory.
    async fn rendered(
        &self,
        shared: &Shared,
        sees: impl Fn(&str) -> bool + Send + 'static,
    ) -> Option<Bytes> {
        let (shared, render, live) = (shared.clone(), self.render, Arc::clone(&self.live));
        let work = tokio::task::spawn_blocking(move || {
            let counted = Counted::now(&shared, sees);
            let bytes = counted.text_bytes(&shared);
            let mut charge = shared.report_memory.charge(bytes as u64)?;
            let mut text = render(&shared, &counted, bytes);
            text.shrink_to_fit();
            charge.shrink_to(text.capacity() as u64);
            Some(charged_text(text.into(), LiveText::new(charge, &live)))
        });
        // A panic was reported; the server may be stopping.
        work.await.ok().flatten()
    }

    fn respond(&self, text: Bytes) -> Response {
        let headers = [(CONTENT_TYPE, self.content_type), NO_STORE];
        (headers, Body::from(text)).into_response()
    }
}
