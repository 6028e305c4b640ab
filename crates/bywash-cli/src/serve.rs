//! `bywash serve`: the S3 endpoint, the GCS endpoint and the admin endpoints over one engine.

mod admin;
mod args;
mod at_rest;
mod banner;
mod bucket_reads;
mod cluster;
mod cluster_settings;
pub(crate) mod data_dir;
pub(crate) mod databases;
mod descriptors;
mod file;
pub(crate) mod gcs;
pub(crate) mod gcs_accounts;
mod local;
mod open_uploads;
mod refuse;
mod series_bucket;
mod settings;
mod unused;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::ReadOnly;
use bywash::{DISK_THREADS, DiskOptions, Engine, EngineError, Origin, available_memory};
use bywash_cluster::{MAX_HANDSHAKES, MAX_PEER_CONNECTIONS, PortSettings};
use bywash_console::{MAX_ADMIN_CONNECTIONS, MAX_METRICS_CONNECTIONS};
use bywash_gateway::limits::{MAX_BLOCKING_THREADS, MAX_GCS_CONNECTIONS};
use bywash_gateway::{
    AccessLog, Limits, OpenUploads, S3Config, S3Endpoint, SharedState, load_tls,
    max_resident_bytes, max_socket_bytes,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::endpoint::ambient_endpoint;
use crate::failure::Failure;
use admin::{AdminListeners, admin_services};
pub(crate) use args::Args;
use at_rest::encrypted_disks;
use banner::Banner;
use cluster::{ClusterParts, RunningNode};
use data_dir::{Credentials, DataDir, Session};
use databases::Databases;
use gcs::{Connections, GcsListener, gcs_config};
use local::LocalListeners;
use refuse::{refuse_fetches_to_own_files, refuse_loop, refuse_served_secrets};
use settings::{Access, BucketSettings, LocalPlace, Settings, Transport};

/// The region reported to clients. Requests signed for another one are accepted as well.
const REGION: &str = "us-east-1";
/// Max time for requests in progress to end after a stop signal. Container runtimes kill after ten seconds.
const DRAIN_DEADLINE: Duration = Duration::from_secs(8);
/// Threads in addition to the runtime's: main, history, sweeps, logs.
const OTHER_THREADS: usize = 8;
/// Max time after that to write the blocks queued for the disk tier.
const DISK_DEADLINE: Duration = Duration::from_millis(500);
/// Max time beyond [`DRAIN_DEADLINE`] for the servers to close the connections that they cut.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let settings = Settings::load(args)?;
    // Settings are rejected before the data folder is touched.
    let tls = tls(&settings.transport)?;
    refuse_served_secrets(&settings)?;
    refuse_fetches_to_own_files(&settings)?;
    let data = open_data(&settings)?;
    let connections = max_connections(&settings);
    let Listeners {
        s3,
        gcs,
        admin,
        local,
    } = Listeners::bind(&settings).await?;
    let (engine, node) = engine_and_node(&settings, &data).await?;
    log_max_memory(&settings, engine.budget().limit(), connections);
    let (credentials, made) = credentials(&settings.access, &data)?;
    let access_log = access_log(&settings, &engine).await?;
    let mut signals = Signals::new()?;
    // Last: it takes series in a bucket from the server that writes them.
    let mut databases = Databases::open(&data, &engine, &settings).await?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", reachable(local_addr(&s3)?));
    let admin_addr = local_addr(&admin.admin)?;
    let metrics_addr = admin.metrics.as_ref().map(local_addr).transpose()?;
    let session = Session::new(&endpoint, REGION, credentials.clone());
    let gcs_url = gcs.url(scheme);
    let session = session.with_admin(admin_addr).with_gcs(gcs_url.clone());
    data.record(&session.clone().with_folders(settings.folders()))?;

    let (stop, stopped) = watch::channel(false);
    let config = S3Config {
        access_log: access_log.clone(),
        tls: tls.clone(),
        cluster_uploads: node.as_ref().map(RunningNode::uploads),
        ..s3_config(&data, &settings, credentials.as_ref(), connections.s3)
    };
    let clients = config.open_uploads.clone();
    let local_paths = local.paths();
    let serve_local = local.serve(&engine, &settings, &session, &config, stopped.clone());
    let of_gcs = gcs_config(&config, &settings, &data, connections.gcs, node.as_ref());
    // Before anything is served: a server that is ready has all that it needs.
    let s3_endpoint = S3Endpoint::open(engine.clone(), config).await;
    let s3_endpoint = s3_endpoint.map_err(|error| Failure::failed(error.to_string()))?;
    let serve_gcs = gcs.open(&engine, of_gcs, &stopped).await?;
    let serve_s3 = s3_endpoint.serve(s3, stop_asked(stopped.clone()));
    databases.record(&engine);
    let own = credentials.as_ref();
    let services = admin_services(&engine, &databases, &settings, own, clients, admin_addr)?;
    let serve_admin = admin.serve(engine.clone(), services, tls, stopped);
    let servers = Servers {
        s3: tokio::spawn(async { Ok(serve_s3.await.cut) }),
        gcs: tokio::spawn(serve_gcs),
        console: tokio::spawn(async { Ok(serve_admin.await) }),
        local: tokio::spawn(serve_local),
    };
    let banner = Banner {
        settings: &settings,
        engine: &engine,
        endpoint: &endpoint,
        gcs: gcs_url.as_deref(),
        local: &local_paths,
        admin_addr,
        metrics: metrics_addr.map(|address| format!("{scheme}://{}", reachable(address))),
        credentials: credentials.as_ref(),
        made,
    };
    banner.print();
    let unused = unused::unused(&engine, settings.idle_exit);
    let stopping = servers.until_stopped(&mut signals, &stop, node.as_ref(), unused);
    stopping.await?;
    close(&engine, databases, access_log).await;
    RunningNode::drain(node, &mut signals).await
}

