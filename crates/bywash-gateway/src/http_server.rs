//! HTTP/1.1 server for any service, with limits from the handshake to graceful shutdown.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::Engine;
use bywash::traffic::Traffic;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::acceptor::{Accepted, Acceptor};
use crate::access_log::Peer;
use crate::addresses::Network;
use crate::config::Limits;
use crate::connection::{Connection, ConnectionBody, HeadBytes, HeadGuard, NoRoom, ResponseGuard};
use crate::errors::RETRY_AFTER_S;
use crate::http2::Http1Only;
use crate::idle::StallGuard;
use crate::limits::{MAX_HEADERS, MAX_HEADS_MEMORY_DIVISOR};
use crate::memory_ceiling::limit_socket_buffers;

/// Advice to a client whose request has no memory.
pub(crate) const NO_ROOM: &str =
    "Requests take all memory that they may; send the request again later.";

/// Result of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Connections cut because their requests exceeded [`Limits::drain`].
    pub cut: usize,
}

/// Settings of the connections of one listener.
pub(crate) struct Transport {
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) trusted_proxies: Vec<Network>,
    /// Response to a request whose head has no memory.
    pub(crate) no_room: NoRoom,
    /// Counts connections closed by a limit.
    pub(crate) traffic: Option<Arc<Traffic>>,
}

/// A response that asks the client to send its request again on another connection, with more
/// headers, each with its end of line, and a body.
pub(crate) fn no_room(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER_S}\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// A request, and the client that sent it.
pub(crate) struct ClientRequest {
    pub(crate) peer: Peer,
    pub(crate) request: Request<Incoming>,
}

/// Body of a request, as a service reads it that needs no client's address.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Incoming,
    /// Whether bytes of it are left. Written and read by the connection's own task, hence relaxed.
    open: Arc<AtomicBool>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.incoming.is_end_stream() {
            self.open.store(false, Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A service that needs no client's address. Its futures are on the heap: each connection has room
/// for one of the server's, and most connections are idle. A response that is sent before the end
/// of the request's body is its connection's last.
struct Boxed<S>(S);

impl<S, B> Service<ClientRequest> for Boxed<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn call(&self, client: ClientRequest) -> Self::Future {
        let open = Arc::new(AtomicBool::new(!client.request.body().is_end_stream()));
        let request = client.request.map(|incoming| RequestBody {
            incoming,
            open: Arc::clone(&open),
        });
        let response = self.0.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if open.load(Relaxed) {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            Ok(response)
        })
    }
}

/// Serves `service` on `listener` by HTTP/1.1, with TLS if there are settings for it, until `shutdown` is ready.
///
/// Enforces `limits` on connections, request heads, idle times and stalled responses. Unfinished heads are charged to
/// the budget of `engine`. The service limits request bodies. After `shutdown`, requests in progress have
/// [`Limits::drain`] to end; the rest is cut. Dropping the future cuts all connections at once.
pub async fn serve_http<S, B>(
    engine: Engine,
    listener: TcpListener,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    service: S,
    shutdown: impl Future<Output = ()> + Send,
) -> Drained
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>> + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let transport = Transport {
        limits,
        tls,
        trusted_proxies: Vec::new(),
        no_room: Box::new(|| no_room("content-type: text/plain\r\n", NO_ROOM)),
        traffic: None,
    };
    serve(engine, listener, transport, Boxed(service), shutdown).await
}

