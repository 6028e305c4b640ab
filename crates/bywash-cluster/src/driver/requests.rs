//! Requests of the machine to etcd and to other nodes.

use std::collections::HashMap;
use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bywash::cluster::CurrentVersion;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::clock::boottime;
use super::core::Core;
use crate::etcd::EtcdError;
use crate::limits::MIN_HANDSHAKES;
use crate::message::{CallId, EtcdReply, EtcdRequest, Event, PeerRequest, PeerResponse};
use crate::names::{Boot, NodeId};
use crate::transport::PeerError;

/// Transactions of single shards at once, after a batch was refused.
const SINGLES_AT_ONCE: usize = 8;
/// Pause of a registration while another process has this node's identity.
const DOUBLE_PAUSE: Duration = Duration::from_secs(1);
/// Messages with begins and ends of writes that one node is sent at once: each in progress has a connection of its own.
const WRITES_AT_ONCE: usize = MIN_HANDSHAKES;

/// Places of messages with begins and ends of writes, by the node that they are sent to. A node that does not respond takes none from another.
#[derive(Debug, Default)]
pub(super) struct WritePlaces(Mutex<HashMap<NodeId, Arc<Semaphore>>>);

impl WritePlaces {
    /// Waits for the place of a message, if it needs one.
    async fn take(&self, to: NodeId, needed: bool) -> Option<OwnedSemaphorePermit> {
        let places = needed.then(|| {
            let mut nodes = self.0.lock();
            // Only nodes with such requests in progress are kept.
            nodes.retain(|_, places| Arc::strong_count(places) > 1);
            let places = nodes.entry(to);
            Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new(WRITES_AT_ONCE))))
        });
        places?.acquire_owned().await.ok()
    }
}

/// Events of the responses to one message.
fn of_message(
    responses: impl Iterator<Item = (CallId, Option<PeerResponse<CurrentVersion>>)>,
) -> impl Iterator<Item = Event<CurrentVersion>> {
    let responses = responses.enumerate();
    responses.map(|(number, (call, response))| match number {
        0 => Event::Response(call, response),
        _ => Event::Further(call, response),
    })
}

impl Core {
    pub(super) async fn ask_etcd(self: Arc<Self>, call: CallId, request: EtcdRequest) {
        match request {
            EtcdRequest::Register if !self.start.is_accepted() => {
                // Authority would count from now, so the request is sent again.
                self.start.accepted().await;
                return self.handle(Event::Etcd(call, EtcdReply::Unknown));
            }
            EtcdRequest::Register => {
                let double = self.directory.lock().double(self.process);
                if let Some(address) = double {
                    tracing::error!(
                        "another machine at {address} has this node's identity: delete cluster/node-id in a copied data folder, and \
                         restart; until then this node serves without the others"
                    );
                    tokio::time::sleep(DOUBLE_PAUSE).await;
                    return self.handle(Event::Etcd(call, EtcdReply::Unknown));
                }
            }
            // Two processes would revoke each other forever: the earlier one leaves the later one
            // alone.
            EtcdRequest::Revoke(member)
                if self.directory.lock().is_double(member, self.process) =>
            {
                return self.handle(Event::Etcd(call, EtcdReply::Unknown));
            }
            _ => {}
        }
        let boot = Boot(rand::random());
        let record = self.record();
        match self.etcd.perform(request, boot, &record).await {
            Ok(reply) => {
                match (request, reply) {
                    (EtcdRequest::Keepalive(_), EtcdReply::Unknown) => {
                        self.note_etcd(Err(&"a keepalive got no response from etcd"));
                    }
                    (_, EtcdReply::Unknown) => {}
                    _ => self.note_etcd(Ok(())),
                }
                if let EtcdReply::Registered(boot) = reply {
                    self.note_written(boot, record);
                }
                self.handle(Event::Etcd(call, reply));
                if let EtcdReply::Registered(_) = reply {
                    // The record may have changed during the request. The publisher asks the
                    // machine for its registration, so not before.
                    self.record_changed.notify_one();
                }
            }
            Err(error) => self.cluster_changed(&error),
        }
    }

