//! The aws-chunked framing of request bodies.
//!
//! Source: "Signature calculations for the Authorization header: transferring payload in multiple chunks", Amazon S3
//! API reference. A chunk is `SIZE[;chunk-signature=SIG]\r\nDATA\r\n`, size in hex; a chunk of size 0 ends the data and is
//! followed by trailers.
//!
//! The bytes of a chunk are passed on before its signature is known to be right: the body fails at its end if it is not,
//! and [`crate::verify::VerifiedBody`] keeps its last piece until then.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::S3ErrorCode;

use crate::body::{BodyError, RequestContext};
use crate::limits::{MAX_CHUNK_LINE_BYTES, MAX_TRAILER_BYTES};
use crate::sigv4::chunks::ChunkVerifier;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size,
    Data(u64),
    DataEnd(u8),
    Trailers,
    Done,
}

/// Verifies chunks that are signed.
#[derive(Debug)]
pub(crate) struct SignedChunks {
    pub(crate) verifier: ChunkVerifier,
    /// Whether the trailers are signed too.
    pub(crate) with_trailer: bool,
}

/// A request body in aws-chunked framing, as its bytes. Its trailers are stored in the request's context.
#[derive(Debug)]
pub(crate) struct ChunkedBody<S> {
    body: S,
    signed: Option<SignedChunks>,
    state: ChunkState,
    input: Bytes,
    line: Vec<u8>,
    context: Arc<RequestContext>,
}

impl<S> ChunkedBody<S> {
    /// `signed`: verifies the chunks; `None` if they are not signed, or nothing is verified.
    pub(crate) fn new(body: S, signed: Option<SignedChunks>, context: Arc<RequestContext>) -> Self {
        Self {
            body,
            signed,
            state: ChunkState::Size,
            input: Bytes::new(),
            line: Vec::new(),
            context,
        }
    }

    fn malformed(&self, what: &str) -> BodyError {
        self.context.note(
            S3ErrorCode::InvalidRequest,
            format!("The aws-chunked body is malformed: {what}."),
        )
    }

    fn wrong_signature(&self, of: &str) -> BodyError {
        let message = format!("The signature of {of} does not match; nothing was stored.");
        self.context
            .note(S3ErrorCode::SignatureDoesNotMatch, message)
    }

    /// Consumes input as far as the current state allows. Returns bytes of the body.
    fn step(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self.state {
            ChunkState::Size => self.step_size().map(|()| None),
            ChunkState::Data(left) => {
                let take = left.min(self.input.len() as u64);
                let data = self.input.split_to(take as usize);
                if let Some(signed) = &mut self.signed {
                    signed.verifier.update(&data);
                }
                self.state = ChunkState::Data(left - take);
                if take == left {
                    self.end_chunk()?;
                    self.state = ChunkState::DataEnd(0);
                }
                Ok(Some(data))
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
                Ok(None)
            }
            ChunkState::Trailers | ChunkState::Done => {
                if self.line.len() + self.input.len() > MAX_TRAILER_BYTES {
                    return Err(self.malformed("its trailers are too long"));
                }
                self.line
                    .extend_from_slice(&std::mem::take(&mut self.input));
                Ok(None)
            }
        }
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
        let digits = line.iter().position(|byte| matches!(byte, b';' | b'\r'));
        let (digits, extension) = line.split_at(digits.unwrap_or(line.len()));
        let size = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let Some(size) = size.filter(|_| line.ends_with(b"\r\n")) else {
            return Err(self.malformed("a chunk does not begin with its size"));
        };
        if let Some(signed) = &mut self.signed
            && !signed.verifier.begin(extension)
        {
            return Err(self.malformed("a chunk has no signature"));
        }
        if size > 0 {
            self.state = ChunkState::Data(size);
            return Ok(());
        }
        self.state = ChunkState::Trailers;
        self.end_chunk()
    }

    fn end_chunk(&mut self) -> Result<(), BodyError> {
        let signed = self.signed.as_mut();
        if signed.is_none_or(|signed| signed.verifier.end()) {
            Ok(())
        } else {
            Err(self.wrong_signature("a chunk"))
        }
    }

    /// Handles the end of the client's body.
    fn end(&mut self) -> Result<(), BodyError> {
        match self.state {
            ChunkState::Trailers => {
                let trailers = self.parse_trailers()?;
                if let Some(signed) = &self.signed
                    && (signed.with_trailer || !trailers.is_empty())
                    && !signed.verifier.end_trailers(&trailers)
                {
                    return Err(self.wrong_signature("the trailers"));
                }
                // Set once: this state is not entered again.
                let _ = self.context.trailers.set(trailers);
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
            if this.input.is_empty() {
                match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                    Some(Ok(bytes)) => this.input = bytes,
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(this.end().err().map(Err)),
                }
                continue;
            }
            match this.step() {
                Ok(None) => {}
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(bytes))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
