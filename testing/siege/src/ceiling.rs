//! The ceiling of the resident memory of a server: the formula of the endpoint, applied to a sample.

use bywash_gateway::{max_resident_bytes, max_socket_bytes};

use crate::watch::Sample;

/// Max bytes resident, without file-backed pages, of a server with `memory` bytes that is in the state of `sample`.
///
/// Descriptors stand for connections: a file costs no more.
#[must_use]
pub fn resident_limit(memory: u64, sample: &Sample) -> u64 {
    max_resident_bytes(memory, sample.threads, sample.descriptors)
}

/// Limit of the control group of a server with `memory` bytes, so many threads and so many connections.
#[must_use]
pub fn group_limit(memory: u64, threads: u64, connections: u64) -> u64 {
    max_resident_bytes(memory, threads, connections) + max_socket_bytes(connections)
}