    /// Does several changes of shards, in one transaction if it can be.
    pub(super) async fn change_shards(self: Arc<Self>, batch: Vec<(CallId, EtcdRequest)>) {
        let Ok(_permit) = self.batches.acquire().await else {
            return;
        };
        if let [(call, request)] = batch[..] {
            return Arc::clone(&self).ask_etcd(call, request).await;
        }
        let requests: Vec<EtcdRequest> = batch.iter().map(|(_, request)| *request).collect();
        let replies = match self.etcd.perform_batch(&requests).await {
            Ok(replies) => replies,
            Err(error) => return self.cluster_changed(&error),
        };
        let mut alone = Vec::new();
        for ((call, request), reply) in batch.into_iter().zip(replies) {
            match reply {
                Some(reply) => self.handle(Event::Etcd(call, reply)),
                None => alone.push((call, request)),
            }
        }
        let core = &self;
        let alone = alone
            .into_iter()
            .map(|(call, request)| Arc::clone(core).ask_etcd(call, request));
        let mut alone = futures::stream::iter(alone).buffer_unordered(SINGLES_AT_ONCE);
        while alone.next().await.is_some() {}
    }

    /// etcd was restored, or is another.
    pub(super) fn cluster_changed(self: &Arc<Self>, error: &EtcdError) {
        tracing::warn!("{error}");
        self.note_etcd(Err(error));
        let mut generation = self.generation.lock();
        *generation += 1;
        self.directory.lock().clear();
        self.start.set_listed(None);
        self.review();
        self.handle(Event::ClusterChanged);
        drop(generation);
        self.relist.notify_one();
    }

    /// Sends a message to another node, within its limit. Reports once if the node is silent for too long with a question.
    pub(super) async fn send(
        self: Arc<Self>,
        to: NodeId,
        batch: Vec<(CallId, PeerRequest)>,
        limit: Duration,
    ) {
        let (calls, requests): (Vec<CallId>, Vec<PeerRequest>) = batch.into_iter().unzip();
        let no_response = || of_message(calls.iter().map(|call| (*call, None)));
        let address = self.directory.lock().address(to);
        let Some(address) = address else {
            return self.handle_all(no_response());
        };
        let mut waits = requests.iter().any(PeerRequest::waits_for_origin);
        let frames = Notify::new();
        let alive = || frames.notify_one();
        let of_write = |request: &PeerRequest| {
            matches!(request, PeerRequest::Begin { .. } | PeerRequest::End { .. })
        };
        let needs_place = requests.iter().any(of_write);
        let mut response = pin!(async {
            let _place = self.write_places.take(to, needs_place).await;
            self.transport.call(&address, requests, &alive).await
        });
        let mut limit = pin!(tokio::time::sleep(limit));
        let patience = self.timing.patience;
        let response = loop {
            tokio::select! {
                biased;
                response = &mut response => break Some(response),
                () = &mut limit => break None,
                () = frames.notified(), if waits => {}
                () = tokio::time::sleep(patience), if waits => {
                    waits = false;
                    self.handle_all(calls.iter().map(|call| Event::Silent(*call)));
                }
            }
        };
        match response {
            // It may be this node that has no memory for the message: neither a response of the other one nor its silence.
            Some(Err(PeerError::Busy)) => {
                self.counters.failed(PeerError::Busy);
                self.handle_all(calls.iter().map(|call| Event::Further(*call, None)));
            }
            Some(Err(error)) => {
                self.counters.failed(error);
                self.handle_all(no_response());
            }
            None => self.handle_all(no_response()),
            Some(Ok(responses)) => {
                let responses = responses.into_iter().map(Some);
                self.handle_all(of_message(calls.iter().copied().zip(responses)));
            }
        }
    }

    /// Notes whether etcd responded.
    pub(super) fn note_etcd(&self, result: Result<(), &dyn Display>) {
        let mut health = self.health.lock();
        match result {
            Ok(()) => {
                health.responded = Some(boottime());
                if health.failure.take().is_some() {
                    tracing::info!("etcd responds again");
                }
            }
            Err(error) => {
                if health.failure.is_none() {
                    tracing::warn!(
                        "{error}; until etcd responds, reads ask the origin and writes wait for their window"
                    );
                }
                health.failure = Some(error.to_string());
            }
        }
    }
}
