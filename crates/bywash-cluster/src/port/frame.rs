//! Frames of a response's body.
//!
//! A frame is its kind (1 byte), the length of its payload (4), the CRC32C of the payloads of all frames of the body so far, its
//! own included (4), and the payload; numbers are little-endian. As the checksum runs on, it is wrong after a lost, a repeated and
//! a swapped frame too.

use bytes::{BufMut as _, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};

use crate::limits::{MAX_FAILURE_BYTES, MAX_FRAME_BYTES};
use crate::transport::PeerError;

/// Bytes before the payload.
const HEAD_BYTES: usize = 9;

const ALIVE: u8 = 0;
const RESPONSE: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const REFUSED: u8 = 4;
const FAILED: u8 = 5;
const RATE: u8 = 6;

/// A frame of a response's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// The node works on it.
    Alive,
    /// The encoded response to a call. Nothing follows.
    Response(Bytes),
    /// The next bytes of a block stream.
    Data(Bytes),
    /// Requests a second for the bytes that follow, at the node that owns them; sent before the
    /// first bytes.
    Rate(u32),
    /// The stream has ended after this number of bytes. Nothing follows.
    End(u64),
    /// The node does not serve the request. Nothing follows.
    Refused(PeerError),
    /// The stream has failed. Nothing follows.
    Failed(String),
}

/// Reason why bytes are not frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// Kind, length or content is not of the protocol.
    #[error("a frame of another node is not of the protocol")]
    Malformed,
    /// The checksum does not match the bytes.
    #[error("bytes of another node do not match their CRC32C")]
    Damaged,
}

/// Encodes the frames of one body.
#[derive(Debug)]
pub(super) struct FrameWriter {
    crc: Digest,
}

impl FrameWriter {
    pub(super) fn new() -> Self {
        Self { crc: crc() }
    }

    /// Returns the head of a frame with this payload.
    fn head(&mut self, kind: u8, payload: &[u8]) -> BytesMut {
        self.crc.update(payload);
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        head.put_u8(kind);
        // Payloads are at most `MAX_FRAME_BYTES`.
        head.put_u32_le(payload.len() as u32);
        // The upper half of a CRC of 32 bits is 0.
        head.put_u32_le(self.crc.finalize() as u32);
        head
    }

    fn whole(&mut self, kind: u8, payload: &[u8]) -> Bytes {
        let mut frame = self.head(kind, payload);
        frame.extend_from_slice(payload);
        frame.freeze()
    }

    pub(super) fn alive(&mut self) -> Bytes {
        self.whole(ALIVE, &[])
    }

    /// `None` if the response is longer than a frame may be.
    pub(super) fn response(&mut self, encoded: &[u8]) -> Option<Bytes> {
        let fits = (1..=MAX_FRAME_BYTES).contains(&encoded.len());
        fits.then(|| self.whole(RESPONSE, encoded))
    }

    /// Takes the next frame's bytes off `rest`, which is not empty. Returns its head and them, without a copy.
    pub(super) fn data(&mut self, rest: &mut Bytes) -> [Bytes; 2] {
        let payload = rest.split_to(rest.len().min(MAX_FRAME_BYTES));
        [self.head(DATA, &payload).freeze(), payload]
    }

    pub(super) fn rate(&mut self, rate: u32) -> Bytes {
        self.whole(RATE, &rate.to_le_bytes())
    }

    pub(super) fn end(&mut self, total: u64) -> Bytes {
        self.whole(END, &total.to_le_bytes())
    }

    pub(super) fn refused(&mut self, error: PeerError) -> Bytes {
        self.whole(REFUSED, &[code(error)])
    }

    pub(super) fn failed(&mut self, message: &str) -> Bytes {
        let end = message.floor_char_boundary(MAX_FAILURE_BYTES);
        self.whole(FAILED, &message.as_bytes()[..end])
    }
}

/// Decodes the frames of one body. Holds at most one payload in addition to its last input.
#[derive(Debug)]
pub(super) struct FrameReader {
    crc: Digest,
    input: Bytes,
    head: Vec<u8>,
    payload: BytesMut,
}

impl FrameReader {
    pub(super) fn new() -> Self {
        Self {
            crc: crc(),
            input: Bytes::new(),
            head: Vec::with_capacity(HEAD_BYTES),
            payload: BytesMut::new(),
        }
    }

