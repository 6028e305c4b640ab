//! Memory of connections with other nodes and of their messages, charged before it is taken.
//!
//! Each charge is for as long as its connection, call or read lasts, and none waits: what does not fit is refused, and its node goes on with
//! the origin.

use std::sync::Arc;

use bywash::{ByteCharge, ByteLimit, Engine};

use crate::limits::{
    CALL_FACTOR, MAX_FREE_CALL_BYTES, MAX_FREE_RESPONSE_BYTES, MAX_PEERS_MEMORY_DIVISOR,
    PEER_CONNECTION_BYTES, PEER_READ_BYTES,
};

/// Memory for other nodes in the budget of an engine: one part for what they request here, and one for what is requested there.
#[derive(Debug, Clone)]
pub struct PeerMemory {
    pub(super) served: ServedMemory,
    pub(super) requested: RequestedMemory,
}

/// Memory of what other nodes request.
#[derive(Debug, Clone)]
pub(super) struct ServedMemory(Arc<ByteLimit>);

/// Memory of what this node requests of others.
#[derive(Debug, Clone)]
pub(super) struct RequestedMemory(Arc<ByteLimit>);

/// There is no memory for it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for messages of other nodes")]
pub(super) struct NoMemory;

impl PeerMemory {
    /// The part that other nodes have of the memory of `engine`.
    #[must_use]
    pub fn new(engine: &Engine) -> Self {
        let limit = engine.budget().limit() / MAX_PEERS_MEMORY_DIVISOR;
        Self {
            served: ServedMemory(ByteLimit::new(engine.clone(), limit)),
            requested: RequestedMemory(ByteLimit::new(engine.clone(), limit)),
        }
    }
}

impl ServedMemory {
    /// Charges a connection, with what short messages need.
    pub(super) fn connection(&self) -> Result<ByteCharge, NoMemory> {
        self.0.try_charge(PEER_CONNECTION_BYTES).ok_or(NoMemory)
    }

    /// Charges what a message of so many bytes needs beside its connection.
    pub(super) fn message(&self, bytes: u64) -> Result<Option<ByteCharge>, NoMemory> {
        if bytes <= MAX_FREE_CALL_BYTES as u64 {
            return Ok(None);
        }
        let charge = self.0.try_charge(CALL_FACTOR.saturating_mul(bytes));
        charge.map(Some).ok_or(NoMemory)
    }
}

impl RequestedMemory {
    /// Charges a call with a message of at most so many bytes.
    pub(super) fn call(&self, bytes: usize) -> Result<ByteCharge, NoMemory> {
        let message = match bytes {
            0..=MAX_FREE_CALL_BYTES => 0,
            bytes => CALL_FACTOR.saturating_mul(bytes as u64),
        };
        let charge = self.0.try_charge(PEER_CONNECTION_BYTES + message);
        charge.ok_or(NoMemory)
    }

    /// Charges what a response of so many bytes needs beside its call.
    pub(super) fn response(&self, bytes: usize) -> Result<Option<ByteCharge>, NoMemory> {
        if bytes <= MAX_FREE_RESPONSE_BYTES {
            return Ok(None);
        }
        let charge = self.0.try_charge(CALL_FACTOR.saturating_mul(bytes as u64));
        charge.map(Some).ok_or(NoMemory)
    }

    /// Charges a read of blocks.
    pub(super) fn read(&self) -> Result<ByteCharge, NoMemory> {
        self.0.try_charge(PEER_READ_BYTES).ok_or(NoMemory)
    }
}
