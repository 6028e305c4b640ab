//! Refuses HTTP/2 without TLS in its own protocol: the servers speak HTTP/1.1.
//!
//! gRPC clients begin so. Without a response that they understand they take the server for one that starts, and try for minutes.
//! Each of their calls gets the status UNIMPLEMENTED, after which they stop or use HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::MAX_REFUSED_HTTP2_BYTES;

/// First bytes of a client's connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the head of a frame: length, type, flags, stream.
const FRAME_HEAD: usize = 9;
/// Bytes of a ping, which its response repeats.
const PING: usize = 8;
/// Bytes read at a time.
const PIECE: usize = 1024;

const HEADERS: u8 = 0x1;
const SETTINGS: u8 = 0x4;
const PING_FRAME: u8 = 0x6;
const GOAWAY: u8 = 0x7;
/// Flags: of settings and pings a response, of headers all of a response.
const ACK: u8 = 0x1;
const WHOLE_RESPONSE: u8 = 0x5;

const MESSAGE: &str = "This server has no gRPC: use its JSON API over HTTP/1.1";

/// Action for the payload of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    Skip,
    Repeat,
}

/// The refusing side of one connection: bytes of the client in, bytes for it out.
#[derive(Debug)]
struct Refusal {
    /// Bytes of the preface that are to come.
    preface: usize,
    head: Vec<u8>,
    payload: Payload,
    /// Bytes of the current frame's payload that are to come.
    left: usize,
    /// The highest stream that was refused.
    last_stream: u32,
    /// Bytes to send.
    output: Vec<u8>,
    sent: usize,
    taken: usize,
    ended: bool,
}

impl Refusal {
    fn new() -> Self {
        let mut refusal = Self {
            preface: PREFACE.len(),
            head: Vec::with_capacity(FRAME_HEAD),
            payload: Payload::Skip,
            left: 0,
            last_stream: 0,
            output: Vec::new(),
            sent: 0,
            taken: 0,
            ended: false,
        };
        refusal.send(SETTINGS, 0, 0, &[]);
        refusal
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or_default();
        self.output.extend(&length.to_be_bytes()[1..]);
        self.output.extend([kind, flags]);
        self.output.extend(stream.to_be_bytes());
        self.output.extend(payload);
    }

    /// Takes bytes of the client.
    fn feed(&mut self, mut bytes: &[u8]) {
        self.taken += bytes.len();
        let skipped = self.preface.min(bytes.len());
        self.preface -= skipped;
        bytes = &bytes[skipped..];
        while !bytes.is_empty() && !self.ended {
            if self.left > 0 {
                let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= payload.len();
                bytes = rest;
                if self.payload == Payload::Repeat {
                    self.output.extend(payload);
                }
                continue;
            }
            let wanted = FRAME_HEAD - self.head.len();
            let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.head.extend(head);
            bytes = rest;
            if self.head.len() == FRAME_HEAD {
                self.frame();
                self.head.clear();
            }
        }
        self.ended |= self.taken > MAX_REFUSED_HTTP2_BYTES;
    }

    /// Begins the frame whose head is complete.
    fn frame(&mut self) {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let (length, stream) = (
            number(&self.head[..3]),
            number(&self.head[5..]) & !(1 << 31),
        );
        let (kind, flags) = (self.head[3], self.head[4]);
        self.left = length as usize;
        self.payload = Payload::Skip;
        match kind {
            SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]),
            // Others of the same stream are trailers.
            HEADERS if stream > self.last_stream => {
                self.last_stream = stream;
                self.send(HEADERS, WHOLE_RESPONSE, stream, &response());
            }
            PING_FRAME if flags & ACK == 0 && self.left == PING => {
                self.payload = Payload::Repeat;
                // Its payload follows as it arrives.
                self.output
                    .extend([0, 0, PING as u8, PING_FRAME, ACK, 0, 0, 0, 0]);
            }
            GOAWAY => self.ended = true,
            _ => {}
        }
    }
}

/// The compressed head of a response: 404, so that no other client takes it for a success, and the
/// status of gRPC.
fn response() -> Vec<u8> {
    // `:status: 404`, and the name of `content-type`, by their numbers in the table of HPACK.
    let mut head = vec![0x8d, 0x0f, 0x10];
    let mut text = |text: &str| {
        head.push(u8::try_from(text.len()).unwrap_or_default());
        head.extend(text.as_bytes());
    };
    text("application/grpc");
    // A name that is in no table begins with 0.
    text("");
    text("grpc-status");
    text("12");
    text("");
    text("grpc-message");
    text(MESSAGE);
    head
}

