//! The accept loop: connections with limits, and an orderly end.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bywash::Engine;
use http::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use s3s::HttpError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::config::{Limits, S3Config};
use crate::front::Front;
use crate::gateway::Gateway;
use crate::idle::StallGuard;
use crate::uploads::Uploads;

/// How long the loop rests after a failed accept, which mostly means no file descriptor is free.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// The most headers of a request: S3 allows 8 KiB of them, and the shortest take some 20 bytes.
const HEADERS: usize = 256;

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

fn check(config: &S3Config) -> Result<(), ServeError> {
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
        ("head_bytes", limits.head_bytes == 0),
    ];
    match zero.into_iter().find(|(_, zero)| *zero) {
        Some((name, _)) => Err(ServeError::ZeroLimit(name)),
        None => Ok(()),
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
    check(&config)?;
    let gateway = Gateway {
        engine,
        region: config.region.as_str().into(),
        uploads: Arc::new(open_uploads(&config).await?),
    };
    let server = Arc::new(Server {
        front: Front::new(gateway, &config),
        http: http(&config.limits),
        tls: config.tls.clone().map(TlsAcceptor::from),
        limits: config.limits,
    });
    let permits = Arc::new(Semaphore::new(server.limits.connections));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        // A permit first: beyond the limit, connections wait in the backlog.
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((socket, _)) => {
                let (server, watcher) = (Arc::clone(&server), graceful.watcher());
                connections.spawn(async move {
                    server.connection(socket, watcher).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
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

async fn open_uploads(config: &S3Config) -> Result<Uploads, ServeError> {
    let limit = config.limits.open_uploads;
    let Some(folder) = config.uploads.clone() else {
        return Ok(Uploads::new(limit));
    };
    let reading = folder.clone();
    let read = tokio::task::spawn_blocking(move || Uploads::kept(limit, &reading));
    read.await
        .unwrap_or_else(|error| Err(error.into()))
        .map_err(|source| ServeError::Uploads { folder, source })
}

fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // One timer covers a head that comes slowly and the time between requests.
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.body_window_bytes.max(limits.head_bytes))
        .max_headers(HEADERS);
    http
}

struct Server {
    front: Front,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    limits: Limits,
}

impl Server {
    async fn connection(self: Arc<Self>, socket: TcpStream, watcher: Watcher) {
        // Without it, the last segment of an answer waits for the client's acknowledgement.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        let unread = Arc::new(AtomicBool::new(false));
        let socket = StallGuard::new(socket, self.limits.stalled_body, Arc::clone(&unread));
        let Some(acceptor) = self.tls.clone() else {
            return self.http(socket, watcher, unread).await;
        };
        match tokio::time::timeout(self.limits.handshake, acceptor.accept(socket)).await {
            Ok(Ok(stream)) => self.http(stream, watcher, unread).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn http(
        self: Arc<Self>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        watcher: Watcher,
        unread: Arc<AtomicBool>,
    ) {
        let server = Arc::clone(&self);
        let service = service_fn(move |request| {
            let (server, unread) = (Arc::clone(&server), Arc::clone(&unread));
            async move {
                let answer = Box::pin(server.front.serve(request)).await?;
                unread.store(answer.headers().contains_key(CONNECTION), Relaxed);
                Ok::<_, HttpError>(answer)
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(io), service);
        if let Err(error) = watcher.watch(connection).await {
            // A client that went away, or was closed for a limit: its requests have their log lines.
            tracing::debug!(%error, "connection ended");
        }
    }
}
