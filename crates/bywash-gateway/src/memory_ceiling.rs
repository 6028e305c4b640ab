//! Max memory of a server: the formula for a container's limit, and the settings it depends on.

use std::os::fd::AsFd;

use crate::limits::{
    MAX_CONNECTION_BYTES, MAX_PROGRAM_BYTES, MAX_SOCKET_RECEIVE_BYTES, MAX_SOCKET_SEND_BYTES,
    MAX_THREAD_BYTES,
};

/// Max resident memory of a server in bytes, without file pages. The sum of its memory ceiling, the
/// program with tables and buffers outside of the ceiling, and the memory of threads and
/// connections.
///
/// `threads` includes the runtime's blocking threads; `connections` are those open at a time.
#[must_use]
pub fn max_resident_bytes(memory: u64, threads: u64, connections: u64) -> u64 {
    memory
        .saturating_add(MAX_PROGRAM_BYTES)
        .saturating_add(threads.saturating_mul(MAX_THREAD_BYTES))
        .saturating_add(connections.saturating_mul(MAX_CONNECTION_BYTES))
}

/// Max bytes of kernel memory for the sockets of `connections`. A control group's limit includes
/// it.
#[must_use]
pub fn max_socket_bytes(connections: u64) -> u64 {
    // The kernel charges twice the requested size, for its own structures.
    let each = 2 * (MAX_SOCKET_SEND_BYTES + MAX_SOCKET_RECEIVE_BYTES) as u64;
    connections.saturating_mul(each)
}

/// Sets the buffer sizes of all sockets that `listener` accepts: they inherit them.
pub(crate) fn limit_socket_buffers(listener: impl AsFd) -> rustix::io::Result<()> {
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
    set_socket_send_buffer_size(&listener, MAX_SOCKET_SEND_BYTES)?;
    set_socket_recv_buffer_size(&listener, MAX_SOCKET_RECEIVE_BYTES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn accepted_sockets_have_the_buffers_of_the_formula() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        limit_socket_buffers(&listener).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let booked =
            socket_send_buffer_size(&socket).unwrap() + socket_recv_buffer_size(&socket).unwrap();
        assert!(booked as u64 <= max_socket_bytes(1), "{booked}");
        drop(client);
    }

    #[test]
    fn resident_memory_grows_with_each_term() {
        let base = max_resident_bytes(64 << 20, 0, 0);
        assert_eq!(base, (64 << 20) + MAX_PROGRAM_BYTES);
        assert_eq!(
            max_resident_bytes(64 << 20, 3, 5) - base,
            3 * MAX_THREAD_BYTES + 5 * MAX_CONNECTION_BYTES
        );
        assert_eq!(max_resident_bytes(u64::MAX, 1, 1), u64::MAX);
    }
}
