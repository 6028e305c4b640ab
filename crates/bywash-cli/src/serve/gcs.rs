//! The endpoint of Google's storage API in `serve`: its listener, its share of the connections, its settings.

use std::future::Future;
use std::net::SocketAddr;

use bywash::{Engine, OriginUrl};
use bywash_gateway::{GcsConfig, GcsEndpoint, Limits, S3Config};
use tokio::net::TcpListener;
use tokio::sync::watch;
use url::Url;

use super::cluster::RunningNode;
use super::data_dir::DataDir;
use super::refuse::leads_to;
use super::settings::Settings;
use super::{Ended, bind, local_addr, reachable, stop_asked};
use crate::failure::Failure;

/// The variable that points Google's clients at a server.
pub(crate) const EMULATOR_HOST: &str = "STORAGE_EMULATOR_HOST";

/// Max connections of each endpoint for objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connections {
    pub(super) s3: usize,
    pub(super) gcs: usize,
}

impl Connections {
    /// Divides `fitting` connections as `gcs` of `wanted` ones are for the GCS endpoint, at least one if any.
    pub(super) fn of(fitting: usize, gcs: usize, wanted: usize) -> Self {
        let share = (fitting * gcs / wanted.max(1)).max(usize::from(gcs > 0));
        Self {
            s3: fitting.saturating_sub(share).max(1),
            gcs: share,
        }
    }

    pub(super) fn all(self) -> usize {
        self.s3 + self.gcs
    }
}

/// The listener, unless the endpoint is off.
pub(super) struct GcsListener(Option<(TcpListener, SocketAddr)>);

impl GcsListener {
    pub(super) async fn bind(settings: &Settings) -> Result<Self, Failure> {
        let Some(address) = settings.gcs_addr else {
            return Ok(Self(None));
        };
        let listener = bind("--gcs-addr", address).await?;
        let address = local_addr(&listener)?;
        Ok(Self(Some((listener, address))))
    }

    /// The URL for clients of this machine.
    pub(super) fn url(&self, scheme: &str) -> Option<String> {
        let (_, address) = self.0.as_ref()?;
        Some(format!("{scheme}://{}", reachable(*address)))
    }

    /// Rejects this endpoint as the server's own origin.
    pub(super) fn refuse_loop(&self, settings: &Settings) -> Result<(), Failure> {
        let ambient = std::env::var(EMULATOR_HOST).ok();
        match &self.0 {
            Some((_, own)) => refuse_own(settings, *own, ambient.as_deref()),
            None => Ok(()),
        }
    }

    /// Opens the folders of the endpoint. The result serves until a stop; without the endpoint, it
    /// waits for it.
    pub(super) async fn open(
        self,
        engine: &Engine,
        config: GcsConfig,
        stopped: &watch::Receiver<bool>,
    ) -> Result<impl Future<Output = Ended> + Send + use<>, Failure> {
        let endpoint = match self.0 {
            Some((listener, _)) => {
                let opened = GcsEndpoint::open(engine.clone(), config).await;
                Some((
                    opened.map_err(|error| Failure::failed(error.to_string()))?,
                    listener,
                ))
            }
            None => None,
        };
        let stop = stop_asked(stopped.clone());
        Ok(async move {
            match endpoint {
                Some((endpoint, listener)) => Ok(endpoint.serve(listener, stop).await.cut),
                None => {
                    stop.await;
                    Ok(0)
                }
            }
        })
    }
}

/// Rejects a gs:// origin that would send its requests to this server's own GCS endpoint. `ambient`: the emulator's host.
fn refuse_own(settings: &Settings, own: SocketAddr, ambient: Option<&str>) -> Result<(), Failure> {
    let Some(host) = ambient.filter(|host| !host.is_empty()) else {
        return Ok(());
    };
    let url = if host.contains("://") {
        Url::parse(host)
    } else {
        Url::parse(&format!("http://{host}"))
    };
    let is_own = url.is_ok_and(|url| leads_to(&url, own));
    let mut buckets = settings.buckets.iter();
    match buckets.find(|bucket| matches!(bucket.url, OriginUrl::Gcs { .. })) {
        Some(bucket) if is_own => Err(Failure::usage(format!(
            "{EMULATOR_HOST} is {host}, this server's own --gcs-addr: {} would be read from itself. Unset it (env -u \
             {EMULATOR_HOST} bywash serve ...) for Google's storage; the lines of `bywash env --gcs` belong in the shell of the \
             clients",
            bucket.url
        ))),
        _ => Ok(()),
    }
}

/// The settings of the endpoint: the settings of the S3 endpoint, as far as they apply. `node`: in
/// a cluster, which has its accounts in the settings alone.
pub(super) fn gcs_config(
    s3: &S3Config,
    settings: &Settings,
    data: &DataDir,
    connections: usize,
    node: Option<&RunningNode>,
) -> GcsConfig {
    GcsConfig {
        anonymous: s3.anonymous,
        credentials: s3.credentials.clone(),
        accounts: node.is_none().then(|| data.gcs_accounts()),
        listed_accounts: settings.gcs_accounts.clone(),
        token_keys: node.map(RunningNode::token_keys),
        etag: s3.etag,
        limits: Limits {
            connections,
            ..s3.limits.clone()
        },
        trusted_proxies: s3.trusted_proxies.clone(),
        access_log: s3.access_log.clone(),
        tls: s3.tls.clone(),
        uploads: s3.uploads.clone(),
        cluster_uploads: s3.cluster_uploads.clone(),
        sessions: data.gcs_sessions(),
        shared: s3.shared.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::Args;
    use crate::serve::file::FileSettings;

    #[test]
    fn connections_are_divided_by_the_wanted_ones() {
        for (fitting, gcs, s3) in [(1152, 128, 1024), (576, 64, 512), (2, 1, 1), (1, 1, 1)] {
            let found = Connections::of(fitting, 128, 1152);
            assert_eq!((found.gcs, found.s3), (gcs, s3), "{fitting}");
        }
        let off = Connections::of(1024, 0, 1024);
        assert_eq!((off.gcs, off.s3, off.all()), (0, 1024, 1024));
    }

    #[test]
    fn own_endpoint_as_origin_is_refused() {
        let args = Args {
            origins: vec!["gs://data".to_owned()],
            ..Args::default()
        };
        let settings = Settings::merge(args, FileSettings::default()).unwrap();
        let own: SocketAddr = "127.0.0.1:8421".parse().unwrap();
        for host in ["127.0.0.1:8421", "http://127.0.0.1:8421"] {
            let failure = refuse_own(&settings, own, Some(host)).unwrap_err();
            assert!(
                failure.message.contains(EMULATOR_HOST),
                "{}",
                failure.message
            );
        }
        assert!(refuse_own(&settings, own, Some("http://127.0.0.1:9")).is_ok());
        assert!(refuse_own(&settings, own, None).is_ok());
    }
}