    /// Adds the next bytes of the body. Called when [`Self::next`] has returned `None`, so nothing is left of those before.
    pub(super) fn feed(&mut self, bytes: Bytes) {
        debug_assert!(self.input.is_empty());
        self.input = bytes;
    }

    /// Length of the payload that is being read; 0 between frames.
    pub(super) fn announced(&self) -> usize {
        let head = <[u8; HEAD_BYTES]>::try_from(self.head.as_slice()).ok();
        let parsed = head.and_then(|head| parse_head(head).ok());
        parsed.map_or(0, |(_, length, _)| length)
    }

    /// Whether the body may end here: no frame is incomplete.
    pub(super) fn is_between_frames(&self) -> bool {
        self.input.is_empty() && self.head.is_empty()
    }

    /// Returns the next frame, `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let missing = HEAD_BYTES - self.head.len();
        let taken = self.input.split_to(missing.min(self.input.len()));
        self.head.extend_from_slice(&taken);
        let Ok(head) = <[u8; HEAD_BYTES]>::try_from(self.head.as_slice()) else {
            return Ok(None);
        };
        let (kind, length, expected) = parse_head(head)?;
        let missing = length - self.payload.len();
        if missing > self.input.len() {
            self.payload.reserve(missing);
            self.payload.extend_from_slice(&self.input);
            self.input.clear();
            return Ok(None);
        }
        let rest = self.input.split_to(missing);
        let payload = if self.payload.is_empty() {
            rest
        } else {
            self.payload.extend_from_slice(&rest);
            self.payload.split().freeze()
        };
        self.head.clear();
        self.crc.update(&payload);
        if self.crc.finalize() as u32 != expected {
            return Err(FrameError::Damaged);
        }
        frame(kind, payload).map(Some)
    }
}

/// Returns kind, length and checksum of a frame, if it may be so long.
fn parse_head(head: [u8; HEAD_BYTES]) -> Result<(u8, usize, u32), FrameError> {
    let [kind, l0, l1, l2, l3, c0, c1, c2, c3] = head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let good = match kind {
        ALIVE => length == 0,
        RESPONSE | DATA => (1..=MAX_FRAME_BYTES).contains(&length),
        END => length == 8,
        RATE => length == 4,
        REFUSED => length == 1,
        FAILED => length <= MAX_FAILURE_BYTES,
        _ => false,
    };
    let crc = u32::from_le_bytes([c0, c1, c2, c3]);
    good.then_some((kind, length, crc))
        .ok_or(FrameError::Malformed)
}

fn frame(kind: u8, payload: Bytes) -> Result<Frame, FrameError> {
    let malformed = FrameError::Malformed;
    Ok(match kind {
        ALIVE => Frame::Alive,
        RESPONSE => Frame::Response(payload),
        DATA => Frame::Data(payload),
        END => {
            let total = payload.as_ref().try_into().map_err(|_| malformed)?;
            Frame::End(u64::from_le_bytes(total))
        }
        RATE => {
            let rate = payload.as_ref().try_into().map_err(|_| malformed)?;
            Frame::Rate(u32::from_le_bytes(rate))
        }
        REFUSED => Frame::Refused(refusal(payload.first().copied()).ok_or(malformed)?),
        FAILED => {
            let text = std::str::from_utf8(&payload).map_err(|_| malformed)?;
            Frame::Failed(text.to_owned())
        }
        _ => return Err(malformed),
    })
}

fn crc() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

fn code(error: PeerError) -> u8 {
    match error {
        PeerError::Unreachable => 1,
        PeerError::Foreign => 2,
        PeerError::OtherSettings => 3,
        PeerError::Busy => 4,
        PeerError::Absent => 5,
    }
}

