//! A store with injected faults of requests, for tests above [`ObjectStore`].
//!
//! Faults of HTTP connections, of upload sessions and of disks have types of their own: docs/decisions/0024.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetRange, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use tokio::sync::Semaphore;

use crate::hooked_store::{HookedStore, ObservedRequest, RequestHook};

/// Fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request has no effect and fails.
    Fail,
    /// The request takes effect, and its response is lost.
    LoseResponse,
    /// The put takes effect later, by [`FaultyStore::complete_delayed`], and its response is lost.
    DelayPut,
    /// The request waits for [`FaultyStore::release`], and then takes effect.
    HoldRequest,
    /// The request takes effect, and its response waits for [`FaultyStore::release`].
    HoldResponse,
    /// The request takes effect, and its response comes later by this time.
    DelayResponse(Duration),
}

/// Hook that injects the faults.
#[derive(Debug)]
struct Faults {
    state: Mutex<State>,
    /// One permit for each request that has come to wait.
    held: Semaphore,
    /// One permit for each request that may go on.
    released: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    /// By method and a part of the path, in order.
    next: Vec<(&'static str, &'static str, Fault)>,
    /// Faults of the responses of requests in progress, by their numbers.
    responses: HashMap<u64, Fault>,
    delayed: Vec<(Path, PutPayload, PutOptions)>,
    gets: Vec<(Path, Option<Range<u64>>)>,
}

/// A store with injected faults. A cheap handle.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    objects: Arc<dyn ObjectStore>,
    store: HookedStore,
    faults: Arc<Faults>,
}

impl Default for FaultyStore {
    /// An empty store in memory.
    fn default() -> Self {
        Self::over(Arc::new(InMemory::new()))
    }
}

impl FaultyStore {
    /// Wraps `objects`.
    pub fn over(objects: Arc<dyn ObjectStore>) -> Self {
        let faults = Arc::new(Faults {
            state: Mutex::default(),
            held: Semaphore::new(0),
            released: Semaphore::new(0),
        });
        Self {
            store: HookedStore::new(Arc::clone(&objects), Arc::<Faults>::clone(&faults)),
            objects,
            faults,
        }
    }

    /// Returns the store with its faults.
    pub fn shared(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.store.clone())
    }

    /// Injects a fault into the next request of this method to a path that contains `part`. Each is used once, in order.
    pub fn fault(&self, method: &'static str, part: &'static str, fault: Fault) {
        let mut state = self.faults.state.lock().unwrap();
        state.next.push((method, part, fault));
    }

    /// Removes all unused faults.
    pub fn clear_faults(&self) {
        self.faults.state.lock().unwrap().next.clear();
    }

    /// Waits until a request is held. Each request is reported once.
    pub async fn wait_until_held(&self) {
        self.faults.held.acquire().await.unwrap().forget();
    }

    /// Lets so many requests go on that are held, or will be.
    pub fn release(&self, requests: usize) {
        self.faults.released.add_permits(requests);
    }

    /// Applies delayed puts.
    pub async fn complete_delayed(&self) -> Vec<Result<PutResult>> {
        let delayed = std::mem::take(&mut self.faults.state.lock().unwrap().delayed);
        let mut results = Vec::new();
        for (path, payload, options) in delayed {
            results.push(self.objects.put_opts(&path, payload, options).await);
        }
        results
    }

    /// Returns the GETs since the last call.
    pub fn gets(&self) -> Vec<(Path, Option<Range<u64>>)> {
        std::mem::take(&mut self.faults.state.lock().unwrap().gets)
    }

    /// Returns the number of requests since the start.
    pub fn requests(&self) -> u64 {
        self.store.requests()
    }

    /// Returns the number of requests whose result is awaited by a client that has not left.
    pub fn in_progress(&self) -> u64 {
        self.store.in_progress()
    }
}

impl Faults {
    /// Removes and returns the fault of a request.
    fn take(&self, request: &ObservedRequest) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        if request.method == "get" {
            let range = match &request.range {
                Some(GetRange::Bounded(range)) => Some(range.clone()),
                _ => None,
            };
            state.gets.push((request.path.clone(), range));
        }
        let index = state.next.iter().position(|(method, part, _)| {
            *method == request.method && request.path.as_ref().contains(part)
        })?;
        Some(state.next.remove(index).2)
    }

    async fn hold(&self) {
        self.held.add_permits(1);
        self.released.acquire().await.unwrap().forget();
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "faulty",
        source: "the connection broke".into(),
    }
}

