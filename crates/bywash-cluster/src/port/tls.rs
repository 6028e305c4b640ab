//! Mutual TLS 1.3 by raw public keys (RFC 7250): both ends prove that they have a cluster key.
//!
//! All nodes derive the same Ed25519 key from a cluster key. Each presents its public half and
//! signs the handshake with the private one; the other end compares the public key with the ones of
//! its own cluster keys. So the only question of the handshake is the one that matters: does the
//! other end have a key of this cluster? A certificate would add names that any holder of the key
//! may choose and dates that depend on a clock, and a parser for both. A node is named by the head
//! of each request.

use std::fmt;
use std::sync::Arc;

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, SignatureScheme,
};

use super::key::{ClusterKey, ClusterKeys, KeyError};

/// Label for the derivation of the handshake key.
const LABEL: &str = "peer handshake 1";
/// DER of a private Ed25519 key (RFC 8410) before its 32 bytes.
const PRIVATE_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// DER of a public Ed25519 key before its 32 bytes.
const PUBLIC_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// Public key of a cluster key, in DER.
fn public_key(key: &ClusterKey) -> Result<Vec<u8>, KeyError> {
    let pair = Ed25519KeyPair::from_seed_unchecked(&key.derive(LABEL));
    let pair = pair.map_err(|error| KeyError::Unusable(error.to_string()))?;
    Ok([&PUBLIC_HEAD[..], pair.public_key().as_ref()].concat())
}

/// The credential of this node: the raw public key of its first cluster key.
fn presented(keys: &ClusterKeys) -> Result<Arc<CertifiedKey>, KeyError> {
    let first = &keys.all()[0];
    let private = [&PRIVATE_HEAD[..], &first.derive(LABEL)].concat();
    let signer = rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(private));
    let signer = signer.map_err(|error| KeyError::Unusable(error.to_string()))?;
    let public = CertificateDer::from(public_key(first)?);
    Ok(Arc::new(CertifiedKey::new(vec![public], signer)))
}

/// Settings of the server: it presents the first key, and requires one of `keys` of each client.
pub(super) fn server_config(keys: &ClusterKeys) -> Result<Arc<ServerConfig>, KeyError> {
    let unusable = |error: Error| KeyError::Unusable(error.to_string());
    let (verifier, provider) = verifier(keys)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(presented(
            keys,
        )?)));
    // Connections are kept; a ticket would also outlive a key that is taken away.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Settings of the client, as [`server_config`].
pub(super) fn client_config(keys: &ClusterKeys) -> Result<ClientConfig, KeyError> {
    let unusable = |error: Error| KeyError::Unusable(error.to_string());
    let (verifier, provider) = verifier(keys)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(presented(
            keys,
        )?)));
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

pub(super) fn verifier(
    keys: &ClusterKeys,
) -> Result<(Arc<ClusterKeyVerifier>, Arc<CryptoProvider>), KeyError> {
    let accepted: Result<Vec<_>, _> = keys.all().iter().map(public_key).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = ClusterKeyVerifier {
        accepted: accepted?,
        provider: Arc::clone(&provider),
    };
    Ok((Arc::new(verifier), provider))
}

/// Accepts the public keys of the cluster, from either end.
pub(super) struct ClusterKeyVerifier {
    accepted: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl ClusterKeyVerifier {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        // Public keys are no secrets, so the comparison may end early.
        if self.accepted.iter().any(|key| key == presented.as_ref()) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }
}

impl fmt::Debug for ClusterKeyVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKeyVerifier({} keys)", self.accepted.len())
    }
}

/// TLS 1.2 is not offered, so its signatures are refused.
fn older_tls() -> Error {
    PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into()
}

impl ServerCertVerifier for ClusterKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(older_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for ClusterKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(older_tls())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
