//! Buffering of request XML for `s3s`, within a charge that grows with the body.
//!
//! Buffered here instead of by `s3s`, so that a body of tiny pieces does not become a list of tiny buffers, and so
//! that decoded values are charged too: the shortest element of a list takes seven bytes, its value a few hundred.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use quick_xml::events::Event;
use quick_xml::{Reader, Writer};
use s3s::{S3Error, S3ErrorCode};
use sha2::{Digest as _, Sha256};

use crate::body::{BodyError, RequestContext};
use crate::documents::{Charge, RequestDocuments, no_room};
use crate::errors::{OperationContext, WithElements, fault};
use crate::host::Target;
use crate::limits::{MAX_XML_BYTES, MAX_XML_ENTRIES};
use crate::verify::{Checks, check_payload};

/// Bytes charged before a body is read, and the first capacity of its buffer.
const STEP: usize = 64 << 10;
/// Bytes of the value of an element directly below the root, in a list that grows by doubling.
const ENTRY_BYTES: u64 = 512;
/// Bytes of any other element in addition to its text.
const ELEMENT_BYTES: u64 = 32;
/// Destination of a body, and its charges.
pub(crate) struct Gather {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) documents: Arc<RequestDocuments>,
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// The digests that the request announces for its XML.
    checks: Checks,
}

enum GatherState<S> {
    Unread(S, Gather),
    /// The operation streams the body.
    Streamed(S),
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
            GatherState::Unread(mut body, gather) if gather.context.streams_body() => {
                let piece = body.next().await?;
                Some((piece, GatherState::Streamed(body)))
            }
            GatherState::Unread(mut body, mut gather) => {
                let whole = Box::pin(gather.read(&mut body)).await;
                Some((whole, GatherState::Gathered))
            }
            GatherState::Streamed(mut body) => {
                let piece = body.next().await?;
                Some((piece, GatherState::Streamed(body)))
            }
            GatherState::Gathered => None,
        },
    )
}

impl Gather {
    pub(crate) fn new(
        context: &Arc<RequestContext>,
        documents: &Arc<RequestDocuments>,
        target: &Target,
        checks: Checks,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            documents: Arc::clone(documents),
            bucket: target.bucket.clone(),
            key: target.key.clone(),
            checks,
        }
    }

    async fn read<S>(&mut self, body: &mut S) -> Result<Bytes, BodyError>
    where
        S: Stream<Item = Result<Bytes, BodyError>> + Unpin,
    {
        let doing = OperationContext::new("read the XML of a request to", &self.bucket, &self.key);
        let charge = self.documents.all().charge(STEP as u64, doing);
        let mut charge = charge.await.map_err(|error| self.note(&error))?;
        let mut whole = Vec::new();
        while let Some(piece) = body.next().await {
            let piece = piece?;
            let len = whole.len() + piece.len();
            if len > MAX_XML_BYTES {
                let message = format!("The body is longer than {MAX_XML_BYTES} bytes.");
                let error = fault(S3ErrorCode::MaxMessageLengthExceeded, message);
                let max = MAX_XML_BYTES.to_string();
                let error = error.with([("MaxMessageLengthBytes", max)]);
                return Err(self.context.note_fault(&error));
            }
            if len > whole.capacity() {
                let capacity = len.next_power_of_two().max(STEP);
                // Both buffers exist while the bytes move.
                let bytes = (whole.capacity() + capacity) as u64;
                self.raise(&mut charge, bytes)?;
                whole.reserve_exact(capacity - whole.len());
            }
            whole.extend_from_slice(&piece);
        }
        self.checks.update(&whole);
        self.checks.finish(&self.context)?;
        if self.context.payload_sha256.get().is_some() {
            check_payload(&self.context, &Sha256::digest(&whole))?;
        }
        if has_cdata(&whole) {
            let bytes = whole.capacity() + ESCAPED_BYTES * whole.len();
            self.raise(&mut charge, bytes as u64)?;
            // A body that is no XML is refused below.
            if let Ok(mut text) = as_text(&whole) {
                if text.len() > whole.len() {
                    let message = "The XML has CDATA sections with many characters of markup; escape these instead.";
                    return Err(self.context.note(S3ErrorCode::MalformedXML, message));
                }
                // `s3s` compares the length with the announced one.
                text.resize(whole.len(), b' ');
                whole = text;
            }
        }
        let (entries, elements) = count(&whole);
        if entries > MAX_XML_ENTRIES {
            let message = format!("The XML has {entries} entries; send at most {MAX_XML_ENTRIES}.");
            return Err(self.context.note(S3ErrorCode::MalformedXML, message));
        }
        let parsed = entries * ENTRY_BYTES + elements * ELEMENT_BYTES + whole.len() as u64;
        self.raise(&mut charge, whole.capacity() as u64 + parsed)?;
        self.documents.hold(charge);
        Ok(whole.into())
    }

    fn note(&self, error: &S3Error) -> BodyError {
        self.context.note_fault(error)
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

/// Bytes of the longest reference by which a byte is escaped.
const ESCAPED_BYTES: usize = 6;

fn has_cdata(xml: &[u8]) -> bool {
    const BEGIN: &[u8] = b"<![CDATA[";
    xml.windows(BEGIN.len()).any(|bytes| bytes == BEGIN)
}

/// The document with its CDATA sections as escaped text: `s3s` would leave them out, and take a value in one for an empty value.
fn as_text(xml: &[u8]) -> Result<Vec<u8>, quick_xml::Error> {
    let mut reader = Reader::from_reader(xml);
    let mut writer = Writer::new(Vec::with_capacity(xml.len()));
    loop {
        match reader.read_event()? {
            Event::Eof => return Ok(writer.into_inner()),
            Event::CData(section) => writer.write_event(Event::Text(section.escape()?))?,
            other => writer.write_event(other)?,
        }
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
    fn cdata_becomes_text() {
        let xml = b"<?xml version=\"1.0\"?><A b=\"1\"><!-- <![CDATA[no]]> --><P>x<![CDATA[<a>&]]>y&amp;</P><P><![CDATA[]]></P></A>";
        let text = String::from_utf8(as_text(xml).unwrap()).unwrap();
        assert_eq!(
            text,
            "<?xml version=\"1.0\"?><A b=\"1\"><!-- <![CDATA[no]]> --><P>x&lt;a&gt;&amp;y&amp;</P><P></P></A>"
        );
        assert!(as_text(b"<A><![CDATA[x</A>").is_err());
        assert!(has_cdata(xml) && !has_cdata(b"<A/>"));
    }

    #[test]
    fn elements_are_counted_by_depth() {
        let xml = b"<A><P><x>1</x><y/></P><P/>text<P></P></A>";
        assert_eq!(count(xml), (3, 3));
        assert_eq!(count(b"<A><P/><P"), (1, 1));
        assert_eq!(count(b""), (0, 0));
    }
}