#[derive(Debug)]
enum State {
    /// No byte has been read.
    Fresh,
    Http1,
    Http2(Box<Refusal>),
}

/// A socket whose reader gets the end of the stream in place of HTTP/2, which is refused.
#[derive(Debug)]
pub(crate) struct Http1Only<S> {
    io: S,
    state: State,
}

impl<S> Http1Only<S> {
    pub(crate) fn new(io: S) -> Self {
        Self {
            io,
            state: State::Fresh,
        }
    }
}

/// Refuses all that the client sends. Ready once it sends no more.
fn poll_refuse<S: AsyncRead + AsyncWrite + Unpin>(
    io: &mut S,
    refusal: &mut Refusal,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        while refusal.sent < refusal.output.len() {
            let written = Pin::new(&mut *io).poll_write(cx, &refusal.output[refusal.sent..]);
            match ready!(written)? {
                0 => return Poll::Ready(Ok(())),
                written => refusal.sent += written,
            }
        }
        refusal.output.clear();
        refusal.sent = 0;
        ready!(Pin::new(&mut *io).poll_flush(cx))?;
        if refusal.ended {
            return Poll::Ready(Ok(()));
        }
        let mut piece = [0; PIECE];
        let mut buf = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut *io).poll_read(cx, &mut buf))?;
        if buf.filled().is_empty() {
            return Poll::Ready(Ok(()));
        }
        refusal.feed(buf.filled());
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Http1Only<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.state {
            State::Http1 => return Pin::new(&mut this.io).poll_read(cx, buf),
            State::Http2(refusal) => return poll_refuse(&mut this.io, refusal, cx),
            State::Fresh => {}
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let first = &buf.filled()[before..];
        // Clients send the preface whole, in their first segment.
        if !first.starts_with(PREFACE) {
            this.state = State::Http1;
            return Poll::Ready(Ok(()));
        }
        tracing::debug!("a client began with HTTP/2, as those of gRPC do; it is refused");
        let mut refusal = Refusal::new();
        refusal.feed(first);
        buf.set_filled(before);
        let refusal = Box::new(refusal);
        this.state = State::Http2(refusal);
        Pin::new(this).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http1Only<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frames = Refusal::new();
        frames.output.clear();
        frames.send(kind, flags, stream, payload);
        frames.output
    }

    /// Bytes that a gRPC client sends: settings, a ping, a call with its message, and one more.
    fn client() -> Vec<u8> {
        let call = |stream| frame(HEADERS, 0x4, stream, &[0x82; 300]);
        [
            PREFACE.to_vec(),
            frame(SETTINGS, 0, 0, &[0; 12]),
            frame(SETTINGS, ACK, 0, &[]),
            frame(PING_FRAME, 0, 0, b"12345678"),
            call(1),
            frame(0, 0x1, 1, &[0; 40]),
            call(3),
            // Trailers of a call.
            call(3),
        ]
        .concat()
    }

    fn server() -> Vec<u8> {
        [
            frame(SETTINGS, 0, 0, &[]),
            frame(SETTINGS, ACK, 0, &[]),
            frame(PING_FRAME, ACK, 0, b"12345678"),
            frame(HEADERS, WHOLE_RESPONSE, 1, &response()),
            frame(HEADERS, WHOLE_RESPONSE, 3, &response()),
        ]
        .concat()
    }

    #[test]
    fn each_call_is_refused_however_its_bytes_are_cut() {
        let sent = client();
        for length in [1, 2, 7, 9, 10, sent.len()] {
            let mut refusal = Refusal::new();
            sent.chunks(length).for_each(|piece| refusal.feed(piece));
            assert!(refusal.output == server() && !refusal.ended, "{length}");
        }
        let head = response();
        let text = String::from_utf8_lossy(&head);
        assert!(text.contains("grpc-status") && text.contains(MESSAGE));
        // A length above this needs another encoding.
        assert!(MESSAGE.len() < 127);
    }

    #[test]
    fn client_that_leaves_or_sends_without_end_is_left() {
        let mut refusal = Refusal::new();
        refusal.feed(PREFACE);
        refusal.feed(&frame(GOAWAY, 0, 0, &[0; 8]));
        assert!(refusal.ended);
        let mut refusal = Refusal::new();
        refusal.feed(PREFACE);
        let data = frame(0, 0, 1, &[0; 1024]);
        let mut sent = PREFACE.len();
        while sent + data.len() <= MAX_REFUSED_HTTP2_BYTES {
            refusal.feed(&data);
            sent += data.len();
            assert!(!refusal.ended);
        }
        refusal.feed(&data);
        assert!(refusal.ended);
    }
}
