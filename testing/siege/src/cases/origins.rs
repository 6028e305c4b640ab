//! Origins that lie, change under a reader's feet, or pack what they send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use bywash_sim::server::{
    FaultPlan, Lie, Server,
    s3::S3,
    web::{Manners, Web},
};
use bywash_support::http;
use bywash_support::sign::{Signer, borrow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::raw::ask;
use super::{Case, case};
use crate::Trouble;
use crate::client::Expect;
use crate::field::{Field, body};
use crate::process::Setup;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("lying-origin", lying_origin),
    case!("packed-ranges", packed_ranges),
    case!("redirect-secrets", redirect_secrets),
    case!("stale-validation", stale_validation),
    case!("torn-object", torn_object),
];

/// Bytes of an object of an origin: several blocks.
const LARGE: usize = 3_000_000;

/// Lies that nothing contradicts: an origin that sends these bytes with a tag of their own has this object, as far as anyone
/// can know.
const BEYOND_DOUBT: [Lie; 1] = [Lie::TwoVersions];

fn s3_setup(url: &str) -> Setup {
    Setup::default()
        .arg("data=s3://data")
        .env("AWS_ENDPOINT_URL", url)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "origin")
        .env("AWS_SECRET_ACCESS_KEY", "origin")
        .env("AWS_REGION", "us-east-1")
}

/// Reads a range while the origin lies: the right bytes, an error, or a response that is cut.
async fn read_lied(
    address: SocketAddr,
    path: &str,
    object: &Bytes,
    range: Range<usize>,
    lie: Lie,
) -> End {
    let header = format!("bytes={}-{}", range.start, range.end - 1);
    let extra = [("range", header.as_str())];
    let (headers, _) = Signer::default().headers("GET", path, "", "UNSIGNED-PAYLOAD", &extra);
    let headers = borrow(&headers);
    let request = http::head("GET", path, &headers);
    let time = Duration::from_secs(4);
    match ask(address, "GET", request.as_bytes(), time).await {
        Ok(reply) if matches!(reply.status, 200 | 206) => {
            if reply.body == object[range] {
                return End::Right;
            }
            let (bytes, name) = (reply.body.len(), lie.name());
            End::Wrong(format!(
                "{bytes} bytes of {header} from an origin that tells {name}"
            ))
        }
        Ok(reply) => End::Failed(reply.status.to_string()),
        Err(error) => End::Failed(error.to_string()),
    }
}

/// Every lie of the simulated store, each told by an origin of its own: each read is right, or an error; and right when the
/// origin is honest again.
async fn lying_origin(field: &mut Field) -> Result<(), Trouble> {
    let seed = field.seed;
    let object = body(seed, 1, LARGE);
    let (mut config, mut origins) = (String::new(), Vec::new());
    for &lie in Lie::ALL.iter().filter(|lie| !BEYOND_DOUBT.contains(lie)) {
        let store = S3::new();
        let bytes = object.clone();
        let _ = store
            .objects()
            .put("data", "key", bytes, BTreeMap::new(), |_| true);
        let origin = Server::start(store).await?;
        config.push_str(&format!(
            "[[bucket]]\nname = \"{}\"\nurl = \"s3://data\"\noptions = {{ endpoint = \"{}\", allow_http = \"true\", \
             region = \"us-east-1\", access_key_id = \"a\", secret_access_key = \"b\" }}\n",
            lie.name(),
            origin.url()
        ));
        origins.push((lie, Arc::new(origin)));
    }
    field.serve(Setup::default().config(config)).await?;
    let origins = Arc::new(origins);
    let address = field.address();
    let believed = field
        .crowd(origins.len() as u64, |number| {
            let (origins, object) = (Arc::clone(&origins), object.clone());
            let (mut well, record) = (field.well(), Arc::clone(&field.record));
            async move {
                let (lie, origin) = &origins[number as usize];
                let path = format!("/{}/key", lie.name());
                // The version is known before the lies begin.
                let known = Expect::Status(&[200]);
                well.send(("HEAD", &path, ""), &[], b"", &known).await;
                origin.plan(FaultPlan::lying(seed ^ number, &[*lie], 0.7));
                let mut believed = false;
                for range in [0..100_000, 1_500_000..1_600_000, 0..LARGE] {
                    let end = read_lied(address, &path, &object, range, *lie).await;
                    believed |= matches!(end, End::Wrong(_));
                    record.request(Class::Past("a lying origin"), end);
                }
                origin.plan(FaultPlan::calm());
                // What a window still holds of a lie is given time to pass.
                tokio::time::sleep(Duration::from_millis(1500)).await;
                well.get(&path, &object).await;
                believed.then(|| lie.name())
            }
        })
        .await;
    let believed: Vec<_> = believed.into_iter().flatten().collect();
    field.record.figure("lies", origins.len());
    if !believed.is_empty() {
        field.record.figure("believed", believed.join(" "));
    }
    Ok(())
}

