//! Encoding of requests and responses as JSON. Numbers are exact: none passes through a float.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use bywash::cluster::{CurrentVersion, PeerRead};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::version::VersionRecord;
use crate::limits::{MAX_BATCHED_REQUESTS, MAX_FRAME_BYTES};
use crate::message::{OpId, PeerRequest, PeerResponse, Token};
use crate::names::{Boot, Key, NodeId};

/// JSON of one or several [`PeerRequest`]s. A message is a list of these.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RequestRecord {
    Open { key: KeyRecord, window: Duration },
    Begin(StepRecord),
    End(StepRecord),
    Drop { bucket: String, paths: Vec<String> },
    Released { boot: u64 },
}

/// Begins or ends of writes of one process in one bucket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRecord {
    node: u64,
    process: u64,
    bucket: String,
    /// Numbers of the writes, and paths.
    writes: Vec<(u64, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRecord {
    bucket: String,
    path: String,
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
    age: Option<Duration>,
    peek: bool,
}

/// The bytes are not a valid encoding.
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

impl StepRecord {
    fn of(token: Token, key: &Key) -> Self {
        Self {
            node: token.node.0,
            process: token.process,
            bucket: key.bucket.as_ref().to_owned(),
            writes: vec![(token.op.0, key.path.as_ref().to_owned())],
        }
    }

    fn takes(&self, other: &Self) -> bool {
        (self.node, self.process, &self.bucket) == (other.node, other.process, &other.bucket)
    }

    fn writes(self) -> impl Iterator<Item = (Token, Key)> {
        let bucket: Arc<str> = self.bucket.into();
        let (node, process) = (NodeId(self.node), self.process);
        self.writes.into_iter().map(move |(op, path)| {
            let op = OpId(op);
            let token = Token { node, process, op };
            (token, Key::new(Arc::clone(&bucket), path))
        })
    }
}

impl RequestRecord {
    fn of(request: &PeerRequest) -> Self {
        match request {
            PeerRequest::Open { key, window } => Self::Open {
                key: key.clone().into(),
                window: *window,
            },
            PeerRequest::Begin { token, key } => Self::Begin(StepRecord::of(*token, key)),
            PeerRequest::End { token, key } => Self::End(StepRecord::of(*token, key)),
            PeerRequest::Drop { key } => Self::Drop {
                bucket: key.bucket.as_ref().to_owned(),
                paths: vec![key.path.as_ref().to_owned()],
            },
            PeerRequest::Released(boot) => Self::Released { boot: boot.0 },
        }
    }

    /// Appends the requests of `next`, if they are of the same kind, writer and bucket; otherwise
    /// returns it.
    fn join(&mut self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::Begin(all), Self::Begin(more)) | (Self::End(all), Self::End(more))
                if all.takes(&more) =>
            {
                all.writes.extend(more.writes);
            }
            (
                Self::Drop { bucket, paths },
                Self::Drop {
                    bucket: other,
                    paths: more,
                },
            ) if *bucket == other => paths.extend(more),
            (_, next) => return Some(next),
        }
        None
    }

    fn requests(self) -> Vec<PeerRequest> {
        match self {
            Self::Open { key, window } => vec![PeerRequest::Open {
                key: key.into(),
                window,
            }],
            Self::Begin(steps) => steps
                .writes()
                .map(|(token, key)| PeerRequest::Begin { token, key })
                .collect(),
            Self::End(steps) => steps
                .writes()
                .map(|(token, key)| PeerRequest::End { token, key })
                .collect(),
            Self::Drop { bucket, paths } => {
                let bucket: Arc<str> = bucket.into();
                let key = |path: String| Key::new(Arc::clone(&bucket), path);
                let keys = paths.into_iter().map(key);
                keys.map(|key| PeerRequest::Drop { key }).collect()
            }
            Self::Released { boot } => vec![PeerRequest::Released(Boot(boot))],
        }
    }
}

/// Common properties of the requests in one record of a message: kind, writer and bucket.
type Group<'a> = (Discriminant<PeerRequest>, Option<(NodeId, u64)>, &'a str);

/// Group of a request; `None` if it is a record alone.
fn group(request: &PeerRequest) -> Option<Group<'_>> {
    let kind = discriminant(request);
    match request {
        PeerRequest::Begin { token, key } | PeerRequest::End { token, key } => {
            Some((kind, Some((token.node, token.process)), &key.bucket))
        }
        PeerRequest::Drop { key } => Some((kind, None, &key.bucket)),
        PeerRequest::Open { .. } | PeerRequest::Released(_) => None,
    }
}

