//! The local door of an engine: it accepts this user's processes.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bywash::{Engine, LocalStats, LocalStatsSource, Share};
use bywash_gateway::objects::Listings;
use bywash_gateway::{AccessLog, ETagStyle, RequestRecorder, SharedState};
use parking_lot::Mutex;
use rustix::net::sockopt::socket_peercred;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::attach::Attacher;
use crate::connection;
use crate::leases::Leases;
use crate::limits::{
    CONNECTION_BYTES, CONNECTIONS_MEMORY_DIVISOR, MAX_LOCAL_CONNECTIONS, MAX_MESSAGE_TIME,
    MAX_REPLY_STALL,
};
use crate::listen::Listener;
use crate::stats::{Counters, add};

/// Pause after a failed accept, which is mostly due to a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Clients of the local door in the access log.
const AGENT: &str = "bywash-local";

/// Settings of the local door.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Version of the program, for clients.
    pub program: String,
    /// URL of the S3 endpoint, for clients.
    pub s3: String,
    /// URL of the GCS endpoint, for clients; empty without one.
    pub gcs: String,
    /// ETags of objects written to folders and memory, in the style of the S3 endpoint.
    pub etag: ETagStyle,
    /// Log of requests, if there is one.
    pub access_log: Option<AccessLog>,
    /// State shared by the endpoints of the engine.
    pub shared: SharedState,
    /// Mounts origins for clients.
    pub attacher: Arc<dyn Attacher>,
    /// Limits of time.
    pub times: LocalTimes,
}

/// Limits of time of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTimes {
    /// From the first byte of a message to its last, and until the hello.
    pub message: Duration,
    /// For which a client may take nothing of a reply.
    pub reply_stall: Duration,
}

impl Default for LocalTimes {
    fn default() -> Self {
        Self {
            message: MAX_MESSAGE_TIME,
            reply_stall: MAX_REPLY_STALL,
        }
    }
}

/// The local door of an engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LocalDoor(pub(crate) Arc<Door>);

/// State shared by connections.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) engine: Engine,
    pub(crate) config: LocalConfig,
    /// Number of this start of the server.
    pub(crate) instance: u64,
    pub(crate) listings: Listings,
    pub(crate) recorder: RequestRecorder,
    pub(crate) counters: Arc<Counters>,
    /// Whether the server is ending.
    ending: Arc<AtomicBool>,
    /// Leases of the open connections, for the statistics. Ended ones are removed when a connection opens.
    connections: Mutex<Vec<std::sync::Weak<Leases>>>,
    permits: Arc<Semaphore>,
}

impl LocalDoor {
    /// Creates the door of an engine.
    #[must_use]
    pub fn new(engine: Engine, config: LocalConfig) -> Self {
        let of_memory = engine.budget().limit() / CONNECTIONS_MEMORY_DIVISOR / CONNECTION_BYTES;
        let max_connections = MAX_LOCAL_CONNECTIONS.min(of_memory as usize).max(1);
        let door = Arc::new(Door {
            listings: Listings::new(&config.shared, &engine),
            recorder: RequestRecorder::new(&engine, config.access_log.clone(), AGENT),
            engine: engine.clone(),
            config,
            // Its keys are random.
            instance: RandomState::new().hash_one(std::process::id()),
            counters: Arc::default(),
            ending: Arc::default(),
            connections: Mutex::default(),
            permits: Arc::new(Semaphore::new(max_connections)),
        });
        let source: Arc<dyn LocalStatsSource> = Arc::<Door>::clone(&door);
        engine.observe_local(Arc::downgrade(&source));
        Self(door)
    }

    /// State and counters.
    #[must_use]
    pub fn stats(&self) -> LocalStats {
        self.0.local_stats()
    }

    /// Serves the processes that connect to `listener`, until `shutdown` completes. Then it closes all connections. Views that clients
    /// have stay as they are, so the blocks of their leases stay in memory until this process has ended.
    pub async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()> + Send) {
        let mut connections = JoinSet::new();
        let accept = async {
            loop {
                match listener.socket.accept().await {
                    Ok((socket, _)) => self.admit(socket, &mut connections),
                    Err(error) => {
                        tracing::warn!(%error, "accept of a local client failed");
                        tokio::time::sleep(ACCEPT_REST).await;
                    }
                }
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            () = accept => {}
            () = shutdown => {}
        }
        self.0.ending.store(true, Relaxed);
        connections.shutdown().await;
    }

    fn admit(&self, socket: UnixStream, connections: &mut JoinSet<()>) {
        let door = &self.0;
        let refused = |reason: &str| {
            add(&door.counters.rejected, 1);
            tracing::warn!(reason, "refused a local client");
        };
        let own = rustix::process::geteuid();
        match socket_peercred(socket.as_fd()) {
            Ok(peer) if peer.uid == own || peer.uid.is_root() => {}
            Ok(peer) => {
                refused("it is another user's process");
                connections.spawn(connection::refuse(socket, connection::other_user(peer.uid)));
                return;
            }
            Err(_) => return refused("its user is not known"),
        }
        let Ok(permit) = Arc::clone(&door.permits).try_acquire_owned() else {
            refused("there are too many connections");
            connections.spawn(connection::refuse(socket, connection::too_many()));
            return;
        };
        let Some(charge) = door.engine.try_reserve(Share::Download, CONNECTION_BYTES) else {
            refused("there is no memory for its connection");
            connections.spawn(connection::refuse(socket, connection::no_memory()));
            return;
        };
        let leases = Leases::new(&door.counters, &door.ending);
        door.enter(&leases);
        let door = Arc::clone(door);
        connections.spawn(async move {
            add(&door.counters.clients, 1);
            let counted = ClientCount(Arc::clone(&door.counters));
            if let Err(error) = connection::serve(socket, &door, &leases).await {
                tracing::debug!(%error, "a local connection ended");
            }
            drop((leases, counted, charge, permit));
        });
    }
}

/// Counts a client until it is dropped, also if its task is ended.
struct ClientCount(Arc<Counters>);

impl Drop for ClientCount {
    fn drop(&mut self) {
        crate::stats::subtract(&self.0.clients, 1);
    }
}

impl Door {
    fn enter(&self, leases: &Arc<Leases>) {
        let mut connections = self.connections.lock();
        if connections.len() >= 2 * MAX_LOCAL_CONNECTIONS {
            connections.retain(|leases| leases.strong_count() > 0);
        }
        connections.push(Arc::downgrade(leases));
    }
}

impl LocalStatsSource for Door {
    fn local_stats(&self) -> LocalStats {
        let connections: Vec<_> = {
            let mut connections = self.connections.lock();
            connections.retain(|leases| leases.strong_count() > 0);
            connections
                .iter()
                .filter_map(std::sync::Weak::upgrade)
                .collect()
        };
        let oldest = connections
            .iter()
            .filter_map(|leases| leases.oldest())
            .min();
        LocalStats {
            leased_bytes: self.engine.leased_bytes(),
            oldest_lease_seconds: oldest
                .map_or(0, |since| Instant::now().duration_since(since).as_secs()),
            shares_memory: self.engine.shared_memory().is_some(),
            ..self.counters.snapshot()
        }
    }
}
