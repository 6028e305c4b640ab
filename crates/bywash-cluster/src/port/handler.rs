//! One request of another node: checks it, and hands it to the service.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use bywash::ByteCharge;
use futures::stream::{self, Stream};
use futures::{FutureExt as _, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::body::{block_frames, call_frames};
use super::identity::{Envelope, PEER_PROTOCOL, PROTOCOL, PeerIdentity, Refusal};
use super::memory::ServedMemory;
use super::settings::PortSettings;
use super::wire;
use crate::limits::MAX_CALL_BYTES;
use crate::message::PeerRequest;
use crate::transport::PeerService;

/// Path of calls.
pub(super) const CALL: &str = "/v1/call";
/// Path of block streams.
pub(super) const BLOCKS: &str = "/v1/blocks";

pub(super) type PortBody = UnsyncBoxBody<Bytes, Infallible>;

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Handler {
    pub(super) identity: Arc<PeerIdentity>,
    pub(super) service: Arc<dyn PeerService>,
    pub(super) settings: PortSettings,
    pub(super) memory: ServedMemory,
    pub(super) streams: Arc<Semaphore>,
}

impl Handler {
    /// Responds to a request. Its body is small and read whole; the response's is made as it is sent.
    pub(super) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<PortBody>, Infallible> {
        let response = self.respond(request).await;
        Ok(response.unwrap_or_else(|refusal| {
            tracing::debug!(%refusal, "a request of another node is refused");
            let text = Full::new(Bytes::from(refusal.to_string()));
            response_of(refusal.status(), text.boxed_unsync())
        }))
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<PortBody>, Refusal> {
        let envelope = self.identity.check(request.headers())?;
        if request.method() != Method::POST {
            return Err(Refusal::UnknownPath);
        }
        let path = request.uri().path().to_owned();
        let body = match path.as_str() {
            CALL => self.call(envelope, self.body(request).await?).await?,
            BLOCKS => self.blocks(envelope, self.body(request).await?).await?,
            _ => return Err(Refusal::UnknownPath),
        };
        Ok(response_of(StatusCode::OK, body))
    }

    /// Reads a body, with the charge of the memory for it and for the values decoded from it.
    async fn body(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Bytes, Option<ByteCharge>), Refusal> {
        let body = request.into_body();
        let longest = MAX_CALL_BYTES as u64;
        let stated = body.size_hint().upper().unwrap_or(longest);
        let mut limited = Limited::new(body, MAX_CALL_BYTES);
        let Ok(charge) = self.memory.message(stated.min(longest)) else {
            // Read to its end, so that its node gets the response, and nothing of it is kept.
            let discarded = async { while let Some(Ok(_)) = limited.frame().await {} };
            let _ = timeout(self.settings.body, discarded).await;
            return Err(Refusal::Busy);
        };
        let collected = timeout(self.settings.body, limited.collect()).await;
        match collected.map_err(|_| Refusal::BodyTooSlow)? {
            Ok(body) => Ok((body.to_bytes(), charge)),
            Err(error) if error.is::<LengthLimitError>() => Err(Refusal::BodyTooLong),
            Err(_) => Err(Refusal::Malformed),
        }
    }

    async fn call(
        &self,
        envelope: Envelope,
        (body, charge): (Bytes, Option<ByteCharge>),
    ) -> Result<PortBody, Refusal> {
        let requests = wire::decode_requests(&body).map_err(|_| Refusal::Malformed)?;
        drop(body);
        // The question for the word of an earlier process names its registration itself; the process that has the node's data
        // folder now answers it.
        let is_question = |request: &PeerRequest| matches!(request, PeerRequest::Released(_));
        if !requests.iter().all(is_question) && !self.service.is_current(envelope.to) {
            return Err(Refusal::OtherRegistration);
        }
        let service = Arc::clone(&self.service);
        let response = async move { service.respond(envelope.from, requests).await };
        let frames = call_frames(response.boxed(), self.settings.alive, charge);
        Ok(begun(frames).await)
    }

    async fn blocks(
        &self,
        envelope: Envelope,
        (body, _charge): (Bytes, Option<ByteCharge>),
    ) -> Result<PortBody, Refusal> {
        let (wanted, peek) = wire::decode_read(&body).map_err(|_| Refusal::Malformed)?;
        if !self.service.is_current(envelope.to) {
            return Err(Refusal::OtherRegistration);
        }
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::Busy)?;
        let service = Arc::clone(&self.service);
        let opening = async move { service.read(envelope.from, wanted, peek).await };
        let frames = block_frames(opening.boxed(), self.settings.alive, permit);
        Ok(begun(frames).await)
    }
}

/// Returns a body that has its first frame: the head of the response is sent with it.
async fn begun(
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> PortBody {
    let mut frames = Box::pin(frames);
    let first = frames.next().await;
    StreamBody::new(stream::iter(first).chain(frames)).boxed_unsync()
}

fn response_of(status: StatusCode, body: PortBody) -> Response<PortBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(PROTOCOL, HeaderValue::from(PEER_PROTOCOL));
    let kind = if status == StatusCode::OK {
        "application/x-bywash-frames"
    } else {
        "text/plain; charset=utf-8"
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
