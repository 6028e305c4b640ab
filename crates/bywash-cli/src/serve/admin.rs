//! Listeners and services of the admin address and of the metrics address.

use std::net::SocketAddr;
use std::sync::Arc;

use bywash::Engine;
use bywash_console::{
    Access, AdminService, Console, MAX_ADMIN_CONNECTIONS, MAX_METRICS_CONNECTIONS, MetricsReader,
    admin_and_metrics,
};
use bywash_gateway::{Limits, OpenUploads, serve_http};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::data_dir::Credentials;
use super::databases::Databases;
use super::open_uploads::open_uploads;
use super::settings::Settings;
use super::{DRAIN_DEADLINE, bind, stop_asked};
use crate::failure::Failure;

/// The listeners, bound.
pub(super) struct AdminListeners {
    pub(super) admin: TcpListener,
    /// Of the metrics for others.
    pub(super) metrics: Option<TcpListener>,
}

impl AdminListeners {
    pub(super) async fn bind(settings: &Settings) -> Result<Self, Failure> {
        let admin = bind("--admin-addr", settings.admin_addr).await?;
        let metrics = match settings.metrics_addr {
            Some(address) => Some(bind("--metrics-addr", address).await?),
            None => None,
        };
        Ok(Self { admin, metrics })
    }

    /// Serves both until `stopped`, the metrics with `tls`. Returns the number of connections cut.
    pub(super) async fn serve(
        self,
        engine: Engine,
        (admin, metrics): (AdminService, AdminService),
        tls: Option<Arc<rustls::ServerConfig>>,
        stopped: watch::Receiver<bool>,
    ) -> usize {
        let serve = |listener, connections, tls, service| {
            let limits = Limits {
                connections,
                drain: DRAIN_DEADLINE,
                ..Limits::default()
            };
            let stopped = stop_asked(stopped.clone());
            serve_http(engine.clone(), listener, limits, tls, service, stopped)
        };
        let admin = serve(self.admin, MAX_ADMIN_CONNECTIONS, None, admin);
        let Some(listener) = self.metrics else {
            return admin.await.cut;
        };
        let metrics = serve(listener, MAX_METRICS_CONNECTIONS, tls, metrics);
        let (admin, metrics) = tokio::join!(admin, metrics);
        admin.cut + metrics.cut
    }
}

/// Returns the admin endpoints for a listener bound to `address`, and the metrics for any other.
pub(super) fn admin_services(
    engine: &Engine,
    databases: &Databases,
    settings: &Settings,
    credentials: Option<&Credentials>,
    clients: OpenUploads,
    address: SocketAddr,
) -> Result<(AdminService, AdminService), Failure> {
    let console = Console {
        engine: engine.clone(),
        access: credentials.map_or(Access::Anonymous, Credentials::for_console),
        series: databases.series.clone(),
        history: databases.history.clone(),
        uploads: open_uploads(&settings.data_dir, engine.clone(), clients),
        fetch_folder: settings.fetch_folder.clone(),
    };
    let keys = settings.all_keys(credentials).into_iter();
    let readers = keys.map(|key| MetricsReader {
        access_key: key.access_key,
        secret_key: key.secret_key,
        buckets: key.scope.buckets,
    });
    admin_and_metrics(console, address, readers.collect())
        .map_err(|error| Failure::usage(format!("--admin-addr: {error}")))
}
