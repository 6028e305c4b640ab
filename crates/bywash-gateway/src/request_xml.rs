//! Buffering of request XML for `s3s`, within a charge that grows with the body.
//!
//! Buffered here instead of by `s3s`, so that a body of tiny pieces does not become a list of tiny buffers, and so
//! that decoded values are charged too: the shortest element of a list takes seven bytes, its value a few hundred.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use quick_xml::Reader;
use quick_xml::events::Event;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::body::{BodyError, RequestContext};
use crate::documents::{Charge, Documents, RequestDocuments, no_room};
use crate::errors::{OperationContext, fault};
use crate::limits::{MAX_XML_BYTES, MAX_XML_ENTRIES};

/// Bytes charged before a body is read, and the first capacity of its buffer.
const STEP: usize = 64 << 10;
/// Bytes of the value of an element directly below the root, in a list that grows by doubling.
const ENTRY_BYTES: u64 = 512;
/// Bytes of any other element besides its text.
const ELEMENT_BYTES: u64 = 32;
/// Memory of each byte of a body whose chunks `s3s` decodes: a buffer of 32 bytes for each one-byte chunk of six
/// bytes.
const FRAMED_FACTOR: u64 = 8;

/// Destination of a body, and its charges.
pub(crate) struct Gather {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) documents: Arc<RequestDocuments>,
    pub(crate) chunks: SignedChunks,
    /// Whether chunk framing stays in the body.
    pub(crate) framed: bool,
    pub(crate) bucket: String,
    pub(crate) key: String,
}

/// Charge of one body for its longest signed chunk: `s3s` buffers one chunk until its signature is verified.
pub(crate) struct SignedChunks {
    all: Arc<Documents>,
    charge: Option<Charge>,
    /// Whether no piece of the body was passed on yet.
    is_first: bool,
}

impl SignedChunks {
    pub(crate) fn new(all: Arc<Documents>) -> Self {
        Self {
            all,
            charge: None,
            is_first: true,
        }
    }

    fn held(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Raises the charge to `bytes`. Waits only before the first piece: later the write may hold memory that other
    /// waiters need, which could deadlock.
    async fn charge(&mut self, bytes: u64, doing: OperationContext<'_>) -> S3Result<()> {
        if bytes > self.all.max_bytes() {
            let message = format!(
                "A signed chunk of {bytes} bytes does not fit the server's memory, which holds {}; send smaller chunks.",
                self.all.max_bytes()
            );
            return Err(fault(S3ErrorCode::InvalidRequest, message));
        }
        if self.is_first {
            self.charge = Some(self.all.charge(bytes, doing).await?);
            return Ok(());
        }
        let charge = match self.charge.take() {
            Some(mut charge) => self.all.try_raise(&mut charge, bytes).then_some(charge),
            None => self.all.try_charge(bytes),
        };
        self.charge = charge;
        if self.charge.is_some() {
            Ok(())
        } else {
            Err(self.all.refused(doing))
        }
    }
}

enum GatherState<S> {
    Unread(S, Gather),
    /// The operation streams the body.
    Streamed(S, Gather),
    Gathered,
}

/// Passes the body on unchanged if the operation streams it (see [`RequestContext::stream_body`]), otherwise buffered
/// as one piece.
pub(crate) fn gathered<S>(body: S, gather: Gather) -> impl Stream<Item = Result<Bytes, BodyError>>
where
    S: Stream<Item = Result<Bytes, BodyError>> + Unpin,
{
    futures::stream::unfold(
        GatherState::Unread(body, gather),
        async |state| match state {
            GatherState::Unread(mut body, mut gather) if gather.context.streams_body() => {
                let piece = gather.next_streamed(&mut body).await?;
                Some((piece, GatherState::Streamed(body, gather)))
            }
            GatherState::Unread(mut body, gather) => {
                let whole = Box::pin(gather.read(&mut body)).await;
                Some((whole, GatherState::Gathered))
            }
            GatherState::Streamed(mut body, mut gather) => {
                let piece = gather.next_streamed(&mut body).await?;
                Some((piece, GatherState::Streamed(body, gather)))
            }
            GatherState::Gathered => None,
        },
    )
}

impl Gather {
    async fn read<S>(&self, body: &mut S) -> Result<Bytes, BodyError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Unpin,
    {
        let factor = if self.framed { FRAMED_FACTOR } else { 1 };
        let doing = OperationContext::new("read the XML of a request to", &self.bucket, &self.key);
        let charge = self.documents.all().charge(STEP as u64 * factor, doing);
        let mut charge = charge.await.map_err(|error| self.note(&error))?;
        let mut whole = Vec::new();
        while let Some(piece) = body.next().await {
            let piece = piece?;
            let len = whole.len() + piece.len();
            if len > MAX_XML_BYTES {
                let message = format!("The body is longer than {MAX_XML_BYTES} bytes.");
                return Err(self
                    .context
                    .note(S3ErrorCode::MaxMessageLengthExceeded, message));
            }
            if len > whole.capacity() {
                let capacity = len.next_power_of_two().max(STEP);
                // Both buffers exist while the bytes move.
                let bytes = (whole.capacity() + capacity) as u64 * factor;
                self.raise(&mut charge, bytes)?;
                whole.reserve_exact(capacity - whole.len());
            }
            whole.extend_from_slice(&piece);
        }
        let (entries, elements) = count(&whole);
        if entries > MAX_XML_ENTRIES {
            let message = format!("The XML has {entries} entries; send at most {MAX_XML_ENTRIES}.");
            return Err(self.context.note(S3ErrorCode::MalformedXML, message));
        }
        let parsed = entries * ENTRY_BYTES + elements * ELEMENT_BYTES + whole.len() as u64;
        self.raise(&mut charge, whole.capacity() as u64 * factor + parsed)?;
        self.documents.hold(charge);
        Ok(whole.into())
    }

