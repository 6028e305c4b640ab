//! Memory of connections with other nodes and of their messages, charged before it is taken.
//!
//! A charge lasts as long as its connection, call or read, and none waits: a request that does not
//! fit is refused, and its node uses the origin instead.

use std::sync::Arc;

use bywash::{ByteCharge, ByteLimit, Engine};

use super::settings::PortSettings;
use crate::limits::{
    CALL_FACTOR, MAX_FREE_CALL_BYTES, MAX_FREE_RESPONSE_BYTES, MAX_PEERS_MEMORY_DIVISOR,
    PEER_CONNECTION_BYTES, PEER_READ_BYTES,
};

/// Memory for other nodes in the budget of an engine: one part for their requests to this node, and
/// one for this node's requests to them.
#[derive(Debug, Clone)]
pub struct PeerMemory {
    pub(super) served: ServedMemory,
    pub(super) requested: RequestedMemory,
}

/// Memory of requests from other nodes.
#[derive(Debug, Clone)]
pub(super) struct ServedMemory(Arc<ByteLimit>);

/// Memory of this node's requests to other nodes. Reads and calls share a part of the memory. Calls
/// also have a reserve for the time when reads have taken all: one half for calls that wait for an
/// origin, and one for other calls.
#[derive(Debug, Clone)]
pub(super) struct RequestedMemory {
    shared: Arc<ByteLimit>,
    waiting: Arc<ByteLimit>,
    prompt: Arc<ByteLimit>,
}

/// There is no memory for it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for messages of other nodes")]
pub(super) struct NoMemory;

impl PeerMemory {
    /// The part that other nodes have of the memory of `engine`. The caller has charged [`PortSettings::reserved_bytes`].
    #[must_use]
    pub fn new(engine: &Engine, settings: &PortSettings) -> Self {
        let limit = engine.budget().limit() / MAX_PEERS_MEMORY_DIVISOR;
        Self {
            served: ServedMemory(ByteLimit::new(engine.clone(), limit)),
            requested: RequestedMemory {
                shared: ByteLimit::new(engine.clone(), limit),
                waiting: ByteLimit::charged(settings.calls_bytes / 2),
                prompt: ByteLimit::charged(settings.calls_bytes / 2),
            },
        }
    }
}

impl ServedMemory {
    /// Charges a connection, including its short messages.
    pub(super) fn connection(&self) -> Result<ByteCharge, NoMemory> {
        self.0.try_charge(PEER_CONNECTION_BYTES).ok_or(NoMemory)
    }

    /// Charges a message of `bytes` bytes, in addition to its connection.
    pub(super) fn message(&self, bytes: u64) -> Result<Option<ByteCharge>, NoMemory> {
        if bytes <= MAX_FREE_CALL_BYTES as u64 {
            return Ok(None);
        }
        let charge = self.0.try_charge(CALL_FACTOR.saturating_mul(bytes));
        charge.map(Some).ok_or(NoMemory)
    }
}

impl RequestedMemory {
    /// Charges a call with a message of at most `bytes` bytes. `waits`: its response waits for an
    /// origin.
    pub(super) fn call(&self, bytes: usize, waits: bool) -> Result<ByteCharge, NoMemory> {
        let message = match bytes {
            0..=MAX_FREE_CALL_BYTES => 0,
            bytes => CALL_FACTOR.saturating_mul(bytes as u64),
        };
        self.charge(PEER_CONNECTION_BYTES + message, waits)
    }

    fn charge(&self, bytes: u64, waits: bool) -> Result<ByteCharge, NoMemory> {
        let own = if waits { &self.waiting } else { &self.prompt };
        let charge = self.shared.try_charge(bytes);
        charge.or_else(|| own.try_charge(bytes)).ok_or(NoMemory)
    }

    /// Charges a response of `bytes` bytes, in addition to its call.
    pub(super) fn response(
        &self,
        bytes: usize,
        waits: bool,
    ) -> Result<Option<ByteCharge>, NoMemory> {
        if bytes <= MAX_FREE_RESPONSE_BYTES {
            return Ok(None);
        }
        self.charge(CALL_FACTOR.saturating_mul(bytes as u64), waits)
            .map(Some)
    }

    /// Charges a read of blocks.
    pub(super) fn read(&self) -> Result<ByteCharge, NoMemory> {
        self.shared.try_charge(PEER_READ_BYTES).ok_or(NoMemory)
    }
}
