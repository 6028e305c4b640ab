//! An object store in memory with injected faults.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bywash_support::hooked_store::{HookedStore, ObservedRequest, RequestHook};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetRange, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use parking_lot::Mutex;

/// Effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request has no effect.
    Fail,
    /// The request succeeds, and the response is lost.
    LoseResponse,
    /// The put takes effect later, by [`FaultyStore::complete_delayed`], and the response is lost.
    Delay,
}

/// Faults by method and a part of the path, each used once, in order.
#[derive(Debug, Default)]
struct FaultQueue {
    faults: Vec<(&'static str, &'static str, Fault)>,
    delayed: Vec<(Path, PutPayload, PutOptions)>,
    /// Numbers of the requests in progress with [`Fault::LoseResponse`].
    losing: BTreeSet<u64>,
    gets: Vec<(Path, Option<Range<u64>>)>,
}

/// Hook that injects the faults of a queue.
#[derive(Debug, Default)]
struct FaultHook(Mutex<FaultQueue>);

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyStore {
    objects: Arc<InMemory>,
    hook: Arc<FaultHook>,
}

impl FaultyStore {
    /// Returns the store with its faults.
    pub(crate) fn shared(&self) -> Arc<dyn ObjectStore> {
        let objects = Arc::<InMemory>::clone(&self.objects);
        Arc::new(HookedStore::new(
            objects,
            Arc::<FaultHook>::clone(&self.hook),
        ))
    }

    /// Injects a fault into the next request of this method to a path that contains `part`.
    pub(crate) fn fault(&self, method: &'static str, part: &'static str, fault: Fault) {
        self.hook.0.lock().faults.push((method, part, fault));
    }

    /// Removes all unused faults.
    pub(crate) fn clear_faults(&self) {
        self.hook.0.lock().faults.clear();
    }

    /// Returns the GETs since the last call.
    pub(crate) fn gets(&self) -> Vec<(Path, Option<Range<u64>>)> {
        std::mem::take(&mut self.hook.0.lock().gets)
    }

    /// Applies delayed puts.
    pub(crate) async fn complete_delayed(&self) -> Vec<Result<PutResult>> {
        let delayed = std::mem::take(&mut self.hook.0.lock().delayed);
        let mut results = Vec::new();
        for (path, payload, options) in delayed {
            results.push(self.objects.put_opts(&path, payload, options).await);
        }
        results
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "faulty",
        source: "the connection broke".into(),
    }
}

#[async_trait]
impl RequestHook for FaultHook {
    async fn before(&self, request: &ObservedRequest) -> Result<()> {
        let mut queue = self.0.lock();
        if request.method == "get" {
            let range = match &request.range {
                Some(GetRange::Bounded(range)) => Some(range.clone()),
                _ => None,
            };
            queue.gets.push((request.path.clone(), range));
        }
        let applies = |fault: &(&str, &str, Fault)| {
            fault.0 == request.method && request.path.as_ref().contains(fault.1)
        };
        let Some(index) = queue.faults.iter().position(applies) else {
            return Ok(());
        };
        match (queue.faults.remove(index).2, &request.put) {
            (Fault::LoseResponse, Some(_)) => {
                queue.losing.insert(request.number);
                return Ok(());
            }
            (Fault::Delay, Some((payload, options))) => {
                let delayed = (request.path.clone(), payload.clone(), options.clone());
                queue.delayed.push(delayed);
            }
            _ => {}
        }
        Err(lost())
    }

    async fn after(&self, request: &ObservedRequest, succeeded: bool) -> Result<()> {
        let losing = self.0.lock().losing.remove(&request.number);
        if losing && succeeded {
            return Err(lost());
        }
        Ok(())
    }
}
