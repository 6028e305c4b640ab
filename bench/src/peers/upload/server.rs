//! The store of `peers upload`: takes resumable uploads and plain PUTs, keeps their lengths and throws their bytes away.
//!
//! It implements the part of the resumable protocol that clients of Google's JSON API need, and returns the checksum it was
//! sent: computing it would take processor time from the clients.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, LOCATION, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Failure;

/// Max bytes that a connection reads at once. Large, so that the store takes little processor time.
const READ_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
struct Session {
    name: String,
    kept: u64,
}

#[derive(Debug, Default)]
struct Store {
    sessions: Mutex<HashMap<String, Session>>,
}

/// Prints its address, and serves until killed.
pub(crate) fn run() -> Result<(), Failure> {
    let store = Arc::new(Store::default());
    crate::runtime()?.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        println!("ready {address}");
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let service = service_fn(|request| respond(Arc::clone(&store), address, request));
                let mut connection = hyper::server::conn::http1::Builder::new();
                connection.max_buf_size(READ_BYTES);
                // A disconnect of a client is no failure of the store.
                let _ = connection
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    })
}

type StoreResponse = Result<Response<Full<Bytes>>, Failure>;

async fn respond(
    store: Arc<Store>,
    address: SocketAddr,
    request: Request<Incoming>,
) -> StoreResponse {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    let range = request.headers().get(CONTENT_RANGE).cloned();
    let hash = request.headers().get("x-goog-hash").cloned();
    let method = request.method().clone();
    let begins = method == Method::POST && parameter("upload_id").is_none();
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    // Metadata may contain the name; other bytes are only counted.
    let (mut taken, mut head) = (0_u64, Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            if begins {
                head.extend_from_slice(&data);
            }
            taken += data.len() as u64;
        }
    }
    if parameter("uploadType").as_deref() == Some("multipart") {
        // An object with its metadata in one request: Python's client sends it below 8 MiB.
        return object("multipart", taken, None, &path);
    }
    if begins {
        return store.begin(address, parameter("name"), &head);
    }
    let Some(id) = parameter("upload_id") else {
        let response = Response::builder().header(ETAG, "\"plain\"");
        return Ok(response.body(Full::default())?);
    };
    let mut sessions = store.sessions.lock().map_err(|error| error.to_string())?;
    let session = sessions.get_mut(&id).ok_or("no such session")?;
    session.kept += taken;
    let whole = range.as_ref().is_none_or(|range| {
        let range = range.to_str().unwrap_or_default();
        range
            .rsplit_once('/')
            .is_some_and(|(_, total)| total.parse() == Ok(session.kept))
    });
    if whole {
        return object(&session.name, session.kept, hash.as_ref(), &path);
    }
    let response = Response::builder()
        .status(StatusCode::PERMANENT_REDIRECT)
        .header(RANGE, format!("bytes=0-{}", session.kept.saturating_sub(1)));
    Ok(response.body(Full::default())?)
}

impl Store {
    fn begin(&self, address: SocketAddr, name: Option<String>, metadata: &[u8]) -> StoreResponse {
        let given = || {
            let metadata: serde_json::Value = serde_json::from_slice(metadata).ok()?;
            Some(metadata.get("name")?.as_str()?.to_owned())
        };
        let name = name.or_else(given).ok_or("an upload without a name")?;
        let mut sessions = self.sessions.lock().map_err(|error| error.to_string())?;
        let id = format!("{}", sessions.len());
        let location = format!(
            "http://{address}/upload/storage/v1/b/bench/o?uploadType=resumable&upload_id={id}"
        );
        sessions.insert(id, Session { name, kept: 0 });
        let response = Response::builder().header(LOCATION, location);
        Ok(response.body(Full::default())?)
    }
}

/// Returns the object as in the JSON API, with the announced checksum.
fn object(
    name: &str,
    size: u64,
    hash: Option<&hyper::header::HeaderValue>,
    path: &str,
) -> StoreResponse {
    let mut object = serde_json::json!({
        "kind": "storage#object", "bucket": "bench", "name": name, "size": size.to_string(), "generation": "1",
        "metageneration": "1", "etag": "CAE=", "id": format!("bench/{name}/1"), "selfLink": path,
        "timeCreated": "2026-01-01T00:00:00.000Z", "updated": "2026-01-01T00:00:00.000Z",
    });
    let crc32c = hash.and_then(|hash| {
        hash.to_str()
            .ok()?
            .split("crc32c=")
            .nth(1)
            .map(str::to_owned)
    });
    if let Some(crc32c) = crc32c {
        object["crc32c"] = crc32c.split(',').next().unwrap_or_default().into();
    }
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    Ok(response.body(Full::from(object.to_string()))?)
}
