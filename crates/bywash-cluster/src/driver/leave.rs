//! The end of a process that hands over its shards.

use std::time::Duration;

use tokio::time::Instant;

use super::ClusterNode;
use crate::etcd::MemberState;
use crate::message::{EtcdRequest, Event};
use crate::names::Boot;

/// Interval between two checks for remaining shards or nodes.
const LOOK: Duration = Duration::from_millis(20);

/// Result of leaving the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Shards that it held.
    pub held: usize,
    /// Held shards that were not handed over: the others take them after a delay.
    pub abandoned: usize,
    /// Its registration is gone from etcd. Otherwise its lease ends it.
    pub deregistered: bool,
}

impl ClusterNode {
    /// Leaves the cluster: takes no more stripes, gives all shards on, and deregisters. Returns by `limit`, which is more than a
    /// second in practice: read leases end first. The node serves other nodes until its process ends.
    pub async fn leave(&self, limit: Duration) -> Left {
        let until = Instant::now() + limit;
        let core = &self.core;
        core.set_state(MemberState::Leaving);
        // In time, or not at all: others then place stripes here for a little longer.
        let _ = tokio::time::timeout_at(until, core.publish()).await;
        let held = core.look(crate::Node::named);
        core.handle(Event::Leave);
        // Without another node to give them to, none is being given.
        while core.look(crate::Node::giving) > 0 && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        let abandoned = core.look(crate::Node::named);
        let deregistered = self.deregister(until).await;
        Left {
            held,
            abandoned,
            deregistered,
        }
    }

    /// Waits until no other node is left that may ask this one for blocks: one that is up, or joins.
    pub async fn until_alone(&self) {
        while self.core.directory.lock().has_others() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Revokes the lease of the registration, with which its key is deleted.
    async fn deregister(&self, until: Instant) -> bool {
        /// Time for one request, also when the limit has passed.
        const REQUEST: Duration = Duration::from_millis(700);
        let core = &self.core;
        let Some(me) = core.me() else {
            return true;
        };
        let record = core.record();
        let revoke = core.etcd.perform(EtcdRequest::Revoke(me), Boot(0), &record);
        let until = until.max(Instant::now() + REQUEST);
        let reply = tokio::time::timeout_at(until, revoke).await;
        matches!(reply, Ok(Ok(crate::EtcdReply::Gone)))
    }
}
