//! TLS as a door of the siege: a certificate for the server, and tunnels through which clients and judges that speak plain HTTP reach it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::CaseError;

/// A certificate of the server, made anew for each start.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Writes a certificate and its key into `folder`.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub(crate) fn write(folder: &Path) -> Result<Self, CaseError> {
        let failed = |error: rcgen::Error| CaseError(format!("no certificate: {error}"));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(failed)?;
        let (certificate, key) = (folder.join("tls.pem"), folder.join("tls-key.pem"));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(Self {
            certificate,
            key,
            der: made.cert.der().clone(),
        })
    }

    fn connector(&self) -> Result<TlsConnector, CaseError> {
        let failed = |error: rustls::Error| CaseError(format!("no TLS: {error}"));
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).map_err(failed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

/// Accepts plain connections and passes each on over TLS. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// Where plain connections are accepted.
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Tunnel {
    /// Opens a tunnel to `server`.
    ///
    /// # Errors
    /// If no port is free.
    pub(crate) async fn open(
        server: SocketAddr,
        certificate: &Certificate,
    ) -> Result<Self, CaseError> {
        let connector = certificate.connector()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, connector.clone()));
            }
        });
        Ok(Self { address, accepting })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes one connection on. A connection that fails is closed at both ends, as the client sees it of a server.
async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    connector: TlsConnector,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
    let mut server = connector.connect(name, server).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