fn refusal(code: Option<u8>) -> Option<PeerError> {
    let errors = [
        PeerError::Unreachable,
        PeerError::Foreign,
        PeerError::OtherSettings,
        PeerError::Busy,
        PeerError::Absent,
    ];
    errors
        .into_iter()
        .find(|error| Some(self::code(*error)) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All frames of `body`, given in pieces of `step` bytes.
    fn read(body: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
        let mut reader = FrameReader::new();
        let mut frames = Vec::new();
        for piece in body.chunks(step) {
            reader.feed(Bytes::copy_from_slice(piece));
            while let Some(frame) = reader.next()? {
                frames.push(frame);
            }
        }
        assert!(reader.is_between_frames());
        Ok(frames)
    }

    fn body() -> (Vec<u8>, Vec<Frame>) {
        let mut writer = FrameWriter::new();
        let mut bytes = Bytes::from(vec![7; MAX_FRAME_BYTES + 1]);
        let mut body = writer.alive().to_vec();
        let mut frames = vec![Frame::Alive];
        while !bytes.is_empty() {
            let [head, payload] = writer.data(&mut bytes);
            body.extend_from_slice(&head);
            body.extend_from_slice(&payload);
            frames.push(Frame::Data(payload));
        }
        body.extend_from_slice(&writer.rate(1 << 20));
        frames.push(Frame::Rate(1 << 20));
        body.extend_from_slice(&writer.response(b"{}").unwrap());
        frames.push(Frame::Response(Bytes::from_static(b"{}")));
        for error in 1..=5 {
            let error = refusal(Some(error)).unwrap();
            body.extend_from_slice(&writer.refused(error));
            frames.push(Frame::Refused(error));
        }
        body.extend_from_slice(&writer.failed("ä"));
        frames.push(Frame::Failed("ä".to_owned()));
        body.extend_from_slice(&writer.end(u64::MAX));
        frames.push(Frame::End(u64::MAX));
        (body, frames)
    }

    #[test]
    fn frames_are_read_back_however_they_are_cut() {
        let (body, frames) = body();
        for step in [1, 2, 9, 10, 4096, 100_000, body.len()] {
            assert_eq!(read(&body, step).unwrap(), frames, "{step}");
        }
    }

    #[test]
    fn payload_above_the_limit_is_refused_by_its_head() {
        let mut head = FrameWriter::new().head(DATA, &vec![0; MAX_FRAME_BYTES + 1]);
        let mut reader = FrameReader::new();
        reader.feed(head.split().freeze());
        assert_eq!(reader.next(), Err(FrameError::Malformed));
        assert_eq!(
            FrameWriter::new().response(&vec![0; MAX_FRAME_BYTES + 1]),
            None
        );
        for (kind, length) in [
            (ALIVE, 1),
            (RESPONSE, 0),
            (DATA, 0),
            (END, 7),
            (REFUSED, 2),
            (FAILED, MAX_FAILURE_BYTES + 1),
            (RATE, 3),
            (7, 0),
        ] {
            let frame = FrameWriter::new().whole(kind, &vec![0; length]);
            assert_eq!(read(&frame, 4096), Err(FrameError::Malformed), "{kind}");
        }
    }

    #[test]
    fn message_above_the_limit_is_cut_at_a_character() {
        let frame = FrameWriter::new().failed(&format!("x{}", "ä".repeat(MAX_FAILURE_BYTES)));
        let [Frame::Failed(text)] = &read(&frame, 4096).unwrap()[..] else {
            panic!("one frame");
        };
        assert_eq!(text.len(), MAX_FAILURE_BYTES - 1);
    }

    #[test]
    fn flipped_bit_lost_repeated_and_swapped_frame_is_damage() {
        let mut writer = FrameWriter::new();
        let frames: Vec<Vec<u8>> = (1..=3)
            .map(|byte| writer.data(&mut Bytes::from(vec![byte; 10])).concat())
            .collect();
        let damaged = |order: &[usize]| {
            let body: Vec<u8> = order.iter().flat_map(|at| frames[*at].clone()).collect();
            read(&body, 4096) == Err(FrameError::Damaged)
        };
        assert!(!damaged(&[0, 1, 2]));
        assert!(damaged(&[0, 2]) && damaged(&[0, 0, 1, 2]) && damaged(&[1, 0, 2]));
        let body = frames.concat();
        for bit in 0..8 * body.len() {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut reader = FrameReader::new();
            reader.feed(Bytes::from(flipped));
            let mut read = 0;
            let result = loop {
                match reader.next() {
                    Ok(Some(_)) => read += 1,
                    other => break other,
                }
            };
            // A longer length ends in an incomplete frame.
            assert!(
                result.is_err() || (read < 3 && !reader.is_between_frames()),
                "{bit}"
            );
        }
    }
}
