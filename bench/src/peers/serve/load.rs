//! Clients that send prepared requests over kept connections, with or without TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::Failure;
use crate::read::load::consume;

pub(in crate::peers) type SignedRequest = Request<Full<Bytes>>;
/// Connection that sends one request at a time.
pub(in crate::peers) type Client = SendRequest<Full<Bytes>>;

/// A certificate that servers share, and a client that trusts it and offers one suite.
#[derive(Debug)]
pub(in crate::peers) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    client: Arc<ClientConfig>,
}

impl Tls {
    /// Creates a certificate of this machine's loopback address.
    pub(super) fn create(folder: &Path) -> Result<Self, Failure> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let (certificate, key) = (folder.join("bench.crt"), folder.join("bench.key"));
        std::fs::write(&certificate, made.cert.pem())?;
        std::fs::write(&key, made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let provider = rustls::crypto::CryptoProvider {
            cipher_suites: vec![TLS13_AES_128_GCM_SHA256],
            ..rustls::crypto::ring::default_provider()
        };
        let client = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            certificate,
            key,
            client: client.into(),
        })
    }
}

/// How long the clients work.
#[derive(Debug, Clone, Copy)]
pub(in crate::peers) enum Extent {
    /// Each sends its requests once.
    Once,
    /// Each begins requests, from the first again after the last, for so long.
    Window(Duration),
}

/// What the clients of a turn did together.
#[derive(Debug, Clone, Copy)]
pub(in crate::peers) struct Figures {
    pub(in crate::peers) requests: f64,
    pub(in crate::peers) seconds: f64,
}

impl Figures {
    pub(in crate::peers) fn micros_a_request(&self) -> f64 {
        self.seconds * 1e6 / self.requests
    }
}

pub(in crate::peers) async fn connect(
    server: SocketAddr,
    tls: Option<&Tls>,
) -> Result<Client, Failure> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    match tls {
        None => client_of(socket).await,
        Some(tls) => {
            let connector = TlsConnector::from(Arc::clone(&tls.client));
            let name = ServerName::from(server.ip());
            client_of(connector.connect(name, socket).await?).await
        }
    }
}

async fn client_of<S>(stream: S) -> Result<Client, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Opens a connection for each list of requests, and sends them. The time begins when all are open.
pub(in crate::peers) async fn drive(
    server: SocketAddr,
    tls: Option<&Tls>,
    lists: Vec<Vec<SignedRequest>>,
    extent: Extent,
) -> Result<Figures, Failure> {
    let clients = try_join_all(lists.iter().map(|_| connect(server, tls))).await?;
    let begun = Instant::now();
    let tasks = clients
        .into_iter()
        .zip(lists)
        .map(|(client, list)| send_all(client, (server, tls), list, extent, begun));
    let counts: Vec<u64> = try_join_all(tasks).await?;
    Ok(Figures {
        requests: counts.iter().sum::<u64>() as f64,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

async fn send_all(
    mut client: Client,
    (server, tls): (SocketAddr, Option<&Tls>),
    list: Vec<SignedRequest>,
    extent: Extent,
    begun: Instant,
) -> Result<u64, Failure> {
    let (max, window) = match extent {
        Extent::Once => (list.len(), Duration::MAX),
        Extent::Window(window) => (usize::MAX, window),
    };
    let mut count = 0;
    for request in list.iter().cycle().take(max) {
        reopen(&mut client, server, tls).await?;
        send(&mut client, request.clone()).await?;
        count += 1;
        if begun.elapsed() >= window {
            break;
        }
    }
    Ok(count)
}

/// Opens a connection again that the server has closed after a response, as clients do.
async fn reopen(client: &mut Client, server: SocketAddr, tls: Option<&Tls>) -> Result<(), Failure> {
    if client.ready().await.is_err() {
        *client = connect(server, tls).await?;
    }
    Ok(())
}

/// Sends a request and reads its response. Fails if the server refuses it.
pub(in crate::peers) async fn send(
    client: &mut Client,
    request: SignedRequest,
) -> Result<u64, Failure> {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    client.ready().await?;
    let response = client.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let text = body.collect().await?.to_bytes();
        return Err(format!(
            "{method} {uri}: {status}: {}",
            String::from_utf8_lossy(&text)
        )
        .into());
    }
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame?.data_ref().map_or(0, |data| consume(data));
    }
    Ok(bytes)
}