/// A proxy before the origin packs each ranged answer, and says so in a header that the whole did not have.
async fn packed_ranges(field: &mut Field) -> Result<(), Trouble> {
    let store = S3::new();
    let seed = field.seed;
    for number in 0..4 {
        let key = format!("{number}");
        let bytes = body(seed, number, LARGE);
        let _ = store
            .objects()
            .put("data", &key, bytes, BTreeMap::new(), |_| true);
    }
    let origin = Server::start(Arc::<S3>::clone(&store)).await?;
    field.serve(s3_setup(&origin.url())).await?;
    let lies = [
        Lie::Gzip,
        Lie::GzipChunked,
        Lie::GzipUnnamed,
        Lie::GzipChunkedUnnamed,
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        origin.plan(FaultPlan::lying(seed, &[lie], 1.0));
        let mut client = field.past("a lying origin");
        let path = format!("/data/{number}");
        let headers = [("range", "bytes=100000-199999")];
        let expect = Expect::Bytes(body(seed, number as u64, LARGE).slice(100_000..200_000));
        let asked = client.send(("GET", &path, ""), &headers, b"", &expect);
        // Tried again by the server for some time; an error or a cut response is right.
        let _ = tokio::time::timeout(Duration::from_secs(4), asked).await;
    }
    origin.plan(FaultPlan::calm());
    for number in 0..4 {
        field
            .well()
            .get(&format!("/data/{number}"), &body(seed, number, LARGE))
            .await;
    }
    Ok(())
}

/// An address with a secret in its query that redirects to another host: that host learns nothing of it.
async fn redirect_secrets(field: &mut Field) -> Result<(), Trouble> {
    let elsewhere = Arc::new(Web::new(Manners::default()));
    elsewhere.put("/file", body(field.seed, 1, 1000));
    let elsewhere_server = Server::start(Arc::<Web>::clone(&elsewhere)).await?;
    let store = Arc::new(Web::new(Manners::default()));
    let origin = Server::start(Arc::<Web>::clone(&store)).await?;
    store.redirect("/dir/key", &format!("{}/file", elsewhere_server.url()));
    let url = format!("web={}/dir?token=very-secret", origin.url());
    field.serve(Setup::default().arg(url)).await?;
    let refused = Expect::Status(&[200, 400, 403, 404, 500, 502, 503]);
    field
        .past("a redirect")
        .send(("GET", "/web/key", ""), &[], b"", &refused)
        .await;
    for request in elsewhere_server.take_log() {
        let text = format!("{} {:?}", request.line, request.headers);
        if text.contains("very-secret") {
            field.record.found(format!("another host was sent {text}"));
        }
    }
    field
        .record
        .figure("requests of the first host", origin.take_log().len());
    Ok(())
}

/// An origin of one file that changes at each request's arrival if asked to, and responds a while later.
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
    async fn start() -> Result<Self, Trouble> {
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
                        // The state of the moment the request came, sent late. Relaxed: tests wait between changes.
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

/// A window of one second, and a validation that takes six: a read that begins four seconds after the change sees it.
async fn stale_validation(field: &mut Field) -> Result<(), Trouble> {
    let origin = SlowOrigin::start().await?;
    let config = format!(
        "[[bucket]]\nname = \"web\"\nurl = \"http://{}/dir\"\nconsistency = \"revalidate=1s\"\n",
        origin.address
    );
    field.serve(Setup::default().config(config)).await?;
    field.well().get("/web/key", &version_body(1)).await;
    // The window of what is known passes.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    origin.delay_ms.store(6000, Ordering::Relaxed);
    let mut first = field.past("it began before the change");
    let early = tokio::spawn(async move {
        let either = Expect::Status(&[200]);
        first.send(("GET", "/web/key", ""), &[], b"", &either).await
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    origin.version.store(2, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(3500)).await;
    // What is asked from now on is answered at once.
    origin.delay_ms.store(0, Ordering::Relaxed);
    field.well().get("/web/key", &version_body(2)).await;
    let _ = early.await;
    field.well().get("/web/key", &version_body(2)).await;
    Ok(())
}

/// A file of a served folder is replaced by another of its size, time and inode: no read mixes the two.
async fn torn_object(field: &mut Field) -> Result<(), Trouble> {
    let folder = field.bucket("data")?;
    let path = folder.join("key");
    let (old, new) = (body(field.seed, 1, 8 << 20), body(field.seed, 2, 8 << 20));
    field.serve(Setup::default()).await?;
    let time = std::time::SystemTime::now() - Duration::from_secs(3600);
    let mut same_inode = 0;
    for round in 0..5 {
        let key = format!("/data/key-{round}");
        let path = path.with_file_name(format!("key-{round}"));
        std::fs::write(&path, &old)?;
        std::fs::File::options()
            .write(true)
            .open(&path)?
            .set_modified(time)?;
        let inode = |path: &std::path::Path| -> std::io::Result<u64> {
            use std::os::unix::fs::MetadataExt;
            Ok(std::fs::metadata(path)?.ino())
        };
        let before = inode(&path)?;
        let range = [("range", "bytes=0-1048575")];
        let first = Expect::Bytes(old.slice(..1 << 20));
        field
            .well()
            .send(("GET", &key, ""), &range, b"", &first)
            .await;
        // As tar does: the file goes, and its successor gets the freed inode.
        std::fs::remove_file(&path)?;
        std::fs::write(&path, &new)?;
        std::fs::File::options()
            .write(true)
            .open(&path)?
            .set_modified(time)?;
        same_inode += u64::from(inode(&path)? == before);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        field.well().get(&key, &new).await;
    }
    field
        .record
        .figure("same inode", format!("{same_inode} of 5"));
    Ok(())
}
