//! Serving the endpoint of Google's storage API on a listener.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use bywash::Engine;
use rustls::ServerConfig;
use tokio::net::TcpListener;

use super::access::{Access, GcsAccount, GcsTokenKeys};
use super::endpoint::{Endpoint, EndpointHandler};
use super::sessions::Sessions;
use crate::access_log::AccessLog;
use crate::addresses::Network;
use crate::config::{Credential, ETagStyle, Limits};
use crate::http_server::{Drained, Transport, serve};
use crate::shared_state::SharedState;
use crate::uploads::ClusterUploads;

/// Settings of one endpoint of Google's storage API.
#[derive(Debug, Clone)]
pub struct GcsConfig {
    /// Accepts all requests. Otherwise each needs a token of a service account, or a signature.
    pub anonymous: bool,
    /// Keys that may sign requests, as at the S3 endpoint.
    pub credentials: Vec<Credential>,
    /// Folder of [service accounts](GcsAccount), created if missing; `None`: only the listed ones.
    pub accounts: Option<PathBuf>,
    /// Service accounts that are not in the folder, as in a cluster, where all nodes have them.
    pub listed_accounts: Vec<GcsAccount>,
    /// Keys of access tokens, in a cluster the same at all nodes. `None`: the key in the folder of accounts, or one of this process.
    pub token_keys: Option<GcsTokenKeys>,
    /// ETags of objects that are written to folders and to memory.
    pub etag: ETagStyle,
    /// Limits.
    pub limits: Limits,
    /// Proxies, exempt from [`Limits::connections_per_address`] because many clients share their addresses.
    pub trusted_proxies: Vec<Network>,
    /// Receives a record of each request. The caller calls [`AccessLog::close`] after serving.
    pub access_log: Option<AccessLog>,
    /// Serves TLS with this certificate; see [`load_tls`](crate::load_tls).
    pub tls: Option<Arc<ServerConfig>>,
    /// Folder of open uploads in parts, the same as
    /// [`S3Config::uploads`](crate::S3Config::uploads). Without one they are lost when the server
    /// ends.
    pub uploads: Option<PathBuf>,
    /// In a cluster: the state of uploads in parts that its nodes share, the same as
    /// [`S3Config::cluster_uploads`](crate::S3Config::cluster_uploads).
    pub cluster_uploads: Option<ClusterUploads>,
    /// Folder of resumable sessions, created if missing. No other server may use it.
    pub sessions: PathBuf,
    /// State shared with the other endpoints of its engine.
    pub shared: SharedState,
}

impl GcsConfig {
    /// Accepts all requests; no TLS, default limits.
    #[must_use]
    pub fn anonymous(sessions: impl Into<PathBuf>) -> Self {
        Self {
            anonymous: true,
            credentials: Vec::new(),
            accounts: None,
            listed_accounts: Vec::new(),
            token_keys: None,
            etag: ETagStyle::default(),
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            access_log: None,
            tls: None,
            uploads: None,
            cluster_uploads: None,
            sessions: sessions.into(),
            shared: SharedState::default(),
        }
    }
}

/// Why the endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcsServeError {
    /// The folder of resumable sessions is not usable.
    #[error("GCS endpoint: cannot use the folder {} of resumable sessions: {source}", folder.display())]
    Sessions {
        /// The folder.
        folder: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The folder of service accounts is not usable.
    #[error("GCS endpoint: cannot use the folder of service accounts: {0}")]
    Accounts(#[source] std::io::Error),
}

/// An endpoint of Google's storage API whose folders are open: it may be served.
pub struct GcsEndpoint {
    engine: Engine,
    transport: Transport,
    service: EndpointHandler,
}

impl std::fmt::Debug for GcsEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GcsEndpoint").finish_non_exhaustive()
    }
}

impl GcsEndpoint {
    /// Opens the folders of sessions and accounts. A damaged key of tokens is replaced, and noted in the engine.
    ///
    /// # Errors
    /// For folders that cannot be used.
    pub async fn open(engine: Engine, config: GcsConfig) -> Result<Self, GcsServeError> {
        let folder = config.sessions.clone();
        let (opened, sessions) = (folder.clone(), engine.clone());
        let limit = config.limits.open_uploads;
        let opened =
            tokio::task::spawn_blocking(move || Sessions::open(opened, limit, sessions)).await;
        let sessions = opened
            .unwrap_or_else(|error| Err(error.into()))
            .map_err(|source| GcsServeError::Sessions { folder, source })?;
        let (for_access, noted) = (config.clone(), engine.clone());
        let opened = move || Access::open(&for_access, &noted);
        let access = tokio::task::spawn_blocking(opened).await;
        let access = access
            .unwrap_or_else(|error| Err(error.into()))
            .map_err(GcsServeError::Accounts)?;
        let endpoint = Endpoint::new(engine.clone(), Arc::new(sessions), access, &config);
        let transport = Transport {
            limits: config.limits,
            tls: config.tls,
            trusted_proxies: config.trusted_proxies,
            no_room: Box::new(super::error::no_room),
            traffic: Some(Arc::clone(engine.traffic())),
        };
        Ok(Self {
            engine,
            transport,
            service: EndpointHandler::new(endpoint),
        })
    }

    /// Serves the buckets of the engine on `listener` until `shutdown` is ready.
    ///
    /// After that no connection is accepted, requests in progress have [`Limits::drain`] to end, and the rest is cut.
    /// Dropping the future cuts all connections at once.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Drained {
        serve(
            self.engine,
            listener,
            self.transport,
            self.service,
            shutdown,
        )
        .await
    }
}

/// Opens a [`GcsEndpoint`], and serves it on `listener` until `shutdown` is ready.
///
/// # Errors
/// As [`GcsEndpoint::open`], before any connection is accepted.
pub async fn serve_gcs(
    engine: Engine,
    listener: TcpListener,
    config: GcsConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<Drained, GcsServeError> {
    let endpoint = GcsEndpoint::open(engine, config).await?;
    Ok(endpoint.serve(listener, shutdown).await)
}