    /// Returns the next piece, within the charge if it belongs to a signed chunk.
    async fn next_streamed<S>(&mut self, body: &mut S) -> Option<Result<Bytes, BodyError>>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Unpin,
    {
        let piece = body.next().await?;
        let chunk = self.context.signed_chunk.load(Relaxed);
        // Short chunks are covered by the connection's memory.
        if chunk > STEP as u64 && chunk > self.chunks.held() {
            let doing = OperationContext::new("read a signed chunk of", &self.bucket, &self.key);
            if let Err(error) = Box::pin(self.chunks.charge(chunk, doing)).await {
                return Some(Err(self.note(&error)));
            }
        }
        self.chunks.is_first = false;
        Some(piece)
    }

    fn note(&self, error: &S3Error) -> BodyError {
        let message = error.message().unwrap_or_default().to_owned();
        self.context.note(error.code().clone(), message)
    }

    fn raise(&self, charge: &mut Charge, bytes: u64) -> Result<(), BodyError> {
        if self.documents.all().try_raise(charge, bytes) {
            return Ok(());
        }
        Err(self
            .context
            .note(S3ErrorCode::SlowDown, no_room("the request's XML")))
    }
}

/// Counts elements directly below the root, and all others, up to where `s3s` stops: it uses the same parser.
fn count(xml: &[u8]) -> (u64, u64) {
    let mut reader = Reader::from_reader(xml);
    let (mut depth, mut entries, mut elements) = (0_u64, 0, 0);
    loop {
        let opened = match reader.read_event() {
            Ok(Event::Eof) | Err(_) => return (entries, elements),
            Ok(Event::Start(_)) => true,
            Ok(Event::Empty(_)) => false,
            Ok(Event::End(_)) => {
                depth = depth.saturating_sub(1);
                continue;
            }
            Ok(_) => continue,
        };
        if depth == 1 {
            entries += 1;
        } else {
            elements += 1;
        }
        depth += u64::from(opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_by_depth() {
        let xml = b"<A><P><x>1</x><y/></P><P/>text<P></P></A>";
        assert_eq!(count(xml), (3, 3));
        assert_eq!(count(b"<A><P/><P"), (1, 1));
        assert_eq!(count(b""), (0, 0));
    }
}
