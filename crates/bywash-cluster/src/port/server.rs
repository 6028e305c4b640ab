//! Accepts connections of other nodes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bywash::ByteCharge;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::handler::{Handler, PortBody};
use super::identity::PeerIdentity;
use super::idle::{Connected, IdleConnections, InProgress};
use super::key::{ClusterKeys, KeyError};
use super::memory::PeerMemory;
use super::settings::PortSettings;
use super::tls::server_config;
use super::write_limit::WriteLimit;
use crate::limits::MAX_PEER_HEAD_BYTES;
use crate::transport::PeerService;

/// Pause after a failed accept, which is mostly due to a lack of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Headers of one request; there are fewer than ten.
const HEADERS: usize = 32;
/// Limit of the wait for the end of an idle connection.
const CLOSE: Duration = Duration::from_secs(1);
/// Idle connections that are ended for one new one: another may take the room of the first.
const CLOSED_FOR_ONE: usize = 4;

/// The server for other nodes.
pub struct PeerPort {
    handler: Arc<Handler>,
    tls: TlsAcceptor,
    connections: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
    handshakes: Handshakes,
}

impl fmt::Debug for PeerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerPort")
            .field("handler", &self.handler)
            .finish_non_exhaustive()
    }
}

/// Handshakes in progress, oldest first: each ends when its sender is dropped. Connections that never begin one push out each
/// other, while a member needs its place for a few milliseconds.
#[derive(Debug)]
struct Handshakes {
    places: Arc<Semaphore>,
    oldest: VecDeque<oneshot::Sender<()>>,
    limit: usize,
}

/// The place of one handshake.
struct Place {
    /// Resolves when the place is taken away.
    taken: oneshot::Receiver<()>,
    _permit: OwnedSemaphorePermit,
}

impl Handshakes {
    fn new(limit: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limit)),
            oldest: VecDeque::new(),
            limit,
        }
    }

    /// Returns a place, if necessary the oldest handshake's. `None` never happens while the port
    /// lives.
    async fn place(&mut self) -> Option<Place> {
        let places = Arc::clone(&self.places);
        let permit = match Arc::clone(&places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // Ended handshakes have closed their end.
                self.oldest.retain(|place| !place.is_closed());
                self.oldest.pop_front();
                places.acquire_owned().await.ok()?
            }
        };
        if self.oldest.len() >= 2 * self.limit {
            self.oldest.retain(|place| !place.is_closed());
        }
        let (held, taken) = oneshot::channel();
        self.oldest.push_back(held);
        Some(Place {
            taken,
            _permit: permit,
        })
    }
}

impl PeerPort {
    /// A server that hands requests for `identity` to `service`. The caller has charged [`PortSettings::reserved_bytes`]; all else is
    /// charged to `memory`.
    ///
    /// # Errors
    /// [`KeyError::Unusable`]
    pub fn new(
        identity: Arc<PeerIdentity>,
        keys: &ClusterKeys,
        service: Arc<dyn PeerService>,
        memory: &PeerMemory,
        settings: PortSettings,
    ) -> Result<Self, KeyError> {
        Ok(Self {
            tls: TlsAcceptor::from(server_config(keys)?),
            connections: Arc::new(Semaphore::new(settings.connections)),
            idle: Arc::default(),
            handshakes: Handshakes::new(settings.handshakes),
            handler: Arc::new(Handler {
                identity,
                service,
                settings,
                memory: memory.served.clone(),
                streams: Arc::new(Semaphore::new(settings.block_streams)),
            }),
        })
    }

    /// Serves until `shutdown` is ready. Requests in progress then have [`PortSettings::drain`] to end. Returns how many
    /// connections were cut. Dropping the future cuts all at once.
    pub async fn serve(
        mut self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> usize {
        let (stop, stopping) = watch::channel(false);
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            let (socket, place) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                accepted = self.accept(&listener) => accepted,
            };
            while connections.try_join_next().is_some() {}
            let connection = Connection {
                handler: Arc::clone(&self.handler),
                tls: self.tls.clone(),
                connections: Arc::clone(&self.connections),
                idle: Arc::clone(&self.idle),
            };
            connections.spawn(connection.run(socket, place, stopping.clone()));
        }
        drop(listener);
        // Handshakes end with their senders.
        drop(self.handshakes);
        stop.send_replace(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(self.handler.settings.drain, drained).await;
        let cut = connections.len();
        connections.shutdown().await;
        cut
    }

    /// Returns the next connection with a place for its handshake. Cancellation loses at most the connection just accepted.
    async fn accept(&mut self, listener: &TcpListener) -> (TcpStream, Place) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    if let Some(place) = self.handshakes.place().await {
                        return (socket, place);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed at the port for other nodes");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }
}

/// A connection, and the state of the port that it uses.
struct Connection {
    handler: Arc<Handler>,
    tls: TlsAcceptor,
    connections: Arc<Semaphore>,
    idle: Arc<IdleConnections>,
}

impl Connection {
    /// Returns the place and the charge of a connection, if necessary taken from the connection
    /// that has been idle longest: its node needs it less, or has lost its power.
    async fn room(&self) -> Option<(OwnedSemaphorePermit, ByteCharge)> {
        for _ in 0..CLOSED_FOR_ONE {
            let admitted = Arc::clone(&self.connections).try_acquire_owned();
            let charged = self.handler.memory.connection();
            if let (Ok(place), Ok(charge)) = (admitted, charged) {
                return Some((place, charge));
            }
            let _ = timeout(CLOSE, self.idle.close_longest()?).await;
        }
        None
    }

    async fn run(self, socket: TcpStream, place: Place, mut stopping: watch::Receiver<bool>) {
        // Otherwise the last segment of a response waits for an acknowledgement.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        let settings = self.handler.settings;
        let socket = WriteLimit::new(socket, settings.stall);
        let Place { taken, _permit } = place;
        let handshake = tokio::select! {
            biased;
            _ = taken => return,
            handshake = timeout(settings.handshake, self.tls.accept(socket)) => handshake,
        };
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake of a node failed"),
            Err(_) => return tracing::debug!("TLS handshake of a node took too long"),
        };
        let connected = Connected::new(&self.idle);
        // Dropped after the room.
        let _closing = connected.closing();
        let Some(_room) = self.room().await else {
            return tracing::debug!(
                "a connection beyond the limit of the port for nodes, or without memory, is closed"
            );
        };
        connected.admit();
        // Not before the charge of the connection, which takes over the memory of the handshake.
        drop(_permit);
        let handler = self.handler;
        let requests = Arc::clone(&connected);
        let service = service_fn(move |request| {
            let in_progress = requests.begin();
            let response = Arc::clone(&handler).handle(request);
            async move { Ok::<_, Infallible>(held(response.await?, in_progress)) }
        });
        let connection = http(settings.idle).serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let stopped = async { drop(stopping.wait_for(|stops| *stops).await) };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = async { tokio::select! { () = stopped => {}, () = connected.to_close() => {} } } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection of a node ended");
        }
    }
}

/// Returns a response that has its request in progress until the body ends.
fn held(response: Response<PortBody>, in_progress: InProgress) -> Response<PortBody> {
    if response.status() != StatusCode::OK {
        // It has a length and is short.
        return response;
    }
    response.map(|body| {
        let frames = body.map_frame(move |frame| {
            let _ = &in_progress;
            frame
        });
        frames.boxed_unsync()
    })
}

fn http(idle: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(MAX_PEER_HEAD_BYTES)
        .max_headers(HEADERS);
    http
}