/// As [`serve_http`], with all settings. Futures of `service` are stored in connections, so they should be small.
pub(crate) async fn serve<S, B>(
    engine: Engine,
    listener: TcpListener,
    transport: Transport,
    service: S,
    shutdown: impl Future<Output = ()> + Send,
) -> Drained
where
    S: Service<ClientRequest, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>> + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    if let Err(error) = limit_socket_buffers(&listener) {
        tracing::warn!(%error, "socket buffers keep the system's sizes; a control group's limit may be too small for them");
    }
    let Transport {
        limits,
        tls,
        trusted_proxies,
        no_room,
        traffic,
    } = transport;
    let mut acceptor = Acceptor::new(listener, &limits, trusted_proxies, traffic.clone());
    let head_bytes = head_bytes(engine.budget().limit(), &limits);
    let server = Arc::new(Server {
        service,
        heads: HeadBytes::new(head_bytes, engine, no_room, traffic),
        http: http(&limits),
        tls: tls.map(TlsAcceptor::from),
        limits,
    });
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = acceptor.next() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let (server, watcher) = (Arc::clone(&server), graceful.watcher());
        connections.spawn(server.connection(accepted, watcher));
    }
    drop(acceptor);
    let drained = tokio::time::timeout(server.limits.drain, graceful.shutdown()).await;
    while connections.try_join_next().is_some() {}
    let cut = if drained.is_ok() {
        0
    } else {
        connections.len()
    };
    connections.shutdown().await;
    Drained { cut }
}

/// Max bytes of all unfinished heads: enough for one head at least, whose buffer doubles.
fn head_bytes(memory: u64, limits: &Limits) -> usize {
    let share = usize::try_from(memory / MAX_HEADS_MEMORY_DIVISOR).unwrap_or(usize::MAX);
    share.max(4 * limits.head_bytes)
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // `HeadGuard` enforces deadlines of heads and idle connections, without a timer for each request. A head whose first
    // bytes arrived with the request before counts as idle until more of it arrives. With a deadline of its own, hyper
    // reads again as soon as a connection is idle, which arms the guard.
    http.timer(NoTimer)
        .header_read_timeout(limits.idle + limits.head)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.body_window_bytes.max(limits.head_bytes))
        .max_headers(MAX_HEADERS);
    http
}

/// Deadlines that never come, and allocate nothing.
#[derive(Debug)]
struct NoTimer;

impl Timer for NoTimer {
    fn sleep(&self, _duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Never)
    }

    fn sleep_until(&self, _deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Never)
    }
}

#[derive(Debug)]
struct Never;

impl Future for Never {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Sleep for Never {}

struct Server<S> {
    service: S,
    heads: Arc<HeadBytes>,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    limits: Limits,
}

impl<S, B> Server<S>
where
    S: Service<ClientRequest, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>> + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    async fn connection(self: Arc<Self>, accepted: Accepted, watcher: Watcher) {
        let Accepted {
            socket,
            peer,
            connection,
            counted: _counted,
            permit: _permit,
            open: _open,
        } = accepted;
        // Otherwise the last segment of a response waits for the client's acknowledgement.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        let unread = Arc::new(AtomicBool::new(false));
        let socket = StallGuard::new(
            socket,
            self.limits.stalled_body,
            Arc::clone(&unread),
            Arc::clone(&connection),
        );
        let Some(acceptor) = self.tls.clone() else {
            return self.http(socket, watcher, unread, connection, peer).await;
        };
        match tokio::time::timeout(self.limits.handshake, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => {
                connection.handshake_ends();
                self.http(stream, watcher, unread, connection, peer).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn http(
        self: Arc<Self>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        watcher: Watcher,
        unread: Arc<AtomicBool>,
        connection: Arc<Connection>,
        peer: Peer,
    ) {
        let server = Arc::clone(&self);
        let heads = Arc::clone(&self.heads);
        let io = HeadGuard::new(
            io,
            Arc::clone(&connection),
            heads,
            Arc::clone(&unread),
            &self.limits,
        );
        let io = Http1Only::new(io);
        let service = service_fn(move |request: Request<Incoming>| {
            let unread = Arc::clone(&unread);
            connection.request_begins();
            let _guard = ResponseGuard(Arc::clone(&connection));
            let response = server.service.call(ClientRequest { peer, request });
            async move {
                let response = response.await?;
                unread.store(response.headers().contains_key(CONNECTION), Relaxed);
                Ok::<_, S::Error>(response.map(|body| ConnectionBody { body, _guard }))
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(io), service);
        if let Err(error) = watcher.watch(connection).await {
            // The client left or was closed by a limit. Its requests have access records.
            tracing::debug!(%error, "connection ended");
        }
    }
}
