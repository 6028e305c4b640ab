//! The local door of a server: its sockets, and origins that its clients attach.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bywash::{Bucket, Engine, EngineError};
use bywash_client::place::{DATA_DIR_SOCKET, user_socket};
use bywash_gateway::S3Config;
use bywash_local::{
    AttachError, Attacher, ListenError, Listener, LocalConfig, LocalDoor, LocalTimes,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use object_store::path::Path as StorePath;

use super::data_dir::Session;
use super::file::FileBucket;
use super::settings::{BucketSettings, LocalPlace, Settings, file_bucket};
use super::{origin, stop_asked};
use crate::endpoint::signed_address;
use crate::failure::Failure;
use crate::limits::MAX_ATTACHED_BUCKETS;

/// The sockets, bound.
pub(super) struct LocalListeners(Vec<Listener>);

impl LocalListeners {
    /// Listens in the data folder, and at the user's place or the given one.
    pub(super) fn bind(place: &LocalPlace, data_dir: &Path) -> Result<Self, Failure> {
        let failed = |error: ListenError| Failure::failed(error.to_string());
        let other = match place {
            LocalPlace::Off => return Ok(Self(Vec::new())),
            LocalPlace::At(path) => Some(Listener::bind(path).map_err(failed)?),
            LocalPlace::User => match Listener::bind(&user_socket()) {
                Ok(listener) => Some(listener),
                // A well-known place is a convenience: the data folder's socket serves as well.
                Err(error) => {
                    let socket = data_dir.join(DATA_DIR_SOCKET);
                    tracing::info!(
                        "{error}; clients of this server find it by BYWASH_LOCAL={}",
                        socket.display()
                    );
                    None
                }
            },
        };
        let own = Listener::bind(&data_dir.join(DATA_DIR_SOCKET)).map_err(failed)?;
        Ok(Self([Some(own), other].into_iter().flatten().collect()))
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let paths = self.0.iter().map(|listener| listener.path().to_owned());
        paths.collect()
    }

    /// Serves the sockets until `stopped`.
    pub(super) fn serve(
        self,
        engine: &Engine,
        settings: &Settings,
        session: &Session,
        endpoint: &S3Config,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let door = LocalDoor::new(
            engine.clone(),
            LocalConfig {
                program: env!("CARGO_PKG_VERSION").to_owned(),
                s3: session.endpoint.clone(),
                gcs: session.gcs.clone().unwrap_or_default(),
                etag: settings.etag,
                access_log: endpoint.access_log.clone(),
                shared: endpoint.shared.clone(),
                attacher: Arc::new(ServerBuckets {
                    engine: engine.clone(),
                    fixed: settings.cluster.is_some(),
                    served: settings.buckets.clone(),
                    session: session.clone(),
                    attached: Mutex::default(),
                }),
                times: LocalTimes::default(),
            },
        );
        let serves = self.0.into_iter().map(move |listener| {
            let stopped = stop_asked(stopped.clone());
            door.clone().serve(listener, stopped)
        });
        let serves: Vec<_> = serves.collect();
        async move {
            futures::future::join_all(serves).await;
        }
    }
}

/// The buckets of a server, to which local clients add.
#[derive(Debug)]
struct ServerBuckets {
    engine: Engine,
    /// Whether buckets are of the settings alone: all nodes of a cluster have the same.
    fixed: bool,
    served: Vec<BucketSettings>,
    session: Session,
    /// Buckets that clients have attached. Locked while one is mounted.
    attached: Mutex<Vec<BucketSettings>>,
}

impl ServerBuckets {
    fn mount(&self, wanted: BucketSettings, named: bool) -> Result<Bucket, Failure> {
        let mut attached = self.attached.lock();
        let is_wanted = |known: &&BucketSettings| known.same_origin(&wanted);
        let known = self.served.iter().chain(attached.iter()).find(is_wanted);
        if let Some(bucket) = known.and_then(|known| self.engine.bucket(&known.name)) {
            return Ok(bucket);
        }
        if self.fixed {
            let message = format!(
                "{}: a node of a cluster has only the buckets of its settings; add this one there, at all nodes",
                wanted.url
            );
            return Err(Failure::usage(message));
        }
        if attached.len() >= MAX_ATTACHED_BUCKETS {
            let message = format!(
                "{}: {MAX_ATTACHED_BUCKETS} origins are attached already; restart the server with fewer",
                wanted.url
            );
            return Err(Failure::usage(message));
        }
        let opened = origin(&wanted)?;
        // Another origin may have the name.
        let names = (1..).map(|number| match number {
            1 => wanted.name.clone(),
            number => format!("{}-{number}", wanted.name),
        });
        let tried = if named { 1 } else { MAX_ATTACHED_BUCKETS };
        for name in names.take(tried) {
            match self.engine.mount(&name, Arc::clone(&opened), wanted.reads) {
                Err(EngineError::BucketExists(_)) => {}
                Err(error) => return Err(Failure::usage(error.to_string())),
                Ok(bucket) => {
                    attached.push(BucketSettings { name, ..wanted });
                    return Ok(bucket);
                }
            }
        }
        let message = format!(
            "a bucket {} of another origin is there already; give this one another name",
            wanted.name
        );
        Err(Failure::usage(message))
    }
}

impl Attacher for ServerBuckets {
    fn attach(&self, address: &str, options: &[(String, String)]) -> Result<Bucket, AttachError> {
        let named = options.iter().any(|(name, _)| name == "name");
        let wanted = file_bucket(FileBucket::attached(address, options));
        let attached = wanted.and_then(|wanted| self.mount(wanted, named));
        attached.map_err(|failure| AttachError(failure.message))
    }

    fn sign(
        &self,
        bucket: &str,
        path: &StorePath,
        method: &str,
        expires: Duration,
    ) -> Option<String> {
        signed_address(&self.session, bucket, path, method, expires)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn buckets(fixed: bool) -> (ServerBuckets, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let buckets = ServerBuckets {
            engine,
            fixed,
            served: Vec::new(),
            session: Session::new("http://127.0.0.1:1", "us-east-1", None),
            attached: Mutex::default(),
        };
        (buckets, folder)
    }

    #[test]
    fn attached_origins_are_bounded_and_found_again() {
        let (buckets, folder) = buckets(false);
        let address = |name: &str| {
            let path = folder.path().join(name).join("data");
            std::fs::create_dir_all(&path).unwrap();
            format!("file://{}", path.display())
        };
        let first = buckets.attach(&address("one"), &[]).unwrap();
        assert_eq!(first.name(), "data");
        assert_eq!(buckets.attach(&address("one"), &[]).unwrap().name(), "data");
        // Another folder of the same last name.
        let second = buckets.attach(&address("two"), &[]).unwrap();
        assert_eq!(second.name(), "data-2");
        let named = [("name".to_owned(), "data".to_owned())];
        let taken = buckets.attach(&address("three"), &named).unwrap_err();
        assert!(taken.to_string().contains("another name"), "{taken}");
        let known = buckets.attached.lock()[0].clone();
        let others = (2..MAX_ATTACHED_BUCKETS).map(|number| BucketSettings {
            name: format!("other-{number}"),
            ..known.clone()
        });
        buckets.attached.lock().extend(others);
        let beyond = buckets.attach(&address("four"), &[]).unwrap_err();
        assert!(beyond.to_string().contains("1000 origins"), "{beyond}");
        assert!(buckets.attach(&address("one"), &[]).is_ok(), "it is there");
    }

    #[test]
    fn node_of_a_cluster_attaches_nothing() {
        let (buckets, _folder) = buckets(true);
        let refused = buckets.attach("memory://", &[("name".to_owned(), "mem".to_owned())]);
        assert!(refused.unwrap_err().to_string().contains("at all nodes"));
    }

    #[test]
    fn options_of_an_attached_origin_are_those_of_the_settings() {
        let (buckets, _folder) = buckets(false);
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let bucket = buckets.attach(
            "memory://",
            &[option("name", "mem"), option("read-only", "true")],
        );
        assert_eq!(bucket.unwrap().name(), "mem");
        let wrong = buckets.attach(
            "memory://",
            &[option("name", "m2"), option("consistency", "never")],
        );
        assert!(wrong.is_err());
        let anonymous = buckets.sign("mem", &StorePath::from("k"), "GET", Duration::from_secs(9));
        assert_eq!(anonymous, None, "without a key");
    }

    #[test]
    fn address_is_signed_with_the_servers_own_key() {
        let (mut buckets, _folder) = buckets(false);
        let credentials = super::super::data_dir::Credentials {
            access_key: "AKID".to_owned(),
            secret_key: "secret".to_owned(),
        };
        buckets.session = Session::new("http://127.0.0.1:1", "us-east-1", Some(credentials));
        let path = StorePath::from("a b");
        let sign = |method: &str| buckets.sign("bucket", &path, method, Duration::from_secs(60));
        let address = sign("GET").unwrap();
        assert!(
            address.starts_with("http://127.0.0.1:1/bucket/a%20b?"),
            "{address}"
        );
        assert!(
            address.contains("X-Amz-Expires=60") && address.contains("AKID"),
            "{address}"
        );
        assert_eq!(sign("PATCH"), None);
    }
}
