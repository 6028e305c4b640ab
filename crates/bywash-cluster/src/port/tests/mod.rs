//! The port over real sockets of this machine.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::Engine;
use bywash::cluster::{CurrentVersion, PeerBody, PeerRead};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use object_store::path::Path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::etcd::ClusterName;
use crate::message::{PeerRequest, PeerResponse};
use crate::names::{Boot, Key, NodeId};
use crate::transport::{PeerAddress, PeerError, PeerService, PeerTransport as _};

mod calls;
mod connections;
mod encoding;
mod memory;
mod refusals;
mod streams;

type Response = PeerResponse<CurrentVersion>;
/// Of each block stream.
const RATE: u32 = 258;

type ByteStream = BoxStream<'static, object_store::Result<Bytes>>;
type Respond = Box<dyn Fn(PeerRequest) -> BoxFuture<'static, Response> + Send + Sync>;
type Read =
    Box<dyn Fn(PeerRead) -> BoxFuture<'static, Result<ByteStream, PeerError>> + Send + Sync>;

const SERVER: NodeId = NodeId(1);
const SERVER_BOOT: Boot = Boot(11);
const CLIENT: NodeId = NodeId(2);
const PATIENCE: Duration = Duration::from_secs(5);

/// Responses that a test chooses, and the calls of the port.
struct Service {
    respond: Respond,
    read: Read,
    calls: Mutex<Vec<(NodeId, PeerRequest)>>,
    reads: Mutex<Vec<(NodeId, PeerRead, bool)>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    fn new() -> Self {
        Self {
            respond: Box::new(|_| async { PeerResponse::Done }.boxed()),
            read: Box::new(|_| async { Err(PeerError::Absent) }.boxed()),
            calls: Mutex::default(),
            reads: Mutex::default(),
        }
    }

    fn responding(
        respond: impl Fn(PeerRequest) -> BoxFuture<'static, Response> + Send + Sync + 'static,
    ) -> Self {
        Self {
            respond: Box::new(respond),
            ..Self::new()
        }
    }

    fn reading(
        read: impl Fn(PeerRead) -> BoxFuture<'static, Result<ByteStream, PeerError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            read: Box::new(read),
            ..Self::new()
        }
    }

    fn executed(&self) -> usize {
        self.calls.lock().unwrap().len() + self.reads.lock().unwrap().len()
    }
}

#[async_trait]
impl PeerService for Service {
    async fn respond(&self, from: NodeId, requests: Vec<PeerRequest>) -> Vec<Response> {
        let mut responses = Vec::new();
        for request in requests {
            self.calls.lock().unwrap().push((from, request.clone()));
            responses.push((self.respond)(request).await);
        }
        responses
    }

    async fn read(
        &self,
        from: NodeId,
        wanted: PeerRead,
        peek: bool,
    ) -> Result<PeerBody, PeerError> {
        self.reads
            .lock()
            .unwrap()
            .push((from, wanted.clone(), peek));
        let bytes = (self.read)(wanted).await?;
        Ok(PeerBody { rate: RATE, bytes })
    }

    fn is_current(&self, boot: Boot) -> bool {
        boot == SERVER_BOOT
    }
}

/// A port that serves.
struct Running {
    address: PeerAddress,
    service: Arc<Service>,
    identity: Arc<PeerIdentity>,
    stop: oneshot::Sender<()>,
    /// Connections that were cut.
    ended: JoinHandle<usize>,
}

fn settings() -> PortSettings {
    PortSettings {
        alive: Duration::from_millis(5),
        // Machines of tests are busy.
        connect: Duration::from_secs(5),
        handshake: Duration::from_secs(5),
        ..PortSettings::DEFAULT
    }
}

fn key(number: u8) -> ClusterKey {
    ClusterKey::parse(&format!("{:02x}{}", number, "5a".repeat(31))).unwrap()
}

fn keys(numbers: &[u8]) -> ClusterKeys {
    ClusterKeys::new(numbers.iter().copied().map(key).collect()).unwrap()
}

fn address(port: u16) -> PeerAddress {
    PeerAddress {
        node: SERVER,
        boot: SERVER_BOOT,
        address: format!("127.0.0.1:{port}"),
    }
}

/// An engine with nothing else in its budget.
fn engine() -> Engine {
    Engine::builder().memory(64 << 20).build().unwrap()
}

async fn start_with(service: Service, keys: &ClusterKeys, settings: PortSettings) -> Running {
    start_in(&engine(), service, keys, settings).await
}