fn open_data(settings: &Settings) -> Result<DataDir, Failure> {
    let (data, first_start) = DataDir::open(&settings.data_dir)?;
    if first_start {
        tracing::debug!(folder = %settings.data_dir.display(), "created the data folder");
    }
    Ok(data)
}

/// Listeners of a server.
struct Listeners {
    s3: TcpListener,
    gcs: GcsListener,
    admin: AdminListeners,
    local: LocalListeners,
}

impl Listeners {
    /// Listens, and refuses origins that are this server itself.
    async fn bind(settings: &Settings) -> Result<Self, Failure> {
        let listeners = Self {
            s3: bind("--s3-addr", settings.s3_addr).await?,
            gcs: GcsListener::bind(settings).await?,
            admin: AdminListeners::bind(settings).await?,
            local: LocalListeners::bind(&settings.local, &settings.data_dir)?,
        };
        refuse_loop(settings, local_addr(&listeners.s3)?, ambient_endpoint())?;
        listeners.gcs.refuse_loop(settings)?;
        Ok(listeners)
    }
}

/// Opens the engine, and joins the cluster with `--cluster`.
async fn engine_and_node(
    settings: &Settings,
    data: &DataDir,
) -> Result<(Engine, Option<RunningNode>), Failure> {
    let cluster = ClusterParts::join(settings, data).await?;
    let engine = engine(settings, data, cluster.as_ref())?;
    let node = cluster.map(|cluster| cluster.serve(&engine)).transpose()?;
    Ok((engine, node))
}

async fn close(engine: &Engine, databases: Databases, access_log: Option<AccessLog>) {
    close_disk(engine).await;
    databases.close().await;
    close_access_log(access_log).await;
}

/// Returns how many connections fit the limit of descriptors, which it raises.
fn max_connections(settings: &Settings) -> Connections {
    let disk = settings.disk.as_ref();
    let gcs = settings.gcs_addr.map_or(0, |_| MAX_GCS_CONNECTIONS);
    let wanted = settings.connections + gcs;
    let fitting = descriptors::connections(
        descriptors::raise_limit(),
        wanted,
        disk.map_or(0, DiskOptions::max_descriptors),
    );
    Connections::of(fitting, gcs, wanted)
}

/// Returns the server's own credentials, and whether they were made now.
fn credentials(access: &Access, data: &DataDir) -> Result<(Option<Credentials>, bool), Failure> {
    match access {
        Access::Kept => {
            let (credentials, made) = data.credentials()?;
            Ok((Some(credentials), made))
        }
        Access::Given(credentials) => Ok((Some(credentials.clone()), false)),
        Access::Anonymous => Ok((None, false)),
    }
}

fn tls(transport: &Transport) -> Result<Option<Arc<rustls::ServerConfig>>, Failure> {
    let Transport::Tls { cert, key } = transport else {
        return Ok(None);
    };
    let loaded = load_tls(cert, key).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Some(loaded))
}

async fn close_disk(engine: &Engine) {
    if !engine.close_disk(DISK_DEADLINE).await {
        tracing::warn!(
            "the last blocks could not be written to --disk in time; the origin has them"
        );
    }
}