#[async_trait]
impl RequestHook for Faults {
    async fn before(&self, request: &ObservedRequest) -> Result<()> {
        let Some(fault) = self.take(request) else {
            return Ok(());
        };
        match fault {
            Fault::Fail => return Err(lost()),
            Fault::DelayPut => {
                let (payload, options) = request.put.clone().expect("only puts are delayed");
                let mut state = self.state.lock().unwrap();
                state.delayed.push((request.path.clone(), payload, options));
                return Err(lost());
            }
            Fault::HoldRequest => self.hold().await,
            Fault::LoseResponse | Fault::HoldResponse | Fault::DelayResponse(_) => {
                let mut state = self.state.lock().unwrap();
                state.responses.insert(request.number, fault);
            }
        }
        Ok(())
    }

    async fn after(&self, request: &ObservedRequest, _succeeded: bool) -> Result<()> {
        let fault = self.state.lock().unwrap().responses.remove(&request.number);
        match fault {
            Some(Fault::LoseResponse) => return Err(lost()),
            Some(Fault::HoldResponse) => self.hold().await,
            Some(Fault::DelayResponse(time)) => tokio::time::sleep(time).await,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use object_store::ObjectStoreExt;

    use super::*;

    async fn read(store: &dyn ObjectStore) -> Option<String> {
        let body = store.get(&Path::from("a")).await.ok()?.bytes().await.ok()?;
        Some(String::from_utf8(body.into()).unwrap())
    }

    #[tokio::test]
    async fn faults_decide_whether_a_put_takes_effect_and_its_client_hears_of_it() {
        for (fault, is_ok, then) in [
            (Fault::Fail, false, [None, None]),
            (Fault::LoseResponse, false, [Some("1"), Some("1")]),
            (Fault::DelayPut, false, [None, Some("1")]),
        ] {
            let faulty = FaultyStore::default();
            let (store, path) = (faulty.shared(), Path::from("a"));
            faulty.fault("put", "b", Fault::Fail);
            faulty.fault("put", "a", fault);
            let put = store.put(&path, "1".into()).await;
            assert_eq!(put.is_ok(), is_ok, "{fault:?}");
            assert_eq!(read(&*store).await.as_deref(), then[0], "{fault:?}");
            assert!(faulty.complete_delayed().await.iter().all(Result::is_ok));
            assert_eq!(read(&*store).await.as_deref(), then[1], "{fault:?}");
            store.put(&path, "2".into()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn held_requests_wait_before_and_after_they_take_effect() {
        for (fault, meanwhile) in [
            (Fault::HoldRequest, None),
            (Fault::HoldResponse, Some("1".to_owned())),
        ] {
            let faulty = FaultyStore::default();
            let (store, path) = (faulty.shared(), Path::from("a"));
            faulty.fault("put", "", fault);
            let mut put = store.put(&path, "1".into()).boxed();
            assert!((&mut put).now_or_never().is_none());
            faulty.wait_until_held().await;
            assert_eq!(faulty.in_progress(), 1);
            assert_eq!(read(&*store).await, meanwhile);
            faulty.release(1);
            put.await.unwrap();
            assert_eq!((faulty.in_progress(), faulty.requests()), (0, 2));
            assert_eq!(read(&*store).await.as_deref(), Some("1"));
        }
    }

    #[tokio::test]
    async fn delayed_response_has_the_state_of_its_request() {
        let faulty = FaultyStore::default();
        let (store, path) = (faulty.shared(), Path::from("a"));
        store.put(&path, "1".into()).await.unwrap();
        faulty.fault("get", "", Fault::DelayResponse(Duration::from_millis(20)));
        let (late, ()) = futures::join!(read(&*store), async {
            store.put(&path, "2".into()).await.unwrap();
        });
        assert_eq!(late.as_deref(), Some("1"));
        assert_eq!(read(&*store).await.as_deref(), Some("2"));
    }
}
