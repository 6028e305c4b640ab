//! Bodies of responses: frames, made as the connection takes them.
//!
//! After the first frame the service is polled by the body alone, so a client that reads slowly slows it down, and one that
//! leaves drops it.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use bywash::ByteCharge;
use bywash::cluster::{CurrentVersion, PeerBody};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, Stream, StreamExt as _};
use http_body::Frame;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::frame::FrameWriter;
use super::wire::encode_responses;
use crate::message::PeerResponse;
use crate::transport::PeerError;

type Item = Result<Frame<Bytes>, Infallible>;
type ByteStream = BoxStream<'static, object_store::Result<Bytes>>;

fn ticks(alive: Duration) -> Interval {
    // A response that is ready soon needs no sign of life, and is sent with its head in one packet.
    let mut ticks = interval_at(Instant::now() + alive / 10, alive);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Frames of the responses to a call. Its charge is released with them.
pub(super) fn call_frames(
    responses: BoxFuture<'static, Vec<PeerResponse<CurrentVersion>>>,
    alive: Duration,
    charge: Option<ByteCharge>,
) -> impl Stream<Item = Item> + Send {
    let state = (Some(responses), FrameWriter::new(), ticks(alive), charge);
    stream::unfold(
        state,
        |(responses, mut writer, mut ticks, charge)| async move {
            let mut pending = responses?;
            let (frame, responses) = tokio::select! {
                biased;
                responses = &mut pending => (response_frame(&mut writer, &responses), None),
                _ = ticks.tick() => (writer.alive(), Some(pending)),
            };
            Some((Ok(Frame::data(frame)), (responses, writer, ticks, charge)))
        },
    )
}

/// Responses that cannot be encoded, or are too long for a frame, lead to the origin.
fn response_frame(writer: &mut FrameWriter, responses: &[PeerResponse<CurrentVersion>]) -> Bytes {
    let encoded = encode_responses(responses).ok();
    if let Some(frame) = encoded.and_then(|encoded| writer.response(&encoded)) {
        return frame;
    }
    let other = vec![PeerResponse::AskOrigin; responses.len()];
    let other = encode_responses(&other).ok();
    let other = other.and_then(|encoded| writer.response(&encoded));
    other.unwrap_or_else(|| writer.refused(PeerError::Absent))
}

/// A block stream on its way.
struct Blocks {
    source: Source,
    /// The service's last item that is not sent yet.
    rest: Bytes,
    /// Payload of the frame whose head was returned last.
    payload: Option<Bytes>,
    sent: u64,
    writer: FrameWriter,
    ticks: Interval,
    _permit: OwnedSemaphorePermit,
}

enum Source {
    Opening(BoxFuture<'static, Result<PeerBody, PeerError>>),
    Open(ByteStream),
    Ended,
}

/// Next result of the service.
enum Progress {
    Tick,
    Opened(Result<PeerBody, PeerError>),
    Item(Option<object_store::Result<Bytes>>),
}

/// Frames of a block stream. The permit is released with them.
pub(super) fn block_frames(
    opening: BoxFuture<'static, Result<PeerBody, PeerError>>,
    alive: Duration,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Item> + Send {
    let blocks = Blocks {
        source: Source::Opening(opening),
        rest: Bytes::new(),
        payload: None,
        sent: 0,
        writer: FrameWriter::new(),
        ticks: ticks(alive),
        _permit: permit,
    };
    stream::unfold(blocks, |mut blocks| async move {
        let bytes = blocks.next().await?;
        Some((Ok(Frame::data(bytes)), blocks))
    })
}

impl Blocks {
    /// Returns the next bytes of the body.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(payload) = self.payload.take() {
                return Some(payload);
            }
            if !self.rest.is_empty() {
                let [head, payload] = self.writer.data(&mut self.rest);
                self.sent += payload.len() as u64;
                self.payload = Some(payload);
                self.ticks.reset();
                return Some(head);
            }
            match self.progress().await? {
                Progress::Tick => return Some(self.writer.alive()),
                Progress::Opened(Ok(found)) => {
                    self.source = Source::Open(found.bytes);
                    if found.rate > 0 {
                        return Some(self.writer.rate(found.rate));
                    }
                }
                Progress::Opened(Err(error)) => {
                    self.source = Source::Ended;
                    return Some(self.writer.refused(error));
                }
                Progress::Item(Some(Ok(bytes))) => self.rest = bytes,
                Progress::Item(Some(Err(error))) => {
                    self.source = Source::Ended;
                    return Some(self.writer.failed(&error.to_string()));
                }
                Progress::Item(None) => {
                    self.source = Source::Ended;
                    return Some(self.writer.end(self.sent));
                }
            }
        }
    }

    async fn progress(&mut self) -> Option<Progress> {
        let service = async {
            match &mut self.source {
                Source::Opening(opening) => Some(Progress::Opened(opening.await)),
                Source::Open(stream) => Some(Progress::Item(stream.next().await)),
                Source::Ended => None,
            }
        };
        tokio::select! {
            biased;
            progress = service => progress,
            _ = self.ticks.tick() => Some(Progress::Tick),
        }
    }
}
