//! Origins that change during reads, or redirect.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use bywash_sim::server::{
    Server,
    web::{Web, WebServerOptions},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[
    case!("redirect-secrets", redirect_secrets),
    case!("stale-validation", stale_validation),
    case!("torn-object", torn_object),
];

/// An address with a secret in its query that redirects to another host: that host must not receive the secret.
async fn redirect_secrets(context: &mut CaseContext) -> Result<(), CaseError> {
    let elsewhere = Arc::new(Web::new(WebServerOptions::default()));
    elsewhere.put("/file", body(context.seed, 1, 1000));
    let elsewhere_server = Server::start(Arc::<Web>::clone(&elsewhere)).await?;
    let store = Arc::new(Web::new(WebServerOptions::default()));
    let origin = Server::start(Arc::<Web>::clone(&store)).await?;
    store.redirect("/dir/key", &format!("{}/file", elsewhere_server.url()));
    let url = format!("web={}/dir?token=very-secret", origin.url());
    context.serve(Setup::default().arg(url)).await?;
    let refused = Expect::Status(&[200, 400, 403, 404, 500, 502, 503]);
    context
        .excessive("a redirect")
        .send(("GET", "/web/key", ""), &[], b"", &refused)
        .await;
    for request in elsewhere_server.take_log() {
        let text = format!("{} {:?}", request.line, request.headers);
        if text.contains("very-secret") {
            context
                .record
                .finding(format!("another host received {text}"));
        }
    }
    context
        .record
        .figure("requests of the first host", origin.take_log().len());
    Ok(())
}

/// An origin of one file. Its responses have the version at the arrival of the request and are sent after a delay.
struct SlowOrigin {
    address: SocketAddr,
    version: Arc<AtomicU64>,
    delay_ms: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for SlowOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn version_body(version: u64) -> Bytes {
    Bytes::from(format!("version {version:05}"))
}

impl SlowOrigin {
    async fn start() -> Result<Self, CaseError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (version, delay_ms) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let (seen, delay) = (Arc::clone(&version), Arc::clone(&delay_ms));
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (seen, delay) = (Arc::clone(&seen), Arc::clone(&delay));
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                        let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
                        // The state at the request's arrival, sent late. Relaxed: tests wait between changes.
                        let version = seen.load(Ordering::Relaxed);
                        let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
                        tokio::time::sleep(delay).await;
                        let body = version_body(version);
                        let matches = head
                            .to_ascii_lowercase()
                            .contains(&format!("if-none-match: \"{version}\""));
                        let status = if matches {
                            "304 Not Modified"
                        } else {
                            "200 OK"
                        };
                        let mut response = format!(
                            "HTTP/1.1 {status}\r\nETag: \"{version}\"\r\nContent-Length: {}\r\n\r\n",
                            body.len()
                        )
                        .into_bytes();
                        if !matches && !head.starts_with("HEAD") {
                            response.extend_from_slice(&body);
                        }
                        if socket.write_all(&response).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self {
            address,
            version,
            delay_ms,
            task,
        })
    }
}

/// A window of one second and a validation of six: a read that begins four seconds after the change must see it.
async fn stale_validation(context: &mut CaseContext) -> Result<(), CaseError> {
    let origin = SlowOrigin::start().await?;
    let config = format!(
        "[[bucket]]\nname = \"web\"\nurl = \"http://{}/dir\"\nconsistency = \"revalidate=1s\"\n",
        origin.address
    );
    context.serve(Setup::default().config(config)).await?;
    context
        .well_behaved()
        .get("/web/key", &version_body(1))
        .await;
    // The consistency window expires.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    origin.delay_ms.store(6000, Ordering::Relaxed);
    let mut first = context.excessive("a read that began before the change");
    let early = tokio::spawn(async move {
        let either = Expect::Status(&[200]);
        first.send(("GET", "/web/key", ""), &[], b"", &either).await
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    origin.version.store(2, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(3500)).await;
    // Later responses have no delay.
    origin.delay_ms.store(0, Ordering::Relaxed);
    context
        .well_behaved()
        .get("/web/key", &version_body(2))
        .await;
    let _ = early.await;
    context
        .well_behaved()
        .get("/web/key", &version_body(2))
        .await;
    Ok(())
}

/// Number of objects of `torn-object`.
const TORN_OBJECTS: u64 = 5;

/// Writes a file with a given modification time. Returns its inode.
fn write_aged(path: &Path, bytes: &Bytes, time: SystemTime) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::write(path, bytes)?;
    let file = std::fs::File::options().write(true).open(path)?;
    file.set_modified(time)?;
    Ok(file.metadata()?.ino())
}

/// Files of a served folder are replaced by others of equal length, time and inode: no read mixes the two.
async fn torn_object(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    let (old, new) = (
        body(context.seed, 1, 8 << 20),
        body(context.seed, 2, 8 << 20),
    );
    context.serve(Setup::default()).await?;
    let time = SystemTime::now() - Duration::from_secs(3600);
    let mut same_inode = 0;
    for number in 0..TORN_OBJECTS {
        let path = folder.join(format!("key-{number}"));
        let inode = write_aged(&path, &old, time)?;
        let range = [("range", "bytes=0-1048575")];
        let first = Expect::Bytes(old.slice(..1 << 20));
        let key = format!("/data/key-{number}");
        context
            .well_behaved()
            .send(("GET", &key, ""), &range, b"", &first)
            .await;
        // Like tar: removes the file, and its successor reuses the inode.
        std::fs::remove_file(&path)?;
        same_inode += u64::from(write_aged(&path, &new, time)? == inode);
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for number in 0..TORN_OBJECTS {
        context
            .well_behaved()
            .get(&format!("/data/key-{number}"), &new)
            .await;
    }
    context
        .record
        .figure("same inode", format!("{same_inode} of {TORN_OBJECTS}"));
    Ok(())
}
