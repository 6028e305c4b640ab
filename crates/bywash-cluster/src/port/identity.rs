//! How nodes name themselves and each other in the head of a request.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderValue, StatusCode};

use crate::etcd::{ClusterName, member_text, parse_member};
use crate::names::{Boot, Member, NodeId};
use crate::transport::{PeerAddress, PeerError};

/// Version of the protocol between nodes. Another one is refused; a node states it in its registration too.
pub const PEER_PROTOCOL: u32 = crate::etcd::PROTOCOL;

/// Version of the protocol, in requests and responses.
pub(super) const PROTOCOL: &str = "bywash-protocol";
/// Name of the cluster.
pub(super) const CLUSTER: &str = "bywash-cluster";
/// `cluster_id` of etcd, 16 hexadecimal digits. Absent before the first response of etcd.
pub(super) const ETCD: &str = "bywash-etcd";
/// The sender: `ID/BOOT`, each 16 hexadecimal digits; only `ID` while it is not registered.
pub(super) const FROM: &str = "bywash-from";
/// The recipient: `ID/BOOT`.
pub(super) const TO: &str = "bywash-to";

/// Identity of a node, as its port states it and compares it with requests.
#[derive(Debug)]
pub struct PeerIdentity {
    cluster: ClusterName,
    node: NodeId,
    current: Mutex<Current>,
}

/// Part of the identity that changes while the process runs.
#[derive(Debug, Clone, Copy, Default)]
struct Current {
    boot: Option<Boot>,
    etcd: Option<u64>,
}

/// Head of a request of another node that is meant for this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) from: NodeId,
    /// Registration of this node that the sender knows.
    pub(super) to: Boot,
}

/// Reason for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Head or body is not of the protocol.
    Malformed,
    UnknownPath,
    BodyTooLong,
    BodyTooSlow,
    OtherProtocol,
    /// Another cluster's name, another etcd, or another node.
    OtherCluster,
    /// The registration of this node that the sender knows is not the current one.
    OtherRegistration,
    Busy,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::BodyTooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::OtherProtocol => StatusCode::UPGRADE_REQUIRED,
            Self::OtherCluster => StatusCode::MISDIRECTED_REQUEST,
            Self::OtherRegistration => StatusCode::CONFLICT,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Error of a client for a status.
    pub(super) fn error(status: StatusCode) -> PeerError {
        match status {
            StatusCode::UPGRADE_REQUIRED | StatusCode::MISDIRECTED_REQUEST => PeerError::Foreign,
            StatusCode::SERVICE_UNAVAILABLE => PeerError::Busy,
            // The registration that was meant is reached no more.
            _ => PeerError::Unreachable,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the request is not of the protocol",
            Self::UnknownPath => "there is no such path; POST to /v1/call or /v1/blocks",
            Self::BodyTooLong => "the body is too long",
            Self::BodyTooSlow => "the body did not arrive in time",
            Self::OtherProtocol => "this node speaks another version of the protocol",
            Self::OtherCluster => "this is another cluster or another node",
            Self::OtherRegistration => "this node has another registration now; read etcd again",
            Self::Busy => "this node has no room for a further request; ask the origin",
        })
    }
}

impl PeerIdentity {
    /// A node that is not registered and knows no etcd.
    #[must_use]
    pub fn new(cluster: ClusterName, node: NodeId) -> Self {
        Self {
            cluster,
            node,
            current: Mutex::default(),
        }
    }

    /// Sets the registration of this node, which its requests name.
    pub fn set_boot(&self, boot: Option<Boot>) {
        self.locked(|current| current.boot = boot);
    }

    /// Sets the `cluster_id` of etcd. While both ends know one, they must be equal.
    pub fn set_etcd(&self, cluster_id: Option<u64>) {
        self.locked(|current| current.etcd = cluster_id);
    }

    fn locked<T>(&self, use_it: impl FnOnce(&mut Current) -> T) -> T {
        use_it(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Head of a request to `to`.
    pub(super) fn headers(&self, to: &PeerAddress) -> HeaderMap {
        let current = self.locked(|current| *current);
        let from = match current.boot {
            Some(boot) => member_text(Member {
                node: self.node,
                boot,
            }),
            None => hex(self.node.0),
        };
        let etcd = current.etcd.map(hex).unwrap_or_default();
        let recipient = Member {
            node: to.node,
            boot: to.boot,
        };
        let mut headers = HeaderMap::with_capacity(8);
        for (name, value) in [
            (PROTOCOL, PEER_PROTOCOL.to_string()),
            (CLUSTER, self.cluster.as_str().to_owned()),
            (ETCD, etcd),
            (FROM, from),
            (TO, member_text(recipient)),
        ] {
            // All are of characters that a header may have.
            if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Compares the head of a request with this node.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<Envelope, Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if !is_same_protocol(headers) {
            return Err(Refusal::OtherProtocol);
        }
        if text(CLUSTER) != Some(self.cluster.as_str()) {
            return Err(Refusal::OtherCluster);
        }
        let own = self.locked(|current| current.etcd);
        if let Some(theirs) = headers.get(ETCD) {
            let theirs = theirs.to_str().ok().and_then(parse_hex);
            let theirs = theirs.ok_or(Refusal::Malformed)?;
            if own.is_some_and(|own| own != theirs) {
                return Err(Refusal::OtherCluster);
            }
        }
        let from = text(FROM).and_then(|from| match from.split_once('/') {
            Some(_) => parse_member(from).map(|member| member.node),
            None => parse_hex(from).map(NodeId),
        });
        let to = text(TO).and_then(parse_member);
        let (from, to) = from.zip(to).ok_or(Refusal::Malformed)?;
        if to.node != self.node {
            return Err(Refusal::OtherCluster);
        }
        Ok(Envelope { from, to: to.boot })
    }
}

/// Whether a request or a response is of this version of the protocol.
pub(super) fn is_same_protocol(headers: &HeaderMap) -> bool {
    let stated = headers.get(PROTOCOL).and_then(|value| value.to_str().ok());
    stated.and_then(|text| text.parse().ok()) == Some(PEER_PROTOCOL)
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| digits)
}
