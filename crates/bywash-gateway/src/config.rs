//! Settings of an endpoint: access keys, limits, certificate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::addresses::Network;
use crate::limits::{
    MAX_BODY_SILENCE, MAX_BODY_STALL, MAX_CONNECTIONS, MAX_CONTENDED_SILENCE, MAX_DRAIN,
    MAX_HANDSHAKE, MAX_HEAD_BYTES, MAX_HEAD_TIME, MAX_IDLE, MAX_OPEN_UPLOADS, MAX_UNSENT_BYTES,
    MIN_CONTENDED_RATE,
};
use crate::shared_state::SharedState;
use crate::uploads::{ClusterUploads, OpenUploads};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A pair of access key and secret key.
#[derive(Clone)]
pub struct Credential {
    /// The access key id; any non-empty string.
    pub access_key: String,
    /// The secret key; any non-empty string.
    pub secret_key: String,
    /// Rights of requests signed with it.
    pub scope: Scope,
}

impl Credential {
    /// Keys without restrictions.
    #[must_use]
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            scope: Scope::default(),
        }
    }
}

/// Restrictions of a key. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Visible buckets; `None`: all.
    pub buckets: Option<Vec<String>>,
    /// Whether it may only read and list.
    pub read_only: bool,
}

impl Scope {
    /// Whether the bucket is visible for this key.
    pub(crate) fn sees(&self, bucket: &str) -> bool {
        let buckets = self.buckets.as_ref();
        buckets.is_none_or(|buckets| buckets.iter().any(|known| known == bucket))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is never logged.
        f.debug_struct("Credential")
            .field("access_key", &self.access_key)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Limits of an endpoint; [`Limits::default`] has the documented values.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Max open connections ([`MAX_CONNECTIONS`]).
    pub connections: usize,
    /// Max open connections of one client address; `None`: the max of all addresses divided by
    /// [`MAX_ADDRESS_CONNECTIONS_DIVISOR`](crate::limits::MAX_ADDRESS_CONNECTIONS_DIVISOR).
    /// 127.0.0.1, ::1 and [`S3Config::trusted_proxies`] are exempt. An IPv6 network of 64 bits is
    /// one address.
    pub connections_per_address: Option<usize>,
    /// Max time from a connection, or a head's first byte, to the end of the head ([`MAX_HEAD_TIME`]).
    pub head: Duration,
    /// Max bytes of a request head ([`MAX_HEAD_BYTES`]).
    pub head_bytes: usize,
    /// Max time between two requests ([`MAX_IDLE`]).
    pub idle: Duration,
    /// Max time that a response waits for its client ([`MAX_BODY_STALL`]).
    pub stalled_body: Duration,
    /// Unsent bytes of a response above which its body is not polled ([`MAX_UNSENT_BYTES`]).
    pub body_window_bytes: usize,
    /// Max time without bytes of a request body ([`MAX_BODY_SILENCE`]).
    pub silent_body: Duration,
    /// Max time without bytes of a request body for which memory is held while other requests wait for memory
    /// ([`MAX_CONTENDED_SILENCE`]).
    pub contended_body: Duration,
    /// Min bytes a second of such a body, at least 1 ([`MIN_CONTENDED_RATE`]).
    pub contended_rate: u32,
    /// Max time of a TLS handshake ([`MAX_HANDSHAKE`]).
    pub handshake: Duration,
    /// Max time for requests in progress at shutdown ([`MAX_DRAIN`]).
    pub drain: Duration,
    /// Max open multipart uploads ([`MAX_OPEN_UPLOADS`]).
    pub open_uploads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            connections_per_address: None,
            head: MAX_HEAD_TIME,
            head_bytes: MAX_HEAD_BYTES,
            body_window_bytes: MAX_UNSENT_BYTES,
            idle: MAX_IDLE,
            stalled_body: MAX_BODY_STALL,
            silent_body: MAX_BODY_SILENCE,
            contended_body: MAX_CONTENDED_SILENCE,
            contended_rate: MIN_CONTENDED_RATE,
            handshake: MAX_HANDSHAKE,
            drain: MAX_DRAIN,
            open_uploads: MAX_OPEN_UPLOADS,
        }
    }
}

/// ETags of objects that are written to folders and to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ETagStyle {
    /// As in S3: the MD5 of the bytes, computed while they pass, or the MD5 of the MD5s of the parts and their number.
    #[default]
    Md5,
    /// The identity of the stored version: no digest is computed.
    Fast,
}

impl fmt::Display for ETagStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md5 => "md5",
            Self::Fast => "fast",
        })
    }
}

