//! Durations and numbers of the port.

use std::time::Duration;

use crate::limits::{
    MAX_BLOCK_STREAMS, MAX_HANDSHAKES, MAX_HANDSHAKES_MEMORY_DIVISOR, MAX_PEER_CONNECTIONS,
    MIN_HANDSHAKES, PEER_CONNECTION_BYTES,
};

/// Durations and numbers of the port, the same for both of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// Longest time without a frame while the node works on a response: a third of the patience of a reader.
    pub alive: Duration,
    /// Limit of a client's connect, handshake included. A node of the same network needs a few milliseconds.
    pub connect: Duration,
    /// Limit of the server's part of a handshake.
    pub handshake: Duration,
    /// Limit of a connection without a request, and of a request's head. Longer than `pool`, so that the client closes first.
    pub idle: Duration,
    /// Time for which a client keeps an unused connection.
    pub pool: Duration,
    /// Limit of a request's body, which is one small packet.
    pub body: Duration,
    /// Limit without progress: of a client that reads nothing, and of a stream without a frame after its first byte.
    pub stall: Duration,
    /// Time that requests in progress have when the server stops.
    pub drain: Duration,
    /// Authenticated connections.
    pub connections: usize,
    /// Handshakes in progress.
    pub handshakes: usize,
    /// Block streams in progress.
    pub block_streams: usize,
}

impl PortSettings {
    /// The settings of the product.
    pub const DEFAULT: Self = Self {
        alive: Duration::from_millis(50),
        connect: Duration::from_millis(200),
        handshake: Duration::from_secs(1),
        idle: Duration::from_secs(60),
        pool: Duration::from_secs(20),
        body: Duration::from_secs(2),
        stall: Duration::from_secs(10),
        drain: Duration::from_secs(5),
        connections: MAX_PEER_CONNECTIONS,
        handshakes: MAX_HANDSHAKES,
        block_streams: MAX_BLOCK_STREAMS,
    };

    /// Returns the settings of the product for a node with so much memory.
    #[must_use]
    pub fn for_memory(memory: u64) -> Self {
        let handshakes = memory / MAX_HANDSHAKES_MEMORY_DIVISOR / PEER_CONNECTION_BYTES;
        let handshakes = usize::try_from(handshakes).unwrap_or(usize::MAX);
        Self {
            handshakes: handshakes.clamp(MIN_HANDSHAKES, MAX_HANDSHAKES),
            ..Self::DEFAULT
        }
    }

    /// Returns the memory of all handshakes at once, in bytes, which the caller charges before the port serves.
    #[must_use]
    pub fn handshake_bytes(&self) -> u64 {
        self.handshakes as u64 * PEER_CONNECTION_BYTES
    }
}

impl Default for PortSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_take_a_part_of_the_memory_up_to_their_limit() {
        for (memory, handshakes) in [(1, 8), (64 << 20, 16), (1 << 30, 256), (1 << 40, 256)] {
            let settings = PortSettings::for_memory(memory);
            assert_eq!(settings.handshakes, handshakes, "{memory}");
        }
        let some = PortSettings::for_memory(256 << 20);
        assert_eq!(
            some.handshake_bytes(),
            (256 << 20) / MAX_HANDSHAKES_MEMORY_DIVISOR
        );
    }
}
