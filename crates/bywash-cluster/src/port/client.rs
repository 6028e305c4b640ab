//! Sends requests to other nodes.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::ByteCharge;
use bywash::cluster::{CurrentVersion, PeerBody, PeerRead};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::time::timeout;

use super::frame::{Frame, FrameError, FrameReader};
use super::handler::{BLOCKS, CALL};
use super::identity::{PeerIdentity, Refusal, is_same_protocol};
use super::key::{ClusterKeys, KeyError};
use super::memory::{NoMemory, PeerMemory, RequestedMemory};
use super::settings::PortSettings;
use super::tls::client_config;
use super::wire;
use crate::message::{PeerRequest, PeerResponse};
use crate::names::Boot;
use crate::transport::{PeerAddress, PeerError, PeerTransport};

/// Limit of the last bytes' wait for the end of their response.
const END_PATIENCE: Duration = Duration::from_millis(5);

/// The client of other nodes' ports. It keeps connections, and sends each request once.
pub struct PeerClient {
    http: reqwest::Client,
    identity: Arc<PeerIdentity>,
    stall: Duration,
    counters: Arc<Counters>,
    memory: OnceLock<RequestedMemory>,
}

/// Failures so far.
#[derive(Debug, Default)]
struct Counters {
    damaged: AtomicU64,
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerClient")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl PeerClient {
    /// A client that names itself by `identity`.
    ///
    /// # Errors
    /// [`KeyError::Unusable`]
    pub fn new(
        identity: Arc<PeerIdentity>,
        keys: &ClusterKeys,
        settings: PortSettings,
    ) -> Result<Self, KeyError> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(client_config(keys)?)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .tcp_nodelay(true)
            .connect_timeout(settings.connect)
            .pool_idle_timeout(settings.pool)
            .pool_max_idle_per_host(settings.pool_connections)
            .build()
            .map_err(|error| KeyError::Unusable(error.to_string()))?;
        Ok(Self {
            http,
            identity,
            stall: settings.stall,
            counters: Arc::default(),
            memory: OnceLock::new(),
        })
    }

    /// Charges requests from now on. Before, the node serves no client, and sends none but questions about registrations that have ended.
    /// Only the first call counts.
    pub fn set_memory(&self, memory: &PeerMemory) {
        let _ = self.memory.set(memory.requested.clone());
    }

    /// Charges memory for a request, if requests are charged yet.
    fn charge(
        &self,
        charge: impl FnOnce(&RequestedMemory) -> Result<ByteCharge, NoMemory>,
    ) -> Result<Option<ByteCharge>, PeerError> {
        let charge = self.memory.get().map(charge).transpose();
        charge.map_err(|NoMemory| PeerError::Busy)
    }

    /// Number of frames that did not match their checksum.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.counters.damaged.load(Relaxed)
    }

    /// Identity that this client sends.
    #[cfg(test)]
    pub(super) fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Sends a request whose memory is charged.
    async fn send(
        &self,
        to: &PeerAddress,
        path: &str,
        body: Vec<u8>,
        charge: Option<ByteCharge>,
    ) -> Result<Frames, PeerError> {
        let url = format!("https://{}{path}", to.address);
        let request = self.http.post(url).headers(self.identity.headers(to));
        let response = request.body(body).send().await;
        let response = response.map_err(|error| {
            tracing::debug!(%error, node = to.node.0, "no response of a node");
            connect_error(&error)
        })?;
        if !is_same_protocol(response.headers()) {
            return Err(PeerError::Foreign);
        }
        if response.status() != reqwest::StatusCode::OK {
            return Err(Refusal::error(response.status()));
        }
        Ok(Frames {
            response,
            reader: FrameReader::new(),
            counters: Arc::clone(&self.counters),
            _charge: charge,
            memory: None,
            waits: false,
            further: None,
        })
    }
}