impl FromStr for ETagStyle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "md5" => Ok(Self::Md5),
            "fast" => Ok(Self::Fast),
            other => Err(format!("{other:?} is not known; write md5 or fast")),
        }
    }
}

/// Access of unsigned requests to a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublicAccess {
    /// Read its objects.
    Read,
    /// Read its objects, and list them.
    ReadList,
}

impl FromStr for PublicAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "read" => Ok(Self::Read),
            "read-list" => Ok(Self::ReadList),
            other => Err(format!("{other:?} is not known; write read or read-list")),
        }
    }
}

/// Buckets whose disks are encrypted, as the operator states. Their clients may ask for encryption at rest.
#[derive(Debug, Clone, Default)]
pub struct EncryptedDisks {
    /// All in folders and in memory.
    pub all: bool,
    /// Names of buckets, of any origin but S3.
    pub buckets: BTreeSet<String>,
}

/// Settings of one S3 endpoint.
#[derive(Debug, Clone)]
pub struct S3Config {
    /// Keys that may sign requests. Must be empty exactly when `anonymous` is set.
    pub credentials: Vec<Credential>,
    /// Accepts unsigned requests, and ignores signatures.
    pub anonymous: bool,
    /// The region the endpoint reports. Requests signed for any region are accepted.
    pub region: String,
    /// Domains of virtual-hosted-style requests: `BUCKET.DOMAIN` names a bucket, DOMAIN itself is path-style.
    /// `localhost` is always included.
    pub domains: Vec<String>,
    /// ETags of objects that are written to folders and to memory.
    pub etag: ETagStyle,
    /// Limits.
    pub limits: Limits,
    /// Proxies, exempt from [`Limits::connections_per_address`] because many clients share their addresses.
    pub trusted_proxies: Vec<Network>,
    /// Receives a record of each request. The caller calls [`AccessLog::close`] after serving.
    pub access_log: Option<AccessLog>,
    /// Serves TLS with this certificate; see [`load_tls`].
    pub tls: Option<Arc<ServerConfig>>,
    /// Folder that preserves open multipart uploads across restarts, created if missing. No other server may use it.
    /// Without one, open uploads are lost when the server ends.
    pub uploads: Option<PathBuf>,
    /// In a cluster: the state of multipart uploads that its nodes share. Each node then continues
    /// every upload, and [`Self::uploads`] is not used.
    pub cluster_uploads: Option<ClusterUploads>,
    /// Buckets that unsigned requests may read, in addition to buckets whose ACL says so.
    pub public: BTreeMap<String, PublicAccess>,
    /// Buckets whose clients may ask for encryption at rest.
    pub disks: EncryptedDisks,
    /// Folder that preserves ACLs of buckets and their rules for pages of other sites, created if missing. Without one they are lost
    /// when the server ends.
    pub bucket_rules: Option<PathBuf>,
    /// Shows the open multipart uploads once the endpoint serves.
    pub open_uploads: OpenUploads,
    /// State shared with the other endpoints of its engine.
    pub shared: SharedState,
}

impl S3Config {
    /// Requires requests signed with `credential`; region `us-east-1`, no TLS, default limits.
    #[must_use]
    pub fn signed(credential: Credential) -> Self {
        Self {
            credentials: vec![credential],
            anonymous: false,
            ..Self::anonymous()
        }
    }

    /// Accepts all requests; region `us-east-1`, no TLS, default limits.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            credentials: Vec::new(),
            anonymous: true,
            region: "us-east-1".to_owned(),
            domains: Vec::new(),
            etag: ETagStyle::default(),
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            access_log: None,
            tls: None,
            uploads: None,
            cluster_uploads: None,
            public: BTreeMap::new(),
            disks: EncryptedDisks::default(),
            bucket_rules: None,
            open_uploads: OpenUploads::default(),
            shared: SharedState::default(),
        }
    }
}

/// The certificate or key is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has no PEM section of the required kind.
    #[error("TLS: cannot use {}: {source}; give a readable PEM file", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the reader.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate file has no certificate.
    #[error("TLS: {} has no certificate; give a PEM file with the chain, leaf first", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Key and certificate do not match.
    #[error("TLS: the certificate and the key cannot be used together: {0}")]
    Pair(#[from] rustls::Error),
}

/// Reads a certificate chain (leaf first) and its key from PEM files. Blocks on the two reads.
///
/// # Errors
/// If a file is unreadable or not PEM, or key and certificate do not match.
pub fn load_tls(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(file(certificate))?;
    if chain.is_empty() {
        return Err(TlsError::Empty {
            path: certificate.to_owned(),
        });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(file(key))?;
    // An explicit provider avoids a process-wide default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