/// Maximum number of bytes that `request` adds to a message in which it follows `before`.
pub(crate) fn max_added_len(before: Option<&PeerRequest>, request: &PeerRequest) -> usize {
    /// Braces and names of fields, and three numbers of 20 digits.
    const RECORD: usize = 160;
    /// Quotes, brackets and commas, and a number of 20 digits.
    const ITEM: usize = 26;
    let escaped = |text: &str| -> usize {
        let length = |byte| match byte {
            b'"' | b'\\' => 2,
            0..0x20 => 6,
            _ => 1,
        };
        text.bytes().map(length).sum()
    };
    let (bucket, path) = match request {
        PeerRequest::Open { key, .. }
        | PeerRequest::Begin { key, .. }
        | PeerRequest::End { key, .. }
        | PeerRequest::Drop { key } => (&*key.bucket, &*key.path),
        PeerRequest::Released(_) => ("", ""),
    };
    let item = ITEM + escaped(path);
    let of = group(request);
    if of.is_some() && before.and_then(group) == of {
        item
    } else {
        RECORD + escaped(bucket) + item
    }
}

/// Maximum length of a message of these requests, in bytes.
pub(super) fn max_len(requests: &[PeerRequest]) -> usize {
    let before = requests.iter().map(Some);
    let before = std::iter::once(None).chain(before);
    let added = before.zip(requests);
    let added = added.map(|(before, request)| max_added_len(before, request));
    added.fold(2, usize::saturating_add)
}

pub(super) fn encode_requests(requests: &[PeerRequest]) -> Result<Vec<u8>, Undecodable> {
    let mut records: Vec<RequestRecord> = Vec::new();
    for request in requests {
        let record = RequestRecord::of(request);
        let record = match records.last_mut() {
            Some(last) => last.join(record),
            None => Some(record),
        };
        records.extend(record);
    }
    Ok(serde_json::to_vec(&records)?)
}

/// Bytes of a message.
#[cfg(test)]
pub(crate) fn encoded_len(requests: &[PeerRequest]) -> usize {
    encode_requests(requests).map_or(0, |encoded| encoded.len())
}

/// Refuses messages without a request, and with more than [`MAX_BATCHED_REQUESTS`].
pub(super) fn decode_requests(bytes: &[u8]) -> Result<Vec<PeerRequest>, Undecodable> {
    let records: Vec<RequestRecord> = serde_json::from_slice(bytes)?;
    let mut requests = Vec::new();
    for record in records {
        requests.extend(record.requests());
    }
    match requests.len() {
        1..=MAX_BATCHED_REQUESTS => Ok(requests),
        _ => Err(Undecodable),
    }
}

/// An error if a version has something that the protocol has no name for, and as soon as the responses are longer than a frame may be.
pub(super) fn encode_responses(
    responses: &[PeerResponse<CurrentVersion>],
) -> Result<Vec<u8>, Undecodable> {
    let mut encoded = vec![b'['];
    for response in responses {
        if encoded.len() > 1 {
            encoded.push(b',');
        }
        serde_json::to_writer(&mut encoded, &response_record(response)?)?;
        if encoded.len() >= MAX_FRAME_BYTES {
            return Err(Undecodable);
        }
    }
    encoded.push(b']');
    Ok(encoded)
}

fn response_record(response: &PeerResponse<CurrentVersion>) -> Result<ResponseRecord, Undecodable> {
    Ok(match response {
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
    })
}

pub(super) fn decode_responses(
    bytes: &[u8],
) -> Result<Vec<PeerResponse<CurrentVersion>>, Undecodable> {
    let records: Vec<ResponseRecord> = serde_json::from_slice(bytes)?;
    records.into_iter().map(response_of).collect()
}

fn response_of(record: ResponseRecord) -> Result<PeerResponse<CurrentVersion>, Undecodable> {
    Ok(match record {
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
        age: wanted.age,
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
        age: record.age,
    };
    Ok((wanted, record.peek))
}

/// Checks of the fuzzer `peer`.
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;

    /// Encoding and decoding a decoded request returns an equal one.
    pub(in crate::port) fn request(bytes: &[u8]) {
        if let Ok(requests) = decode_requests(bytes) {
            let encoded = encode_requests(&requests);
            assert_eq!(
                encoded.and_then(|bytes| decode_requests(&bytes)),
                Ok(requests)
            );
        }
    }

    pub(in crate::port) fn response(bytes: &[u8]) {
        if let Ok(responses) = decode_responses(bytes) {
            let encoded = encode_responses(&responses);
            assert_eq!(
                encoded.and_then(|bytes| decode_responses(&bytes)),
                Ok(responses)
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
