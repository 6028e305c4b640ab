//! The aws-chunked framing of request bodies.
//!
//! Source: "Signature calculations for the Authorization header: transferring payload in multiple chunks", Amazon S3
//! API reference. A chunk is `SIZE[;chunk-signature=SIG]\r
//! DATA\r
//! `, size in hex; a chunk of size 0 ends the data and is followed by trailers.
//!
//! `s3s` decodes the framing of signed requests but buffers each chunk until it is complete, and some clients send an
//! object as one unsigned chunk. So unsigned chunks are split before they reach `s3s` ([`ChunkFraming::Reframe`]) and signed
//! ones limited in size ([`ChunkFraming::Guard`]). Requests whose signature is not verified are decoded here
//! ([`ChunkFraming::Decode`]).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::S3ErrorCode;

use crate::body::{BodyError, RequestContext};
use crate::limits::{
    MAX_CHUNK_LINE_BYTES, MAX_COPIED_PIECE_BYTES, MAX_SIGNED_CHUNK_BYTES, MAX_TRAILER_BYTES,
};

/// Treatment of the framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkFraming {
    /// Decoded; trailers are stored in the request's context.
    Decode,
    /// Split into chunks as small as the pieces from the socket.
    Reframe,
    /// Unchanged; only the size of a chunk is limited.
    Guard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size,
    Data(u64),
    DataEnd(u8),
    Trailers,
    Done,
}

/// A request body in aws-chunked framing.
#[derive(Debug)]
pub(crate) struct ChunkedBody<S> {
    body: S,
    mode: ChunkFraming,
    state: ChunkState,
    input: Bytes,
    line: Vec<u8>,
    /// Pieces of a signed chunk to be passed on together.
    small: Vec<u8>,
    output: VecDeque<Bytes>,
    context: Arc<RequestContext>,
}

impl<S> ChunkedBody<S> {
    pub(crate) fn new(body: S, mode: ChunkFraming, context: Arc<RequestContext>) -> Self {
        let (input, line, output) = (Bytes::new(), Vec::new(), VecDeque::new());
        Self {
            body,
            mode,
            state: ChunkState::Size,
            input,
            line,
            small: Vec::new(),
            output,
            context,
        }
    }

    fn malformed(&self, what: &str) -> BodyError {
        self.context.note(
            S3ErrorCode::InvalidRequest,
            format!("The aws-chunked body is malformed: {what}."),
        )
    }

    /// Consumes input as far as the current state allows.
    fn step(&mut self) -> Result<(), BodyError> {
        match self.state {
            ChunkState::Size => self.step_size(),
            ChunkState::Data(left) => {
                let take = left.min(self.input.len() as u64);
                let data = self.input.split_to(take as usize);
                if self.mode == ChunkFraming::Reframe {
                    self.output.push_back(Bytes::from(format!("{take:x}\r\n")));
                    self.output.push_back(data);
                    self.output.push_back(Bytes::from_static(b"\r\n"));
                } else if self.mode == ChunkFraming::Guard {
                    self.gather_piece(data, take == left);
                } else {
                    self.output.push_back(data);
                }
                self.state = if take == left {
                    ChunkState::DataEnd(0)
                } else {
                    ChunkState::Data(left - take)
                };
                Ok(())
            }
            ChunkState::DataEnd(seen) => {
                if self.input.get_u8() != b"\r\n"[usize::from(seen)] {
                    return Err(self.malformed("a chunk's data is longer than its size"));
                }
                self.state = if seen == 0 {
                    ChunkState::DataEnd(1)
                } else {
                    ChunkState::Size
                };
                if seen == 1 && self.mode == ChunkFraming::Guard {
                    self.output.push_back(Bytes::from_static(b"\r\n"));
                }
                Ok(())
            }
            ChunkState::Trailers if self.mode == ChunkFraming::Decode => {
                if self.line.len() + self.input.len() > MAX_TRAILER_BYTES {
                    return Err(self.malformed("its trailers are too long"));
                }
                self.line
                    .extend_from_slice(&std::mem::take(&mut self.input));
                Ok(())
            }
            ChunkState::Trailers | ChunkState::Done => {
                self.output.push_back(std::mem::take(&mut self.input));
                Ok(())
            }
        }
    }

