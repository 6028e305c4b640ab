//! The version to read, as a flight resolved it.

use std::ops::Range;
use std::sync::Arc;

use object_store::GetResult;
use parking_lot::Mutex;
use tokio_util::sync::DropGuard;

use super::readahead::ReadaheadWindow;
use crate::versions::{SharedFile, Version};

/// The version to read, and the result of the flight that resolved it, if there was one.
#[derive(Debug)]
pub(super) struct Resolution {
    pub(super) version: Arc<Version>,
    pub(super) flight: Option<Arc<FlightResult>>,
}

impl Resolution {
    pub(super) fn known(version: Arc<Version>) -> Self {
        Self {
            version,
            flight: None,
        }
    }

    /// Takes the body of the response, if no other reader has taken it.
    pub(super) fn take_body(&self) -> Option<GetResult> {
        self.flight.as_ref()?.body.lock().take()
    }

    /// Takes the window of the blocks read ahead by the flight, if no other reader has taken it.
    pub(super) fn take_window(&self) -> Option<ReadaheadWindow> {
        self.flight.as_ref()?.window.lock().take()
    }

    /// Returns whether the flight began to load `block`: a miss for its readers, even if the block is resident by
    /// now.
    pub(super) fn loaded(&self, block: u32) -> bool {
        self.flight
            .as_ref()
            .is_some_and(|flight| flight.loading.contains(&block))
    }
}

/// Result of a flight, shared by its readers.
#[derive(Debug)]
pub(crate) struct FlightResult {
    pub(super) version: Arc<Version>,
    /// Body that came with an uncacheable object, for the first reader that takes it.
    pub(super) body: Mutex<Option<GetResult>>,
    /// Blocks that the flight began to load.
    pub(super) loading: Range<u32>,
    /// Holds these blocks, but for the first, until a reader takes them over.
    pub(super) window: Mutex<Option<ReadaheadWindow>>,
    /// Keeps the file that the origin opened until the readers hold it.
    pub(super) file: Arc<SharedFile>,
    /// Cancels the load when the last reader of this result is dropped.
    pub(super) _cancel_on_drop: Option<DropGuard>,
}

impl FlightResult {
    /// A result without data.
    pub(super) fn known(version: Arc<Version>) -> Arc<Self> {
        Self::with_body(version, None)
    }

    pub(super) fn with_body(version: Arc<Version>, body: Option<GetResult>) -> Arc<Self> {
        Arc::new(Self {
            file: version.file(),
            version,
            body: Mutex::new(body),
            loading: 0..0,
            window: Mutex::new(None),
            _cancel_on_drop: None,
        })
    }
}
