//! Entry point of the fuzzer of `fuzz/`. It takes any bytes and panics if the result breaks an invariant. Tests call it too, with random
//! and with damaged valid bytes.

use crate::limits::MAX_MESSAGE_BYTES;
use crate::message::{FrameHead, HEAD_BYTES, Reply, Request};
use crate::wire::Wire;

/// A frame between a local client and its server.
pub fn local(bytes: &[u8]) {
    if let Some(head) = bytes.first_chunk::<HEAD_BYTES>()
        && let Ok(head) = FrameHead::decode(*head)
    {
        assert!(head.len as usize <= MAX_MESSAGE_BYTES);
        assert_eq!(FrameHead::decode(head.encode()), Ok(head));
    }
    let payload = bytes.get(HEAD_BYTES..).unwrap_or_default();
    round_trip::<Request>(payload);
    round_trip::<Reply>(payload);
}

/// A decoded message has one encoding.
fn round_trip<T: Wire + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    let Ok(message) = T::decode(payload) else {
        return;
    };
    let mut encoded = Vec::new();
    message.put(&mut encoded);
    assert_eq!(encoded, payload, "{message:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_local_clients() {
        bywash_support::fuzz_corpus::run_seeds("local", local);
    }
}