    /// Passes on a piece of a signed chunk. Small pieces are joined: `s3s` keeps a list of them until the chunk is
    /// complete.
    fn gather_piece(&mut self, data: Bytes, ends: bool) {
        let is_whole = ends && self.small.is_empty();
        if data.len() < MAX_COPIED_PIECE_BYTES && !is_whole {
            self.small.extend_from_slice(&data);
            if ends || self.small.len() >= MAX_COPIED_PIECE_BYTES {
                self.output
                    .push_back(std::mem::take(&mut self.small).into());
            }
            return;
        }
        if !self.small.is_empty() {
            self.output
                .push_back(std::mem::take(&mut self.small).into());
        }
        self.output.push_back(data);
    }

    fn step_size(&mut self) -> Result<(), BodyError> {
        let end = self.input.iter().position(|byte| *byte == b'\n');
        let take = end.map_or(self.input.len(), |end| end + 1);
        self.line.extend_from_slice(&self.input.split_to(take));
        if self.line.len() > MAX_CHUNK_LINE_BYTES {
            return Err(self.malformed("the line before a chunk is too long"));
        }
        if end.is_none() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        let digits = line
            .split(|byte| matches!(byte, b';' | b'\r'))
            .next()
            .unwrap_or_default();
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let Some(size) = size.filter(|_| line.ends_with(b"\r\n")) else {
            return Err(self.malformed("a chunk does not begin with its size"));
        };
        if self.mode == ChunkFraming::Guard {
            if size > MAX_SIGNED_CHUNK_BYTES {
                let what = format!(
                    "a signed chunk of {size} bytes is larger than {MAX_SIGNED_CHUNK_BYTES}"
                );
                return Err(self.malformed(&what));
            }
            // Read when the chunk is charged; publishes nothing else.
            self.context.signed_chunk.fetch_max(size, Relaxed);
            self.output.push_back(Bytes::from(line));
        } else if size == 0 && self.mode == ChunkFraming::Reframe {
            self.output.push_back(Bytes::from_static(b"0\r\n"));
        }
        self.state = if size == 0 {
            ChunkState::Trailers
        } else {
            ChunkState::Data(size)
        };
        Ok(())
    }

    /// Handles the end of the client's body.
    fn end(&mut self) -> Result<(), BodyError> {
        match self.state {
            ChunkState::Trailers => {
                if self.mode == ChunkFraming::Decode {
                    let trailers = self.parse_trailers()?;
                    // Set once: this state is not entered again.
                    let _ = self.context.trailers.set(trailers);
                }
                self.state = ChunkState::Done;
                Ok(())
            }
            ChunkState::Done => Ok(()),
            ChunkState::Size | ChunkState::Data(_) | ChunkState::DataEnd(_) => {
                let message =
                    "The aws-chunked body ended before its last chunk; nothing was stored.";
                Err(self.context.note(S3ErrorCode::IncompleteBody, message))
            }
        }
    }

    fn parse_trailers(&self) -> Result<HeaderMap, BodyError> {
        let mut trailers = HeaderMap::new();
        for line in self
            .line
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty())
        {
            let colon = line.iter().position(|byte| *byte == b':');
            let pair = colon.and_then(|colon| {
                let name = HeaderName::from_bytes(line[..colon].trim_ascii()).ok()?;
                Some((
                    name,
                    HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?,
                ))
            });
            let Some((name, value)) = pair else {
                return Err(self.malformed("a trailer is not `name:value`"));
            };
            trailers.append(name, value);
        }
        Ok(trailers)
    }
}

impl<S: Stream<Item = Result<Bytes, BodyError>> + Unpin> Stream for ChunkedBody<S> {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.output.pop_front() {
                return Poll::Ready(Some(Ok(bytes)));
            }
            if this.input.is_empty() {
                match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                    Some(Ok(bytes)) => this.input = bytes,
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(this.end().err().map(Err)),
                }
                continue;
            }
            if let Err(error) = this.step() {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