/// Starts a port that charges its memory to this engine.
async fn start_in(
    engine: &Engine,
    service: Service,
    keys: &ClusterKeys,
    settings: PortSettings,
) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = address(listener.local_addr().unwrap().port());
    let cluster = ClusterName::new("test").unwrap();
    let identity = Arc::new(PeerIdentity::new(cluster, SERVER));
    let service = Arc::new(service);
    let shared: Arc<dyn PeerService> = Arc::<Service>::clone(&service);
    let memory = PeerMemory::new(engine, &settings);
    let port = PeerPort::new(Arc::clone(&identity), keys, shared, &memory, settings).unwrap();
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(port.serve(listener, async {
        let _ = stopped.await;
    }));
    Running {
        address,
        service,
        identity,
        stop,
        ended,
    }
}

async fn start(service: Service) -> Running {
    start_with(service, &keys(&[1]), settings()).await
}

fn client_with(cluster: &str, keys: &ClusterKeys, settings: PortSettings) -> PeerClient {
    let cluster = ClusterName::new(cluster).unwrap();
    let identity = PeerIdentity::new(cluster, CLIENT);
    identity.set_boot(Some(Boot(22)));
    PeerClient::new(Arc::new(identity), keys, settings).unwrap()
}

fn client() -> PeerClient {
    client_with("test", &keys(&[1]), settings())
}

fn drop_request() -> PeerRequest {
    PeerRequest::Drop {
        key: Key::new("b", "k"),
    }
}

async fn call(client: &PeerClient, to: &PeerAddress) -> Result<Response, PeerError> {
    let responses = client.call(to, vec![drop_request()], &|| ()).await;
    responses.map(|mut responses| responses.remove(0))
}

/// A read of the first `length` bytes of an object.
fn wanted(length: u64) -> PeerRead {
    PeerRead {
        bucket: "b".to_owned(),
        path: Path::from("a/b"),
        e_tag: "\"1\"".to_owned(),
        size: length.max(1),
        range: 0..length,
        age: None,
    }
}

async fn read(client: &PeerClient, to: &PeerAddress, length: u64) -> Result<ByteStream, PeerError> {
    let found = client.read(to, &wanted(length), false, PATIENCE).await;
    found.map(|found| found.bytes)
}

/// All bytes of a stream, or its first error.
async fn collect(mut stream: ByteStream) -> object_store::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

/// Serves any one request with this body, and closes the connection.
async fn raw_server(body: Vec<u8>) -> PeerAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = TlsAcceptor::from(tls::server_config(&keys(&[1])).unwrap());
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = tls.accept(socket).await.unwrap();
        read_request(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nbywash-protocol: 2\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        stream.shutdown().await.unwrap();
        // Until the client has closed, so that it reads all.
        let _ = stream.read(&mut [0]).await;
    });
    address(port)
}

/// Reads a request whose body is a JSON list or object.
async fn read_request(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"}") && !bytes.ends_with(b"]") {
        let read = stream.read_buf(&mut bytes).await.unwrap();
        assert!(read > 0, "the request ends early");
    }
}

/// Sends bytes over TLS with a cluster key, and returns all bytes received.
async fn raw_exchange(port: &Running, bytes: &[u8]) -> String {
    let mut stream = raw_connection(port).await;
    stream.write_all(bytes).await.unwrap();
    let mut response = Vec::new();
    // The server may close without reading all of a refused request.
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

/// A connection over TLS with a cluster key.
async fn raw_connection(port: &Running) -> tokio_rustls::client::TlsStream<TcpStream> {
    let config = Arc::new(tls::client_config(&keys(&[1])).unwrap());
    let socket = TcpStream::connect(&port.address.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("node").unwrap();
    let connector = tokio_rustls::TlsConnector::from(config);
    connector.connect(name, socket).await.unwrap()
}

/// A request as a node would send it, with `change` made to its head.
fn raw_request(path: &str, body: &str, change: (&str, &str)) -> String {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-length: {}\r\n\
         bywash-protocol: 2\r\nbywash-cluster: test\r\n\
         bywash-from: 0000000000000002/0000000000000016\r\n\
         bywash-to: 0000000000000001/000000000000000b\r\n\r\n",
        body.len()
    );
    assert!(change.0.is_empty() || head.contains(change.0));
    head.replacen(change.0, change.1, 1) + body
}
