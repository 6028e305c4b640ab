//! Which connections come in: within the limits of all and of each address, idle ones making room.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bywash::traffic::{ConnectionEnd, Traffic};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::access_log::Peer;
use crate::addresses::{Addresses, Admitted, Network};
use crate::config::Limits;
use crate::connection::Connection;
use crate::limits::MAX_ADDRESS_CONNECTIONS_DIVISOR;

/// Time between a failed accept, mostly for want of a file descriptor, and the next one.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Time between two looks for an idle connection when all are taken and none was.
const RECLAIM_REST: Duration = Duration::from_millis(50);
/// Idle connections noted by one look through all of them, so that a flood costs few looks.
const RECLAIM_BATCH: usize = 64;

/// A connection that is let in, with what it gives back at its end.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: TcpStream,
    pub(crate) peer: Peer,
    pub(crate) connection: Arc<Connection>,
    pub(crate) counted: Admitted,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Doorway {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    traffic: Option<Arc<Traffic>>,
    begun: Instant,
    /// At most twice the limit: those that ended are forgotten then.
    open: Vec<Weak<Connection>>,
    limit: usize,
    /// Connections found idle, the one idle longest first.
    idle: VecDeque<Arc<Connection>>,
}

impl Doorway {
    pub(crate) fn new(
        listener: TcpListener,
        limits: &Limits,
        trusted_proxies: Vec<Network>,
        traffic: Option<Arc<Traffic>>,
    ) -> Self {
        let limit = limits.connections;
        let of_address = (limit / MAX_ADDRESS_CONNECTIONS_DIVISOR).max(1);
        let of_address = limits.connections_per_address.unwrap_or(of_address);
        Self {
            listener,
            permits: Arc::new(Semaphore::new(limit)),
            addresses: Addresses::new(of_address, trusted_proxies),
            traffic,
            begun: Instant::now(),
            open: Vec::new(),
            limit,
            idle: VecDeque::new(),
        }
    }

    /// The next connection within the limits. Dropped while it waits, it loses at most the
    /// connection it had accepted.
    pub(crate) async fn next(&mut self) -> Accepted {
        loop {
            let (socket, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    sleep(ACCEPT_REST).await;
                    continue;
                }
            };
            let Some(counted) = self.addresses.admit(peer.ip()) else {
                self.note(ConnectionEnd::AddressFull);
                continue;
            };
            let permit = self.permit().await;
            let connection = Connection::new(self.begun);
            if self.open.len() >= 2 * self.limit {
                self.open.retain(|open| open.strong_count() > 0);
            }
            self.open.push(Arc::downgrade(&connection));
            return Accepted {
                socket,
                peer: Peer(peer),
                connection,
                counted,
                permit,
            };
        }
    }

    fn note(&self, end: ConnectionEnd) {
        if let Some(traffic) = &self.traffic {
            traffic.note_connection(end);
        }
    }

    /// Waits for a place, closing one idle connection after the other until there is one.
    async fn permit(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.reclaim();
            let ended = Arc::clone(&self.permits).acquire_owned();
            if let Ok(Ok(permit)) = timeout(RECLAIM_REST, ended).await {
                return permit;
            }
        }
    }

    /// Has the connection closed that is idle longest, if one is.
    fn reclaim(&mut self) {
        if self.idle.is_empty() {
            let open = self.open.iter().filter_map(Weak::upgrade);
            let mut idle: Vec<_> = open
                .filter_map(|open| Some((open.reclaimable()?, open)))
                .collect();
            idle.sort_unstable_by_key(|(since, _)| *since);
            let oldest = idle.into_iter().take(RECLAIM_BATCH);
            self.idle = oldest.map(|(_, open)| open).collect();
        }
        while let Some(connection) = self.idle.pop_front() {
            if connection.reclaim() {
                self.note(ConnectionEnd::Reclaimed);
                return;
            }
        }
    }
}