/// Whether the other end has no key of this cluster, or the handshake failed for another reason.
fn connect_error(error: &reqwest::Error) -> PeerError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(rustls::Error::InvalidCertificate(_))
            | Some(rustls::Error::AlertReceived(_))
            | Some(rustls::Error::PeerIncompatible(_)) => return PeerError::Foreign,
            _ => {}
        }
        // `source` of an I/O error returns the source of the error in it, and so would skip that
        // error.
        cause = match error.downcast_ref::<io::Error>().map(io::Error::get_ref) {
            Some(Some(inner)) => Some(inner),
            _ => error.source(),
        };
    }
    PeerError::Unreachable
}

/// Frames of a response as they arrive.
struct Frames {
    response: reqwest::Response,
    reader: FrameReader,
    counters: Arc<Counters>,
    /// Of the request, with a short response or a block stream.
    _charge: Option<ByteCharge>,
    /// Where a longer response is charged.
    memory: Option<RequestedMemory>,
    /// The response waits for an origin.
    waits: bool,
    further: Option<ByteCharge>,
}

/// Reason why no further frame follows.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the connection to another node broke: {0}")]
    Broken(#[from] reqwest::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("another node ended its stream early")]
    Early,
    #[error("another node sent no frame for too long")]
    Stalled,
    #[error("another node could not continue: {0}")]
    Failed(String),
    #[error("another node sent frames in a wrong order")]
    Order,
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

impl StreamError {
    /// Error of the caller for a call that has failed.
    fn of_call(&self) -> PeerError {
        match self {
            Self::NoMemory(_) => PeerError::Busy,
            _ => PeerError::Unreachable,
        }
    }
}

impl Frames {
    async fn next(&mut self) -> Result<Frame, StreamError> {
        loop {
            let frame = self.reader.next().inspect_err(|error| {
                if *error == FrameError::Damaged {
                    self.counters.damaged.fetch_add(1, Relaxed);
                }
            });
            if let Some(frame) = frame? {
                return Ok(frame);
            }
            if let (Some(memory), None) = (&self.memory, &self.further) {
                self.further = memory.response(self.reader.announced(), self.waits)?;
            }
            match self.response.chunk().await? {
                Some(bytes) => self.reader.feed(bytes),
                None => return Err(StreamError::Early),
            }
        }
    }

    /// Reads the end of the body, so that the connection can be used again. Nothing may precede it.
    async fn finish(&mut self) -> Result<(), StreamError> {
        if !self.reader.is_between_frames() || self.response.chunk().await?.is_some() {
            return Err(StreamError::Order);
        }
        Ok(())
    }
}

#[async_trait]
impl PeerTransport for PeerClient {
    fn registered(&self, boot: Option<Boot>, etcd: Option<u64>) {
        self.identity.set_boot(boot);
        self.identity.set_etcd(etcd);
    }

    async fn call(
        &self,
        to: &PeerAddress,
        requests: Vec<PeerRequest>,
        alive: &(dyn Fn() + Send + Sync),
    ) -> Result<Vec<PeerResponse<CurrentVersion>>, PeerError> {
        let failed = |error: StreamError| error.of_call();
        let waits = requests.iter().any(PeerRequest::waits_for_origin);
        let charge = self.charge(|memory| memory.call(wire::max_len(&requests), waits))?;
        let body = wire::encode_requests(&requests).map_err(|_| PeerError::Unreachable)?;
        let mut frames = self.send(to, CALL, body, charge).await?;
        frames.memory = self.memory.get().cloned();
        frames.waits = waits;
        loop {
            match frames.next().await.map_err(failed)? {
                Frame::Alive => alive(),
                Frame::Response(encoded) => {
                    frames.finish().await.map_err(failed)?;
                    let decoded = wire::decode_responses(&encoded).ok();
                    let all = |of: &Vec<_>| of.len() == requests.len();
                    return decoded.filter(all).ok_or(PeerError::Unreachable);
                }
                Frame::Refused(error) => return Err(error),
                Frame::Data(_) | Frame::Rate(_) | Frame::End(_) | Frame::Failed(_) => {
                    return Err(PeerError::Unreachable);
                }
            }
        }
    }

    async fn read(
        &self,
        to: &PeerAddress,
        wanted: &PeerRead,
        peek: bool,
        patience: Duration,
    ) -> Result<PeerBody, PeerError> {
        let late = |_| PeerError::Unreachable;
        let charge = self.charge(RequestedMemory::read)?;
        let body = wire::encode_read(wanted, peek).map_err(|_| PeerError::Unreachable)?;
        let sent = timeout(patience, self.send(to, BLOCKS, body, charge)).await;
        let mut frames = sent.map_err(late)??;
        let mut rate = 0;
        loop {
            let frame = timeout(patience, frames.next()).await.map_err(late)?;
            match frame.map_err(|_| PeerError::Unreachable)? {
                Frame::Alive => {}
                Frame::Rate(found) => rate = found,
                Frame::Data(first) => {
                    let blocks = BlockStream {
                        frames,
                        first: Some(first),
                        left: wanted.range.end.saturating_sub(wanted.range.start),
                        received: 0,
                        ended: false,
                        stall: self.stall,
                    };
                    let bytes = blocks.into_stream();
                    return Ok(PeerBody { rate, bytes });
                }
                Frame::Refused(error) => return Err(error),
                // The node is well, but its origin is not, or it has nothing.
                Frame::Failed(_) | Frame::End(_) => return Err(PeerError::Absent),
                Frame::Response(_) => return Err(PeerError::Unreachable),
            }
        }
    }
}

/// A block stream that has begun.
struct BlockStream {
    frames: Frames,
    first: Option<Bytes>,
    /// Bytes of the range that are missing.
    left: u64,
    received: u64,
    ended: bool,
    stall: Duration,
}

impl BlockStream {
    /// Returns the bytes. The stream ends after the range; before it, it ends with an error.
    fn into_stream(self) -> BoxStream<'static, object_store::Result<Bytes>> {
        let items = stream::unfold(Some(self), |state| async move {
            let mut blocks = state?;
            match blocks.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(blocks))),
                Ok(None) => None,
                Err(source) => {
                    let error = object_store::Error::Generic {
                        store: "cluster",
                        source: Box::new(source),
                    };
                    Some((Err(error), None))
                }
            }
        });
        items.boxed()
    }

    /// Returns the next bytes; the last ones with the end of the response, unless it is late: a reader that polls no further
    /// leaves a connection that can be used again.
    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.ended {
            return Ok(None);
        }
        let bytes = match self.first.take() {
            Some(first) => self.data(first)?,
            None => match self.frame().await? {
                Frame::Data(bytes) => self.data(bytes)?,
                frame => return Err(unexpected(frame)),
            },
        };
        if self.left == 0 {
            self.ended = true;
            if let Ok(end) = timeout(END_PATIENCE, self.end()).await {
                end?;
            }
        }
        Ok(Some(bytes))
    }

    /// Reads the end of the response.
    async fn end(&mut self) -> Result<(), StreamError> {
        match self.frame().await? {
            Frame::End(total) if total == self.received => self.frames.finish().await,
            frame => Err(unexpected(frame)),
        }
    }

    /// Returns the next frame that is not a sign of life.
    async fn frame(&mut self) -> Result<Frame, StreamError> {
        loop {
            let frame = timeout(self.stall, self.frames.next()).await;
            match frame.map_err(|_| StreamError::Stalled)?? {
                Frame::Alive => {}
                frame => return Ok(frame),
            }
        }
    }

    /// Counts bytes; more than were asked for are an error.
    fn data(&mut self, bytes: Bytes) -> Result<Bytes, StreamError> {
        let length = bytes.len() as u64;
        self.left = self.left.checked_sub(length).ok_or(StreamError::Order)?;
        self.received += length;
        Ok(bytes)
    }
}

/// Returns why a frame that is neither bytes nor their end stops a block stream.
fn unexpected(frame: Frame) -> StreamError {
    match frame {
        Frame::End(_) => StreamError::Early,
        Frame::Failed(message) => StreamError::Failed(message),
        Frame::Alive | Frame::Data(_) | Frame::Rate(_) | Frame::Refused(_) | Frame::Response(_) => {
            StreamError::Order
        }
    }
}
