//! Durations and numbers of the port.

use std::time::Duration;

use crate::limits::{
    MAX_BLOCK_STREAMS, MAX_CALLS_BYTES, MAX_CALLS_MEMORY_DIVISOR, MAX_HANDSHAKES,
    MAX_HANDSHAKES_MEMORY_DIVISOR, MAX_PEER_CONNECTIONS, MAX_POOL_CONNECTIONS, MIN_CALLS_BYTES,
    MIN_HANDSHAKES, MIN_POOL_CONNECTIONS, PEER_CONNECTION_BYTES, POOL_CONNECTION_MEMORY,
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
    /// Unused connections that a client keeps for each node.
    pub pool_connections: usize,
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
    /// Memory in bytes that calls at other nodes have for themselves.
    pub calls_bytes: u64,
}

impl PortSettings {
    /// The settings of the product.
    pub const DEFAULT: Self = Self {
        alive: Duration::from_millis(50),
        connect: Duration::from_millis(200),
        handshake: Duration::from_secs(1),
        idle: Duration::from_secs(60),
        pool: Duration::from_secs(20),
        pool_connections: MAX_POOL_CONNECTIONS,
        body: Duration::from_secs(2),
        stall: Duration::from_secs(10),
        drain: Duration::from_secs(5),
        connections: MAX_PEER_CONNECTIONS,
        handshakes: MAX_HANDSHAKES,
        block_streams: MAX_BLOCK_STREAMS,
        calls_bytes: MAX_CALLS_BYTES,
    };

    /// Settings of the product for a node with this memory in bytes.
    #[must_use]
    pub fn for_memory(memory: u64) -> Self {
        let handshakes = memory / MAX_HANDSHAKES_MEMORY_DIVISOR / PEER_CONNECTION_BYTES;
        let handshakes = usize::try_from(handshakes).unwrap_or(usize::MAX);
        let calls_bytes = memory / MAX_CALLS_MEMORY_DIVISOR;
        let pool = usize::try_from(memory / POOL_CONNECTION_MEMORY).unwrap_or(usize::MAX);
        Self {
            pool_connections: pool.clamp(MIN_POOL_CONNECTIONS, MAX_POOL_CONNECTIONS),
            calls_bytes: calls_bytes.clamp(MIN_CALLS_BYTES, MAX_CALLS_BYTES),
            handshakes: handshakes.clamp(MIN_HANDSHAKES, MAX_HANDSHAKES),
            ..Self::DEFAULT
        }
    }

    /// Memory of unused connections to one other node, in bytes. It is not charged.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        self.pool_connections as u64 * PEER_CONNECTION_BYTES
    }

    /// Memory of all handshakes at once and of calls for themselves, in bytes, which the caller
    /// charges before the port serves.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.handshakes as u64 * PEER_CONNECTION_BYTES + self.calls_bytes
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
    use crate::limits::{CALL_FACTOR, MAX_CALL_BYTES};

    #[test]
    fn handshakes_take_a_part_of_the_memory_up_to_their_limit() {
        for (memory, handshakes) in [
            (1, 64),
            (1 << 28, 64),
            (1 << 29, 128),
            (1 << 30, 256),
            (1 << 40, 256),
        ] {
            let settings = PortSettings::for_memory(memory);
            assert_eq!(settings.handshakes, handshakes, "{memory}");
        }
        let some = PortSettings::for_memory(256 << 20);
        let (handshakes, calls) = (
            (256 << 20) / MAX_HANDSHAKES_MEMORY_DIVISOR,
            (256 << 20) / MAX_CALLS_MEMORY_DIVISOR,
        );
        assert_eq!(some.reserved_bytes(), handshakes + calls);
    }

    #[test]
    fn nodes_with_little_memory_keep_few_unused_connections() {
        for (memory, kept) in [(1, 2), (64 << 20, 4), (1 << 28, 16), (1 << 40, 16)] {
            let settings = PortSettings::for_memory(memory);
            assert_eq!(settings.pool_connections, kept, "{memory}");
            assert_eq!(settings.unused_bytes(), kept as u64 * PEER_CONNECTION_BYTES);
        }
    }

    #[test]
    fn calls_have_a_part_of_the_memory_for_themselves_up_to_its_limit() {
        for (memory, calls) in [(1, 3 << 20), (1 << 28, 8 << 20), (1 << 40, MAX_CALLS_BYTES)] {
            assert_eq!(
                PortSettings::for_memory(memory).calls_bytes,
                calls,
                "{memory}"
            );
        }
        let longest = PEER_CONNECTION_BYTES + CALL_FACTOR * MAX_CALL_BYTES as u64;
        assert!(longest <= MIN_CALLS_BYTES / 2);
    }
}
