//! A write of one or several objects, from before the origin has it until no node returns a version
//! that it replaced.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bywash::EngineError;
use bywash::cluster::{WriteEnd, WriteTurn};
use futures::StreamExt;
use object_store::Result;
use object_store::path::Path;

use super::batch::batches;
use super::core::{BegunWrite, Core, WriteOutcome};
use crate::message::{Believed, Event, PeerRequest, WriteResult};
use crate::names::{Key, NodeId};

/// Maximum number of concurrent messages that ask nodes to drop replaced versions.
const DROPS_AT_ONCE: usize = 64;

/// A write in progress.
#[derive(Debug)]
pub(super) struct Turn {
    core: Arc<Core>,
    /// Writes at the machine, one an object, with its path.
    writes: Vec<(String, BegunWrite)>,
    keys: Vec<Key>,
    /// Nodes for which the objects never change.
    drops: Vec<NodeId>,
}

impl Turn {
    /// Begins a write of `paths`. Dropped before it returns, the write ends in doubt.
    pub(super) async fn begin(core: Arc<Core>, bucket: &str, paths: &[Path]) -> Self {
        let mut turn = Self {
            core,
            writes: Vec::new(),
            keys: Vec::new(),
            drops: Vec::new(),
        };
        let Some((view, believed)) = turn.core.believed(bucket) else {
            return turn;
        };
        let key = |path: &Path| Key::new(Arc::clone(&view.name), path.as_ref());
        turn.keys = paths.iter().map(key).collect();
        turn.drops.clone_from(&view.drops);
        if let Some(believed) = believed {
            turn.begin_at_machine(believed.window).await;
        }
        turn
    }

    async fn begin_at_machine(&mut self, window: Duration) {
        let names = self.keys.iter().map(|key| key.path.to_string());
        let begun = self.core.begin(self.keys.clone(), window);
        self.writes = names.zip(begun).collect();
        for (_, write) in &mut self.writes {
            // Closed only if the machine has ended: then no node is asked.
            let _ = (&mut write.begun).await;
        }
    }

    /// Re-reads the members at the end of a write: one may have joined since its begin.
    async fn look_again(&mut self) -> Believed {
        if !self.keys.is_empty() {
            // In case etcd has been replaced since the begin.
            self.core.start.listed_soon().await;
        }
        let bucket = self.keys.first().map(|key| Arc::clone(&key.bucket));
        let Some((view, believed)) = bucket.and_then(|bucket| self.core.believed(&bucket)) else {
            return Believed::default();
        };
        for node in &view.drops {
            if !self.drops.contains(node) {
                self.drops.push(*node);
            }
        }
        let Some(believed) = believed else {
            return Believed::default();
        };
        if self.writes.is_empty() {
            self.begin_at_machine(believed.window).await;
        }
        believed
    }

    /// Reports the end to the machine, and returns the writes to wait for.
    fn report(&mut self, result: WriteResult, believed: Believed) -> Vec<(String, BegunWrite)> {
        let writes = std::mem::take(&mut self.writes);
        let written = |(_, write): &(_, BegunWrite)| Event::Written(write.op, result, believed);
        self.core.handle_all(writes.iter().map(written));
        writes
    }

    /// Asks the nodes for which the objects never change to drop them. A node that does not respond
    /// keeps its copy: such a bucket promises no more.
    async fn drop_replaced(core: Arc<Core>, nodes: Vec<NodeId>, keys: Vec<Key>) {
        let mut drops = Vec::with_capacity(keys.len() * nodes.len());
        for key in keys {
            let drop = PeerRequest::Drop { key };
            drops.extend(nodes.iter().map(|node| (*node, ((), drop.clone()))));
        }
        let core = &core;
        let requests = batches(drops).into_iter().map(|(node, drops)| async move {
            let address = core.directory.lock().address(node);
            if let Some(address) = address {
                let requests = drops.into_iter().map(|(_, request)| request).collect();
                let dropped = core.transport.call(&address, requests, &|| {}).await;
                let _ = dropped.map_err(|error| core.counters.failed(error));
            }
        });
        let mut requests = futures::stream::iter(requests).buffer_unordered(DROPS_AT_ONCE);
        let all = async { while requests.next().await.is_some() {} };
        let _ = tokio::time::timeout(core.timing.read_lease, all).await;
    }
}

#[async_trait]
impl WriteTurn for Turn {
    async fn end(mut self: Box<Self>, end: WriteEnd) -> Result<()> {
        let result = match end {
            WriteEnd::Written => WriteResult::Written,
            WriteEnd::Refused => WriteResult::Failed,
            WriteEnd::InDoubt => WriteResult::InDoubt,
        };
        let believed = match end {
            WriteEnd::Written => self.look_again().await,
            WriteEnd::Refused | WriteEnd::InDoubt => Believed::default(),
        };
        let writes = self.report(result, believed);
        let nodes = std::mem::take(&mut self.drops);
        let keys = std::mem::take(&mut self.keys);
        if end == WriteEnd::Refused {
            return Ok(());
        }
        let drops = Self::drop_replaced(Arc::clone(&self.core), nodes, keys);
        if end == WriteEnd::InDoubt {
            // Its client gets no acknowledgement, so nothing waits.
            self.core.spawn(drops);
            return Ok(());
        }
        drops.await;
        let mut unconfirmed = None;
        for (path, write) in writes {
            if write.ended.await == Ok(WriteOutcome::Unconfirmed) {
                unconfirmed = Some(path);
            }
        }
        match unconfirmed {
            None => Ok(()),
            Some(object) => Err(EngineError::WriteUnconfirmed {
                object,
                waited_s: self.core.timing.give_up.as_secs(),
            }
            .into()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.report(WriteResult::InDoubt, Believed::default()));
        let nodes = std::mem::take(&mut self.drops);
        let keys = std::mem::take(&mut self.keys);
        if !nodes.is_empty() {
            let drops = Self::drop_replaced(Arc::clone(&self.core), nodes, keys);
            self.core.spawn(drops);
        }
    }
}
