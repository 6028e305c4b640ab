//! Encoding of requests and responses as JSON. Numbers are exact: none passes through a float.

use std::sync::Arc;
use std::time::Duration;

use bywash::cluster::{CurrentVersion, PeerRead};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::version::VersionRecord;
use crate::message::{OpId, PeerRequest, PeerResponse, Token};
use crate::names::{Boot, Key, NodeId};

/// JSON of a [`PeerRequest`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RequestRecord {
    Open { key: KeyRecord, window: Duration },
    Begin { token: TokenRecord, key: KeyRecord },
    End { token: TokenRecord, key: KeyRecord },
    Drop { key: KeyRecord },
    Released { boot: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRecord {
    bucket: String,
    path: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRecord {
    node: u64,
    process: u64,
    op: u64,
}

/// JSON of a [`PeerResponse`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ResponseRecord {
    Version {
        /// None: there is no such object.
        version: Option<VersionRecord>,
        lease: Duration,
    },
    AskOrigin,
    NotMine,
    Done,
    Dropped,
    Released(bool),
}

/// JSON of a [`PeerRead`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadRecord {
    bucket: String,
    path: String,
    e_tag: String,
    size: u64,
    start: u64,
    end: u64,
    peek: bool,
}

/// Bytes are not what they should encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Undecodable;

impl From<serde_json::Error> for Undecodable {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

impl From<Key> for KeyRecord {
    fn from(key: Key) -> Self {
        Self {
            bucket: key.bucket.as_ref().to_owned(),
            path: key.path.as_ref().to_owned(),
        }
    }
}

impl From<KeyRecord> for Key {
    fn from(record: KeyRecord) -> Self {
        Self::new(record.bucket, record.path)
    }
}

impl From<Token> for TokenRecord {
    fn from(token: Token) -> Self {
        Self {
            node: token.node.0,
            process: token.process,
            op: token.op.0,
        }
    }
}

impl From<TokenRecord> for Token {
    fn from(record: TokenRecord) -> Self {
        Self {
            node: NodeId(record.node),
            process: record.process,
            op: OpId(record.op),
        }
    }
}

pub(super) fn encode_request(request: PeerRequest) -> Result<Vec<u8>, Undecodable> {
    let record = match request {
        PeerRequest::Open { key, window } => RequestRecord::Open {
            key: key.into(),
            window,
        },
        PeerRequest::Begin { token, key } => RequestRecord::Begin {
            token: token.into(),
            key: key.into(),
        },
        PeerRequest::End { token, key } => RequestRecord::End {
            token: token.into(),
            key: key.into(),
        },
        PeerRequest::Drop { key } => RequestRecord::Drop { key: key.into() },
        PeerRequest::Released(boot) => RequestRecord::Released { boot: boot.0 },
    };
    Ok(serde_json::to_vec(&record)?)
}

pub(super) fn decode_request(bytes: &[u8]) -> Result<PeerRequest, Undecodable> {
    Ok(match serde_json::from_slice(bytes)? {
        RequestRecord::Open { key, window } => PeerRequest::Open {
            key: key.into(),
            window,
        },
        RequestRecord::Begin { token, key } => PeerRequest::Begin {
            token: token.into(),
            key: key.into(),
        },
        RequestRecord::End { token, key } => PeerRequest::End {
            token: token.into(),
            key: key.into(),
        },
        RequestRecord::Drop { key } => PeerRequest::Drop { key: key.into() },
        RequestRecord::Released { boot } => PeerRequest::Released(Boot(boot)),
    })
}

/// An error if the version has something that the protocol has no name for.
pub(super) fn encode_response(
    response: &PeerResponse<CurrentVersion>,
) -> Result<Vec<u8>, Undecodable> {
    let record = match response {
        PeerResponse::Version { version, lease } => ResponseRecord::Version {
            version: match version {
                Some(version) => Some(VersionRecord::of(version).ok_or(Undecodable)?),
                None => None,
            },
            lease: *lease,
        },
        PeerResponse::AskOrigin => ResponseRecord::AskOrigin,
        PeerResponse::NotMine => ResponseRecord::NotMine,
        PeerResponse::Done => ResponseRecord::Done,
        PeerResponse::Dropped => ResponseRecord::Dropped,
        PeerResponse::Released(ended) => ResponseRecord::Released(*ended),
    };
    Ok(serde_json::to_vec(&record)?)
}

pub(super) fn decode_response(bytes: &[u8]) -> Result<PeerResponse<CurrentVersion>, Undecodable> {
    Ok(match serde_json::from_slice(bytes)? {
        ResponseRecord::Version { version, lease } => PeerResponse::Version {
            version: match version {
                Some(record) => Some(Arc::new(record.into_version().ok_or(Undecodable)?)),
                None => None,
            },
            lease,
        },
        ResponseRecord::AskOrigin => PeerResponse::AskOrigin,
        ResponseRecord::NotMine => PeerResponse::NotMine,
        ResponseRecord::Done => PeerResponse::Done,
        ResponseRecord::Dropped => PeerResponse::Dropped,
        ResponseRecord::Released(ended) => PeerResponse::Released(ended),
    })
}

pub(super) fn encode_read(wanted: &PeerRead, peek: bool) -> Result<Vec<u8>, Undecodable> {
    let record = ReadRecord {
        bucket: wanted.bucket.clone(),
        path: wanted.path.as_ref().to_owned(),
        e_tag: wanted.e_tag.clone(),
        size: wanted.size,
        start: wanted.range.start,
        end: wanted.range.end,
        peek,
    };
    Ok(serde_json::to_vec(&record)?)
}

/// Refuses ranges that are empty or not of the object.
pub(super) fn decode_read(bytes: &[u8]) -> Result<(PeerRead, bool), Undecodable> {
    let record: ReadRecord = serde_json::from_slice(bytes)?;
    if record.start >= record.end || record.end > record.size {
        return Err(Undecodable);
    }
    let wanted = PeerRead {
        bucket: record.bucket,
        path: Path::parse(&record.path).map_err(|_| Undecodable)?,
        e_tag: record.e_tag,
        size: record.size,
        range: record.start..record.end,
    };
    Ok((wanted, record.peek))
}

/// Checks of the fuzzer `peer`.
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;

    /// What is decoded is encoded and decoded to the same.
    pub(in crate::port) fn request(bytes: &[u8]) {
        if let Ok(request) = decode_request(bytes) {
            let encoded = encode_request(request.clone());
            assert_eq!(
                encoded.and_then(|bytes| decode_request(&bytes)),
                Ok(request)
            );
        }
    }

    pub(in crate::port) fn response(bytes: &[u8]) {
        if let Ok(response) = decode_response(bytes) {
            let encoded = encode_response(&response);
            assert_eq!(
                encoded.and_then(|bytes| decode_response(&bytes)),
                Ok(response)
            );
        }
    }

    pub(in crate::port) fn read(bytes: &[u8]) {
        if let Ok((wanted, peek)) = decode_read(bytes) {
            let encoded = encode_read(&wanted, peek);
            let decoded = encoded.and_then(|bytes| decode_read(&bytes));
            assert_eq!(decoded, Ok((wanted, peek)));
        }
    }
}