async fn close_access_log(log: Option<AccessLog>) {
    if let Some(log) = log
        && !log.close().await
    {
        tracing::warn!("the last lines of the access log could not be written in time");
    }
}

/// Opens the configured access log. From then on SIGHUP reopens its file.
async fn access_log(settings: &Settings, engine: &Engine) -> Result<Option<AccessLog>, Failure> {
    let Some((target, format)) = settings.access_log.clone() else {
        return Ok(None);
    };
    let log = AccessLog::open(target, format, engine).await;
    let log = log.map_err(|error| Failure::failed(format!("--access-log: {error}")))?;
    let mut hangup = signal(SignalKind::hangup())
        .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))?;
    let reopened = log.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reopened.reopen();
        }
    });
    Ok(Some(log))
}

fn s3_config(
    data: &DataDir,
    settings: &Settings,
    own: Option<&Credentials>,
    connections: usize,
) -> S3Config {
    let credentials = settings.all_keys(own);
    S3Config {
        anonymous: credentials.is_empty(),
        credentials,
        region: REGION.to_owned(),
        domains: settings.domains.clone(),
        etag: settings.etag,
        limits: Limits {
            connections,
            drain: DRAIN_DEADLINE,
            connections_per_address: settings.connections_per_address,
            ..Limits::default()
        },
        trusted_proxies: settings.trusted_proxies.clone(),
        tls: None,
        access_log: None,
        uploads: Some(data.multipart()),
        cluster_uploads: None,
        public: settings.public(),
        disks: encrypted_disks(settings),
        bucket_rules: Some(data.bucket_rules()),
        open_uploads: OpenUploads::default(),
        shared: SharedState::default(),
    }
}

/// Logs the max memory of the process and its sockets, for the limit of a container.
fn log_max_memory(settings: &Settings, memory: u64, connections: Connections) {
    let disk_threads = settings.disk.as_ref().map_or(0, |_| DISK_THREADS);
    // The memory of these is charged, the memory of their sockets in the kernel is not.
    let (peers, unused) = match settings.cluster {
        Some(_) => (
            (MAX_PEER_CONNECTIONS + MAX_HANDSHAKES) as u64,
            Some(PortSettings::for_memory(memory).unused_bytes()),
        ),
        None => (0, None),
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (workers + MAX_BLOCKING_THREADS + OTHER_THREADS + disk_threads) as u64;
    let clients = connections.all() + MAX_ADMIN_CONNECTIONS + MAX_METRICS_CONNECTIONS;
    let clients = clients as u64;
    tracing::info!(
        connections = clients + peers,
        resident_bytes = max_resident_bytes(memory, threads, clients),
        socket_bytes = max_socket_bytes(clients + peers),
        unused_connection_bytes_per_node = unused,
        "max memory, without cached pages of files"
    );
}

/// Binds `address`, which the user set by `option`.
async fn bind(option: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::failed(format!(
            "{address} is in use by another program; stop it, or give another {option} (port 0 takes a free one)"
        )),
        _ => Failure::failed(format!("cannot listen on {option} {address}: {error}")),
    })
}

fn local_addr(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener
        .local_addr()
        .map_err(|error| Failure::failed(format!("a listener has no address: {error}")))
}

