//! Requests to one node that are sent together: the begins or the ends of a request that deletes a thousand objects are one message.
//!
//! The machine knows nothing of messages: to it, and to the machine of the recipient, each request
//! is one of its own. That several arrive together, or are lost together, is a case of the faults
//! that a network may cause for each.

use crate::limits::{MAX_BATCHED_REQUESTS, MAX_CALL_BYTES};
use crate::message::PeerRequest;
use crate::port::max_added_len;

/// A message that is being made.
#[derive(Debug)]
struct Open<T> {
    requests: Vec<(T, PeerRequest)>,
    bytes: usize,
}

impl<T> Open<T> {
    fn new() -> Self {
        Self {
            requests: Vec::new(),
            bytes: 2,
        }
    }

    /// Adds a request, and returns the message before it if it is full.
    fn add(&mut self, item: (T, PeerRequest)) -> Option<Vec<(T, PeerRequest)>> {
        let before = self.requests.last().map(|(_, before)| before);
        let mut added = max_added_len(before, &item.1);
        let full = self.requests.len() >= MAX_BATCHED_REQUESTS
            || self.bytes.saturating_add(added) > MAX_CALL_BYTES;
        let mut before = None;
        if full && !self.requests.is_empty() {
            added = max_added_len(None, &item.1);
            before = Some(std::mem::replace(self, Self::new()).requests);
        }
        self.bytes = self.bytes.saturating_add(added);
        self.requests.push(item);
        before
    }
}

/// Puts requests together that may be in one message, in their order, by their recipient.
pub(super) fn batches<R: Clone + PartialEq, T>(
    requests: Vec<(R, (T, PeerRequest))>,
) -> Vec<(R, Vec<(T, PeerRequest)>)> {
    let mut messages = Vec::new();
    // A few: the other nodes, and two limits.
    let mut open: Vec<(R, Open<T>)> = Vec::new();
    for (to, item) in requests {
        if !item.1.is_batched() {
            messages.push((to, vec![item]));
            continue;
        }
        let at = open.iter().position(|(of, _)| *of == to);
        let at = at.unwrap_or_else(|| {
            open.push((to.clone(), Open::new()));
            open.len() - 1
        });
        if let Some(full) = open[at].1.add(item) {
            messages.push((to, full));
        }
    }
    messages.extend(open.into_iter().map(|(to, message)| (to, message.requests)));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{OpId, Token};
    use crate::names::{Key, NodeId};
    use crate::port::encoded_len;

    fn begin(op: u64, path: &str) -> PeerRequest {
        let token = Token {
            node: NodeId(u64::MAX),
            process: u64::MAX,
            op: OpId(u64::MAX - op),
        };
        let key = Key::new("bucket", path);
        PeerRequest::Begin { token, key }
    }

    /// Messages to each of two nodes, without their recipients.
    fn sent(requests: impl Iterator<Item = PeerRequest>) -> Vec<Vec<PeerRequest>> {
        let to_each = requests
            .enumerate()
            .map(|(at, request)| (at % 2, (at, request)));
        let messages = batches(to_each.collect());
        for (to, message) in &messages {
            assert!(message.iter().all(|(at, _)| at % 2 == *to));
            assert!(message.is_sorted_by_key(|(at, _)| *at));
        }
        let requests = |message: Vec<(usize, PeerRequest)>| message.into_iter().map(|(_, of)| of);
        messages
            .into_iter()
            .map(|(_, message)| requests(message).collect())
            .collect()
    }

    #[test]
    fn many_short_requests_are_one_message_a_node_up_to_the_limit() {
        let names = (0..).map(|op| begin(op, &format!("logs/2026/11/{op:06}.parquet")));
        let lengths = |count| {
            let messages = sent(names.clone().take(count));
            messages.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(2 * MAX_BATCHED_REQUESTS), [MAX_BATCHED_REQUESTS; 2]);
        let further = lengths(2 * MAX_BATCHED_REQUESTS + 2);
        assert_eq!(further, [MAX_BATCHED_REQUESTS, MAX_BATCHED_REQUESTS, 1, 1]);
    }

    #[test]
    fn messages_of_long_keys_fit_their_limit_and_are_nearly_full() {
        for path in ["\u{1}".repeat(1024), "\"".repeat(1024), "ä".repeat(512)] {
            let messages = sent((0..500).map(|op| begin(op, &path)));
            let bytes: Vec<usize> = messages.iter().map(|of| encoded_len(of)).collect();
            assert!(
                bytes.iter().all(|bytes| *bytes <= MAX_CALL_BYTES),
                "{bytes:?}"
            );
            let full = MAX_CALL_BYTES - 8 * 1024;
            let less = bytes.iter().filter(|bytes| **bytes < full).count();
            assert!(less <= 2, "{bytes:?}");
        }
        // One that fits no message is sent alone, and refused.
        let long = begin(1, &"x".repeat(2 * MAX_CALL_BYTES));
        let messages = sent([begin(1, "a"), begin(2, "a"), long, begin(3, "a")].into_iter());
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 2]);
    }

    #[test]
    fn mixed_requests_keep_their_order_and_questions_are_alone() {
        let key = Key::new("bucket", "a");
        let window = std::time::Duration::from_secs(1);
        let open = || PeerRequest::Open {
            key: key.clone(),
            window,
        };
        let drop = |bucket: &str| PeerRequest::Drop {
            key: Key::new(bucket, "a"),
        };
        let requests = [begin(1, "a"), drop("b"), drop("c"), open(), begin(2, "a")];
        let to_one = requests.iter().map(|request| ((), ((), request.clone())));
        let messages = batches(to_one.collect());
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0].1, [((), open())]);
        let others = [0, 1, 2, 4].map(|at: usize| ((), requests[at].clone()));
        assert_eq!(messages[1].1, others);
    }
}
