//! The accept loop: admits connections within the limits of all clients and of each address, and closes idle ones to
//! make room.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bywash::traffic::{ConnectionEnd, OpenConnection, Traffic};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::access_log::Peer;
use crate::addresses::{Addresses, Admitted, Network};
use crate::config::Limits;
use crate::connection::Connection;
use crate::limits::MAX_ADDRESS_CONNECTIONS_DIVISOR;

/// Pause after a failed accept, which is mostly due to a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Interval of scans for an idle connection while all slots are taken.
const RECLAIM_REST: Duration = Duration::from_millis(50);
/// Idle connections found in one scan, so that a flood causes few scans.
const RECLAIM_BATCH: usize = 64;

/// An admitted connection, with the resources that its end releases.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) socket: TcpStream,
    pub(crate) peer: Peer,
    pub(crate) connection: Arc<Connection>,
    pub(crate) counted: Admitted,
    pub(crate) permit: OwnedSemaphorePermit,
    pub(crate) open: Option<OpenConnection>,
}

/// Accepts connections within the limits.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    traffic: Option<Arc<Traffic>>,
    begun: Instant,
    /// At most twice the limit: ended ones are then removed.
    open: Vec<Weak<Connection>>,
    limit: usize,
    /// Connections found idle, longest idle first.
    idle: VecDeque<Arc<Connection>>,
}

impl Acceptor {
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

    /// Returns the next connection within the limits. Cancellation loses at most the connection just accepted.
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
                open: self.traffic.as_ref().map(Traffic::open_connection),
            };
        }
    }

    fn note(&self, end: ConnectionEnd) {
        if let Some(traffic) = &self.traffic {
            traffic.note_connection(end);
        }
    }

    /// Waits for a free slot, closing idle connections until there is one.
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

    /// Closes the connection that is idle longest, if one is idle.
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
