//! An unfinished head of a request: its bytes and their charge.
//!
//! One read returns the bytes that a socket has of a request: the head, and bytes of the body after
//! it. A head that ends in the bytes that were read needs no charge, as it is parsed next.

use bywash::ByteCharge;

use super::HeadBytes;
use crate::limits::MAX_FREE_HEAD_BYTES;

/// A head while it arrives.
#[derive(Default)]
pub(super) struct Head {
    /// Bytes that were read since it began.
    pub(super) bytes: usize,
    /// Whether its method is HEAD, whose responses have no body.
    pub(super) is_head_request: bool,
    /// Whether its bytes so far end in the middle of a line; `None` before its first line.
    in_line: Option<bool>,
    /// Charged bytes, and their charges.
    charged: usize,
    charges: Vec<ByteCharge>,
}

impl Head {
    /// Counts `read`, and charges it unless the head ends in it. Returns whether it fits.
    pub(super) fn grow(&mut self, read: &[u8], heads: &HeadBytes) -> bool {
        if self.bytes == 0 {
            self.is_head_request = read.starts_with(b"HEAD ");
        }
        self.bytes += read.len();
        let ends = self.bytes > MAX_FREE_HEAD_BYTES && ends_in(read, self.in_line);
        self.in_line = is_in_line(read, self.in_line);
        // The reader's buffer doubles, so a head may need twice its bytes.
        let wanted = 2 * self.bytes + MAX_FREE_HEAD_BYTES;
        if ends || self.bytes <= MAX_FREE_HEAD_BYTES || wanted <= self.charged {
            return true;
        }
        let Some(charge) = heads.try_charge(wanted - self.charged) else {
            return false;
        };
        self.charges.push(charge);
        self.charged = wanted;
        true
    }
}

/// Whether `read` ends in the middle of a line, after bytes that did or did not.
fn is_in_line(read: &[u8], was: Option<bool>) -> Option<bool> {
    // A carriage return belongs to the end of its line.
    match read.iter().rev().find(|byte| **byte != b'\r') {
        Some(b'\n') => {
            let has_line = was.is_some() || read.iter().any(|byte| !b"\r\n".contains(byte));
            has_line.then_some(false)
        }
        Some(_) => Some(true),
        None => was,
    }
}

/// Whether an empty line in `read` ends the head. Empty lines before the head do not.
fn ends_in(read: &[u8], mut in_line: Option<bool>) -> bool {
    for byte in read {
        match (byte, in_line) {
            (b'\r', _) | (b'\n', None) => {}
            (b'\n', Some(false)) => return true,
            (b'\n', Some(true)) => in_line = Some(false),
            _ => in_line = Some(true),
        }
    }
    false
}

/// The length of the head of a response, with the empty line after it.
pub(super) fn head_length(response: &[u8]) -> usize {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n");
    end.map_or(response.len(), |end| end + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns in which of `pieces` the head is seen to end.
    fn end_of(pieces: &[&str]) -> Option<usize> {
        let mut in_line = None;
        pieces.iter().position(|piece| {
            let ends = ends_in(piece.as_bytes(), in_line);
            in_line = is_in_line(piece.as_bytes(), in_line);
            ends
        })
    }

    #[test]
    fn head_ends_with_its_first_empty_line_however_it_is_cut() {
        for (head, ends) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\nbody", true),
            ("GET / HTTP/1.1\nhost: a\n\nbody\r\n", true),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", true),
            ("\r\n\r\n\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r", false),
            ("\r\nGET / HTTP/1.1\r\nx: \r", false),
            ("", false),
        ] {
            for first in 0..=head.len() {
                for second in first..=head.len() {
                    let pieces = [&head[..first], &head[first..second], &head[second..]];
                    assert_eq!(end_of(&pieces).is_some(), ends, "{pieces:?}");
                }
            }
        }
        assert_eq!(end_of(&["GET / HTTP/1.1\r\n", "\r\nbody", "\n\n"]), Some(1));
    }

    #[test]
    fn response_to_a_request_for_a_head_has_no_body() {
        let response = b"HTTP/1.1 503 x\r\ncontent-length: 4\r\n\r\nbody";
        assert_eq!(&response[head_length(response)..], b"body");
    }
}