/// The address a client of this machine uses for a listener bound to `bound`.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let mut address = bound;
    if bound.ip().is_unspecified() {
        address.set_ip(if bound.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    address
}

fn engine(
    settings: &Settings,
    data: &DataDir,
    cluster: Option<&ClusterParts>,
) -> Result<Engine, Failure> {
    let mut builder = Engine::builder()
        .memory(settings.memory.bytes(available_memory()))
        .memory_shares(settings.memory_shares)
        .hedge(settings.hedge)
        .verify(settings.verify)
        .write_cache(settings.write_cache)
        .shared_memory(settings.local != LocalPlace::Off);
    if let Some(time) = settings.slow_eviction {
        builder = builder.slow_eviction(time);
    }
    if let Some(rounds) = settings.slow_eviction_rounds {
        builder = builder.slow_eviction_rounds(rounds);
    }
    if let Some(disk) = &settings.disk {
        builder = builder.disk(disk.clone());
    }
    if let Some(cluster) = cluster {
        builder = builder.cluster(cluster.for_engine());
    }
    if settings.buckets.is_empty() {
        builder = builder.root(data.buckets());
    }
    let engine = builder
        .build()
        .map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(age) = settings.idle_age {
        tokio::spawn(engine.evict_idle(age));
    }
    for bucket in &settings.buckets {
        let origin = origin(bucket)?;
        if let Some(cluster) = cluster {
            cluster.describe(bucket, &*origin);
        }
        engine
            .mount(&bucket.name, origin, bucket.reads)
            .map_err(|error| match error {
                EngineError::InvalidSetting { .. } => {
                    Failure::usage(format!("[[bucket]] {}: {error}", bucket.name))
                }
                EngineError::InvalidBucketName { .. } => {
                    Failure::usage(format!("{error}; name the bucket by NAME={}", bucket.url))
                }
                other => Failure::failed(other.to_string()),
            })?;
    }
    for name in &settings.made_buckets {
        match engine.create_bucket(name) {
            Ok(_) | Err(EngineError::BucketExists { .. }) => {}
            Err(error) => return Err(Failure::usage(format!("--bucket {name}: {error}"))),
        }
    }
    Ok(engine)
}

fn origin(bucket: &BucketSettings) -> Result<Arc<dyn Origin>, Failure> {
    let origin = bucket.url.open_with(&bucket.options).map_err(|error| {
        Failure::failed(format!(
            "cannot open the origin of bucket {}: {error}",
            bucket.name
        ))
    })?;
    Ok(if bucket.read_only {
        Arc::new(ReadOnly::new(origin))
    } else {
        origin
    })
}

/// Resolves at the first signal to stop.
async fn stop_asked(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender was dropped at exit, which is a stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// The signals that end a server.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    /// Returns the result of `work`, unless a signal ends the process before.
    async fn unless_any<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::select! {
            done = work => Ok(done),
            _ = self.next() => Err(Failure::interrupted()),
        }
    }
}

/// Result of a server: the number of connections it cut, or the error that ended it.
type Ended = Result<usize, String>;

/// The servers, while they run.
struct Servers {
    s3: JoinHandle<Ended>,
    gcs: JoinHandle<Ended>,
    console: JoinHandle<Ended>,
    local: JoinHandle<()>,
}

impl Servers {
    /// Serves until a signal, or until `unused` completes, then lets requests in progress end within [`DRAIN_DEADLINE`]. A
    /// second signal ends them at once.
    async fn until_stopped(
        mut self,
        signals: &mut Signals,
        stop: &watch::Sender<bool>,
        node: Option<&RunningNode>,
        unused: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let name = tokio::select! {
            name = signals.next() => name,
            () = unused => "no client for the time of --idle-exit",
            ended = &mut self.s3 => return Err(gone("S3", ended)),
            ended = &mut self.gcs => return Err(gone("GCS", ended)),
            ended = &mut self.console => return Err(gone("admin", ended)),
            refused = RunningNode::refused(node) => return Err(refused),
        };
        if let Some(node) = node {
            tracing::info!("{name}: leaving the cluster");
            signals.unless_any(node.leave()).await?;
        }
        tracing::info!("{name}: draining, at most {} s", DRAIN_DEADLINE.as_secs());
        stop.send_replace(true);
        // Its clients have no request to lose that they do not send again.
        let drained = async {
            let _ = self.local.await;
            tokio::join!(self.s3, self.gcs, self.console)
        };
        tokio::select! {
            (s3, gcs, console) = drained => match (s3, gcs, console) {
                (Ok(Ok(0)), Ok(Ok(0)), Ok(Ok(_))) => tracing::info!("all requests ended"),
                (Ok(Ok(s3)), Ok(Ok(gcs)), Ok(Ok(_))) => {
                    tracing::warn!(connections = s3 + gcs, "requests were cut off at the deadline");
                }
                (Ok(Ok(_)), Ok(Ok(_)), console) => return Err(gone("admin", console)),
                (Ok(Ok(_)), gcs, _) => return Err(gone("GCS", gcs)),
                (s3, _, _) => return Err(gone("S3", s3)),
            },
            () = tokio::time::sleep(DRAIN_DEADLINE + DRAIN_GRACE) => tracing::warn!("requests were cut off at the deadline"),
            _ = signals.next() => return Err(Failure::interrupted()),
        }
        Ok(())
    }
}

fn gone(server: &str, outcome: Result<Ended, tokio::task::JoinError>) -> Failure {
    let reason = match outcome {
        Ok(Ok(_)) => "it ended".to_owned(),
        Ok(Err(error)) => error,
        Err(error) => error.to_string(),
    };
    Failure::failed(format!("the {server} endpoint stopped: {reason}"))
}

#[cfg(test)]
mod tests;
