//! The accept loop: connections with limits, and an orderly end.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bywash::Engine;
use http::Request;
use http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use s3s::HttpError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::access_log::Peer;
use crate::config::{Limits, S3Config};
use crate::connection::{Connection, ConnectionBody, HeadBytes, HeadGuard, ResponseGuard};
use crate::doorway::{Accepted, Doorway};
use crate::front::Front;
use crate::gateway::Gateway;
use crate::host::Hosts;
use crate::idle::StallGuard;
use crate::limits::{MAX_HEADERS, MAX_HEADS_MEMORY_DIVISOR};
use crate::resident::limit_socket_buffers;
use crate::uploads::Uploads;

/// Why an endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Nobody could get in.
    #[error(
        "S3 endpoint: no credentials; give an access key and a secret key, or serve anonymously"
    )]
    NoCredentials,
    /// A key that nobody could sign with.
    #[error("S3 endpoint: an access key or secret key is empty; give both")]
    EmptyCredential,
    /// Credentials that nobody would look at.
    #[error("S3 endpoint: credentials and anonymous access exclude each other; give one")]
    AnonymousWithCredentials,
    /// The folder of open multipart uploads cannot be used.
    #[error("S3 endpoint: cannot use the folder {} of open multipart uploads: {source}", folder.display())]
    Uploads {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A domain below which no bucket can be addressed.
    #[error(
        "S3 endpoint: the domain {0:?} is not a host name; give one without scheme, port and path, as s3.example.com"
    )]
    Domain(String),
    /// A limit of nothing.
    #[error("S3 endpoint: the limit {0} must be more than 0")]
    ZeroLimit(&'static str),
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their requests outlasted [`Limits::drain`].
    pub cut: usize,
}

fn check(config: &S3Config) -> Result<Hosts, ServeError> {
    let empty =
        |found: &crate::Credential| found.access_key.is_empty() || found.secret_key.is_empty();
    match (config.anonymous, config.credentials.is_empty()) {
        (false, true) => return Err(ServeError::NoCredentials),
        (true, false) => return Err(ServeError::AnonymousWithCredentials),
        _ if config.credentials.iter().any(empty) => return Err(ServeError::EmptyCredential),
        _ => {}
    }
    let limits = &config.limits;
    let zero = [
        ("connections", limits.connections == 0),
        (
            "connections_per_address",
            limits.connections_per_address == Some(0),
        ),
        ("head_bytes", limits.head_bytes == 0),
    ];
    match zero.into_iter().find(|(_, zero)| *zero) {
        Some((name, _)) => Err(ServeError::ZeroLimit(name)),
        None => Hosts::new(&config.domains).map_err(ServeError::Domain),
    }
}

/// Serves the buckets of `engine` on `listener` until `shutdown` is ready.
///
/// Then no connection is accepted, requests in progress may end within [`Limits::drain`], and what
/// is left is cut. Dropping the future cuts everything at once.
///
/// # Errors
/// Only for a configuration that cannot be served, before anything is accepted.
pub async fn serve_s3(
    engine: Engine,
    listener: TcpListener,
    config: S3Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<Drained, ServeError> {
    let hosts = check(&config)?;
    if let Err(error) = limit_socket_buffers(&listener) {
        tracing::warn!(%error, "socket buffers keep the system's sizes; a control group's limit may be too small for them");
    }
    let uploads = open_uploads(&config, engine.clone()).await?;
    let gateway = Gateway {
        engine,
        region: config.region.as_str().into(),
        uploads: Arc::new(uploads),
    };
    let limits = config.limits.clone();
    let traffic = Arc::clone(gateway.engine.traffic());
    let server = Arc::new(Server {
        heads: HeadBytes::new(
            head_bytes(gateway.engine.budget().limit(), &limits),
            gateway.engine.clone(),
        ),
        front: Front::new(gateway, &config, hosts),
        http: http(&limits),
        tls: config.tls.clone().map(TlsAcceptor::from),
        limits,
    });
    let mut doorway = Doorway::new(listener, &config, traffic);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = doorway.next() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let (server, watcher) = (Arc::clone(&server), graceful.watcher());
        connections.spawn(server.connection(accepted, watcher));
    }
    drop(doorway);
    let drained = tokio::time::timeout(server.limits.drain, graceful.shutdown()).await;
    while connections.try_join_next().is_some() {}
    let cut = if drained.is_ok() {
        0
    } else {
        connections.len()
    };
    connections.shutdown().await;
    Ok(Drained { cut })
}

/// Bytes that all unfinished heads may take together: at least those of one, whose buffer doubles.
fn head_bytes(memory: u64, limits: &Limits) -> usize {
    let share = usize::try_from(memory / MAX_HEADS_MEMORY_DIVISOR).unwrap_or(usize::MAX);
    share.max(4 * limits.head_bytes)
}

async fn open_uploads(config: &S3Config, engine: Engine) -> Result<Uploads, ServeError> {
    let limit = config.limits.open_uploads;
    let Some(folder) = config.uploads.clone() else {
        return Ok(Uploads::new(limit, engine));
    };
    let reading = folder.clone();
    let read = tokio::task::spawn_blocking(move || Uploads::kept(limit, &reading, engine));
    read.await
        .unwrap_or_else(|error| Err(error.into()))
        .map_err(|source| ServeError::Uploads { folder, source })
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // `HeadGuard` holds heads and idle connections to their deadlines; this one is for the rest of a
    // pipelined head, whose bytes came with the request before.
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.idle + limits.head)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.body_window_bytes.max(limits.head_bytes))
        .max_headers(MAX_HEADERS);
    http
}

struct Server {
    front: Front,
    heads: Arc<HeadBytes>,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    limits: Limits,
}

impl Server {
    async fn connection(self: Arc<Self>, accepted: Accepted, watcher: Watcher) {
        let Accepted {
            socket,
            peer,
            connection,
            counted: _counted,
            permit: _permit,
        } = accepted;
        // Without it, the last segment of a response waits for the client's acknowledgement.
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
        let io = HeadGuard::new(io, Arc::clone(&connection), heads, &self.limits);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (server, unread) = (Arc::clone(&server), Arc::clone(&unread));
            connection.request_begins();
            request.extensions_mut().insert(peer);
            let _guard = ResponseGuard(Arc::clone(&connection));
            async move {
                let response = Box::pin(server.front.serve(request)).await?;
                unread.store(response.headers().contains_key(CONNECTION), Relaxed);
                Ok::<_, HttpError>(response.map(|body| ConnectionBody { body, _guard }))
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(io), service);
        if let Err(error) = watcher.watch(connection).await {
            // A client that went away, or was closed for a limit: its requests have their records.
            tracing::debug!(%error, "connection ended");
        }
    }
}
