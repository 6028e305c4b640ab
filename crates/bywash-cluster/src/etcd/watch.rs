//! A watch of the cluster's keys: a response that does not end, one message a line.

use std::collections::VecDeque;

use url::Url;

use super::client::{Etcd, RESPONSE_BYTES};
use super::error::{EtcdError, bad};
use super::list::SeenRecord;
use super::wire::{Streamed, WatchResponse};
use crate::message::ViewChange;

/// A change that a watch showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Revision of the change.
    pub revision: u64,
    /// Input of the state machine.
    pub change: ViewChange,
    /// The record, if a member registered or changed.
    pub record: Option<SeenRecord>,
}

/// A watch. After an error, or an end, the keys are listed again, and watched from the list's
/// revision on. A connection that died is silent, so the keys are also listed from time to time.
#[derive(Debug)]
pub struct Watch<'a> {
    etcd: &'a Etcd,
    endpoint: Url,
    response: reqwest::Response,
    /// Bytes of a message that has not ended.
    partial: Vec<u8>,
    changes: VecDeque<Watched>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(etcd: &'a Etcd, endpoint: Url, response: reqwest::Response) -> Self {
        Self {
            etcd,
            endpoint,
            response,
            partial: Vec::new(),
            changes: VecDeque::new(),
        }
    }

    /// Returns the next change with its revision; `None` if the watch has ended, or the revision it began at was compacted.
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the connection failed, or etcd sent something else.
    pub async fn next(&mut self) -> Result<Option<Watched>, EtcdError> {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return Ok(Some(change));
            }
            let piece = self.response.chunk().await;
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(None),
                Err(source) => {
                    self.etcd.next_endpoint();
                    let endpoint = self.endpoint.clone();
                    return Err(EtcdError::NoResponse { endpoint, source });
                }
            };
            if self.partial.len() + piece.len() > RESPONSE_BYTES {
                return Err(bad(&self.endpoint, "a message of a watch is too long"));
            }
            self.partial.extend_from_slice(&piece);
            if !self.take_messages()? {
                return Ok(None);
            }
        }
    }

    /// Takes the messages that have ended. Returns whether the watch continues.
    fn take_messages(&mut self) -> Result<bool, EtcdError> {
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(true);
        };
        let rest = self.partial.split_off(end + 1);
        let messages = std::mem::replace(&mut self.partial, rest);
        let lines = messages.split(|byte| *byte == b'\n');
        for line in lines.filter(|line| !line.is_empty()) {
            let message: Streamed<WatchResponse> = serde_json::from_slice(line)
                .map_err(|error| bad(&self.endpoint, &error.to_string()))?;
            let message = message.result;
            self.etcd.check_cluster(&self.endpoint, message.header)?;
            if message.canceled {
                return Ok(false);
            }
            for event in &message.events {
                let change = self.etcd.change(&event.kv, event.r#type == "DELETE");
                let revision = event.kv.mod_revision;
                self.changes.extend(change.map(|(change, record)| Watched {
                    revision,
                    change,
                    record,
                }));
            }
        }
        Ok(true)
    }
}
