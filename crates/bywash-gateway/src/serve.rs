//! Serving the S3 endpoint on a listener.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use bywash::Engine;
use tokio::net::TcpListener;

use crate::bucket_rules::AllRules;
use crate::config::S3Config;
use crate::gateway::Gateway;
use crate::host::Hosts;
use crate::http_server::{Drained, Transport, serve};
use crate::middleware::{Middleware, S3Handler};
use crate::record::RequestIds;
use crate::response;
use crate::uploads::Uploads;

/// Why an endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No client could authenticate.
    #[error(
        "S3 endpoint: no credentials; give an access key and a secret key, or serve anonymously"
    )]
    NoCredentials,
    /// A key that cannot sign.
    #[error("S3 endpoint: an access key or secret key is empty; give both")]
    EmptyCredential,
    /// Credentials that would be ignored.
    #[error("S3 endpoint: credentials and anonymous access exclude each other; give one")]
    AnonymousWithCredentials,
    /// The folder of open multipart uploads is not usable.
    #[error("S3 endpoint: cannot use the folder {} of open multipart uploads: {source}", folder.display())]
    Uploads {
        /// The folder.
        folder: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The folder of ACLs and rules of buckets is not usable.
    #[error("S3 endpoint: cannot use the folder of bucket rules: {0}")]
    BucketRules(#[source] std::io::Error),
    /// A domain that cannot have bucket names below it.
    #[error(
        "S3 endpoint: the domain {0:?} is not a host name; give one without scheme, port and path, as s3.example.com"
    )]
    Domain(String),
    /// A limit of zero.
    #[error("S3 endpoint: the limit {0} must be more than 0")]
    ZeroLimit(&'static str),
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

/// An S3 endpoint whose folders are open: it may be served.
pub struct S3Endpoint {
    engine: Engine,
    transport: Transport,
    service: S3Handler,
}

impl std::fmt::Debug for S3Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Endpoint").finish_non_exhaustive()
    }
}

impl S3Endpoint {
    /// Checks the configuration, and opens the folders of uploads and rules. Damaged files in them are noted in the engine, and stop
    /// nothing else.
    ///
    /// # Errors
    /// For an invalid configuration, and folders that cannot be used.
    pub async fn open(engine: Engine, config: S3Config) -> Result<Self, ServeError> {
        let hosts = check(&config)?;
        let uploads = open_uploads(&config, &engine).await?;
        config.open_uploads.show(&uploads);
        let rules = Arc::new(open_rules(&config, &engine).await?);
        config.shared.keep(&rules);
        let gateway = Gateway {
            engine: engine.clone(),
            region: config.region.as_str().into(),
            uploads,
            rules,
            etag: config.etag,
            tls: config.tls.is_some(),
        };
        let service = S3Handler::new(Middleware::new(gateway, &config, hosts));
        let ids = RequestIds::new();
        let transport = Transport {
            limits: config.limits,
            tls: config.tls,
            trusted_proxies: config.trusted_proxies,
            no_room: Box::new(move || response::no_room(ids.next())),
            traffic: Some(Arc::clone(engine.traffic())),
        };
        Ok(Self {
            engine,
            transport,
            service,
        })
    }

    /// Serves the buckets of the engine on `listener` until `shutdown` is ready.
    ///
    /// After that no connection is accepted, requests in progress have [`Limits::drain`](crate::Limits::drain) to end,
    /// and the rest is cut. Dropping the future cuts all connections at once.
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

/// Opens an [`S3Endpoint`], and serves it on `listener` until `shutdown` is ready.
///
/// # Errors
/// As [`S3Endpoint::open`], before any connection is accepted.
pub async fn serve_s3(
    engine: Engine,
    listener: TcpListener,
    config: S3Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<Drained, ServeError> {
    let endpoint = S3Endpoint::open(engine, config).await?;
    Ok(endpoint.serve(listener, shutdown).await)
}

async fn open_rules(config: &S3Config, engine: &Engine) -> Result<AllRules, ServeError> {
    let (folder, public) = (config.bucket_rules.clone(), config.public.clone());
    let engine = engine.clone();
    let read = tokio::task::spawn_blocking(move || AllRules::open(engine, folder, public));
    let rules = read.await.unwrap_or_else(|error| Err(error.into()));
    let rules = rules.map_err(ServeError::BucketRules)?;
    Ok(rules.with_disks(config.disks.clone()))
}

async fn open_uploads(config: &S3Config, engine: &Engine) -> Result<Arc<Uploads>, ServeError> {
    let (folder, limit) = (config.uploads.as_ref(), config.limits.open_uploads);
    let cluster = config.cluster_uploads.clone();
    let opened = config.shared.uploads(engine, cluster, folder, limit).await;
    opened.map_err(|source| ServeError::Uploads {
        folder: folder.cloned().unwrap_or_default(),
        source,
    })
}
