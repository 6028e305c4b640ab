//! An object store in memory with injected faults.

mod log;
mod respond;
mod store;
mod uploads;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::ContentDigest;
use chrono::{DateTime, TimeZone, Utc};
use object_store::path::Path;
use object_store::{Attributes, Error, GetRange, ObjectMeta};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fault::{Fault, FaultProfile};
use crate::oracle::{Oracle, Version, no_time};
use bywash_support::pattern::{mix, pattern};

pub use log::{Operation, Request};

/// Name of this store in errors.
const STORE: &str = "Sim";
/// Start of simulated time: 2026-01-01, in seconds since 1970.
const EPOCH: i64 = 1_767_225_600;
/// Maximum length of an object after [`Fault::ChangeBefore`] or [`Fault::ChangeDuring`], in bytes.
const LARGEST_CHANGE: usize = 1 << 20;

/// Validators that the origin sends for a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validators {
    /// `"v7"` and Last-Modified: `If-Match` works.
    Strong,
    /// `W/"v7"` and Last-Modified: `If-Match` never matches (RFC 9110).
    Weak,
    /// Last-Modified only, in whole seconds, different for all versions of a key.
    LastModified,
    /// No validator.
    None,
}

/// Object store in memory, usable as the origin of an engine. Clones share their state.
#[derive(Debug, Clone)]
pub struct SimOrigin {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    seed: u64,
    oracle: Arc<Oracle>,
    state: Mutex<OriginState>,
}

#[derive(Debug)]
struct OriginState {
    rng: StdRng,
    fault_profile: FaultProfile,
    validators: Validators,
    validators_of: BTreeMap<Path, Validators>,
    scripts: HashMap<Path, VecDeque<Vec<Fault>>>,
    /// Computes the digest stated in responses to reads.
    digest: Option<fn(&[u8]) -> ContentDigest>,
    /// False sizes by path, sent in place of the true ones.
    sizes: HashMap<Path, u64>,
    uploads: BTreeMap<String, uploads::Upload>,
    next_number: u64,
    log: Vec<Request>,
}

impl fmt::Display for SimOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimOrigin({})", self.shared.seed)
    }
}

impl SimOrigin {
    /// Creates an empty origin with strong ETags. Requires a tokio runtime.
    #[must_use]
    pub fn new(seed: u64, fault_profile: FaultProfile) -> Self {
        let state = OriginState {
            rng: StdRng::seed_from_u64(seed),
            fault_profile,
            validators: Validators::Strong,
            validators_of: BTreeMap::new(),
            scripts: HashMap::new(),
            digest: None,
            sizes: HashMap::new(),
            uploads: BTreeMap::new(),
            next_number: 1,
            log: Vec::new(),
        };
        Self {
            shared: Arc::new(Shared {
                seed,
                oracle: Arc::new(Oracle::default()),
                state: Mutex::new(state),
            }),
        }
    }

    /// Returns the oracle, which records all versions of the objects.
    #[must_use]
    pub fn oracle(&self) -> Arc<Oracle> {
        Arc::clone(&self.shared.oracle)
    }

    /// Sets the validators of future versions.
    pub fn set_validators(&self, validators: Validators) {
        self.shared.state.lock().validators = validators;
    }

    /// Sets the validators of future versions of one object.
    pub fn set_validators_of(&self, path: &Path, validators: Validators) {
        self.shared
            .state
            .lock()
            .validators_of
            .insert(path.clone(), validators);
    }

    /// States the digest that `digest` computes of an object's bytes in all future responses to reads.
    pub fn state_digest(&self, digest: fn(&[u8]) -> ContentDigest) {
        self.shared.state.lock().digest = Some(digest);
    }

    /// Reports `size` as the length of the object in all future responses.
    pub fn report_wrong_size(&self, path: &Path, size: u64) {
        self.shared.state.lock().sizes.insert(path.clone(), size);
    }

    /// Sets the faults and latencies of future requests.
    pub fn set_fault_profile(&self, fault_profile: FaultProfile) {
        self.shared.state.lock().fault_profile = fault_profile;
    }

    /// Scripts the faults of the next data requests for `path`: one entry per request, empty for a request without faults.
    /// Scripted requests get no faults of the profile.
    pub fn script(&self, path: &Path, requests: impl IntoIterator<Item = Vec<Fault>>) {
        self.shared
            .state
            .lock()
            .scripts
            .entry(path.clone())
            .or_default()
            .extend(requests);
    }

    /// Overwrites an object, bypassing the bucket, with `len` bytes of a new pattern.
    pub fn write(&self, path: &Path, len: usize) -> Arc<Version> {
        let mut state = self.shared.state.lock();
        let body = pattern(
            version_seed(self.shared.seed, path.as_ref(), state.next_number),
            len,
        );
        self.shared
            .commit(&mut state, path, body, Attributes::new())
    }

    /// Deletes an object, bypassing the bucket.
    pub fn remove(&self, path: &Path) {
        self.shared.remove(path);
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn log(&self) -> Vec<Request> {
        self.shared.state.lock().log.clone()
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.state.lock().log.len() as u64
    }

    /// Returns the number of data requests so far, for all objects or for one.
    #[must_use]
    pub fn data_requests(&self, path: Option<&Path>) -> u64 {
        let state = self.shared.state.lock();
        state
            .log
            .iter()
            .filter(|r| r.is_data() && path.is_none_or(|path| r.path == *path))
            .count() as u64
    }

    /// Returns the bytes of object data sent so far, for all objects or for one.
    #[must_use]
    pub fn data_bytes(&self, path: Option<&Path>) -> u64 {
        let state = self.shared.state.lock();
        let log = state
            .log
            .iter()
            .filter(|r| r.is_data() && path.is_none_or(|path| r.path == *path));
        log.map(|request| request.sent).sum()
    }

    /// Returns the number of uploads that are neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.shared.state.lock().uploads.len()
    }
}

impl Shared {
    fn commit(
        &self,
        state: &mut OriginState,
        path: &Path,
        body: Bytes,
        attributes: Attributes,
    ) -> Arc<Version> {
        let number = state.next_number;
        state.next_number += 1;
        let validators = state
            .validators_of
            .get(path)
            .copied()
            .unwrap_or(state.validators);
        let meta = ObjectMeta {
            location: path.clone(),
            last_modified: match validators {
                Validators::None => no_time(),
                // Version numbers ascend, and thus seconds: no two versions share one.
                _ => self.second(number),
            },
            size: body.len() as u64,
            e_tag: match validators {
                Validators::Strong => Some(format!("\"v{number}\"")),
                Validators::Weak => Some(format!("W/\"v{number}\"")),
                Validators::LastModified | Validators::None => None,
            },
            version: None,
        };
        let version = Version {
            number,
            body,
            meta,
            attributes,
        };
        self.oracle.commit(path, Some(version.clone()));
        Arc::new(version)
    }

    /// Returns the modification time of version `number`, in whole seconds. Times ascend with the numbers; a paused clock
    /// would give many versions the same time.
    fn second(&self, number: u64) -> DateTime<Utc> {
        let number = i64::try_from(number).unwrap_or(i64::MAX / 2);
        Utc.timestamp_opt(EPOCH + number, 0)
            .single()
            .unwrap_or_else(no_time)
    }

    fn remove(&self, path: &Path) {
        if self.oracle.current(path).is_some() {
            self.oracle.commit(path, None);
        }
    }

    /// Overwrites an object like another client of the origin, often with the same length, which is hardest to detect.
    fn change(&self, path: &Path) {
        let Some(old) = self.oracle.current(path) else {
            return;
        };
        let mut state = self.state.lock();
        let old = old.body.len();
        let len = match state.rng.random_range(0..10) {
            0..6 => old,
            6..8 => old / 2,
            _ => (old + state.rng.random_range(1..8192)).min(LARGEST_CHANGE),
        };
        let body = pattern(
            version_seed(self.seed, path.as_ref(), state.next_number),
            len,
        );
        self.commit(&mut state, path, body, Attributes::new());
    }

    /// Logs a request and draws its faults and latency.
    fn receive(
        &self,
        operation: Operation,
        path: &Path,
        requested: Option<GetRange>,
        pinned: bool,
    ) -> PendingRequest {
        let now = self.oracle.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let data = operation == Operation::Get;
        let scripted = data
            .then(|| state.scripts.get_mut(path)?.pop_front())
            .flatten();
        let faults = scripted.unwrap_or_else(|| state.fault_profile.draw(&mut state.rng, data));
        let latency = state.fault_profile.latency(&mut state.rng);
        let index = state.log.len();
        state.log.push(Request {
            at: now.at,
            tick: now.tick,
            operation,
            path: path.clone(),
            requested,
            pinned,
            version: None,
            size: 0,
            sent_range: None,
            sent: 0,
            complete: false,
            faults: faults.clone(),
        });
        drop(guard);
        for fault in &faults {
            self.oracle.note_fault(path, fault);
        }
        PendingRequest {
            index,
            faults,
            latency,
        }
    }
}

/// LoggedRequest request with its faults and latency.
struct PendingRequest {
    index: usize,
    faults: Vec<Fault>,
    latency: Duration,
}

impl PendingRequest {
    /// Waits for the latency, and applies the faults that precede a response.
    async fn delay_or_fail(&self, shared: &Shared, path: &Path) -> Result<(), Error> {
        let slow = self.faults.iter().find_map(|fault| match fault {
            Fault::SlowFirstByte(time) => Some(*time),
            _ => None,
        });
        tokio::time::sleep(self.latency + slow.unwrap_or_default()).await;
        if self.has(Fault::StallResponse) {
            std::future::pending::<()>().await;
        }
        if self.has(Fault::Unavailable) {
            return Err(unavailable());
        }
        if self.has(Fault::NotFound) {
            return Err(not_found(path));
        }
        if self.has(Fault::ChangeBefore) {
            shared.change(path);
        }
        Ok(())
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Acknowledges a write that took effect, unless its response is lost.
    fn acknowledge(&self) -> Result<(), Error> {
        if self.has(Fault::LoseResponse) {
            Err(unavailable())
        } else {
            Ok(())
        }
    }
}

fn unavailable() -> Error {
    Error::Generic {
        store: STORE,
        source: "503 Service Unavailable".into(),
    }
}

fn not_found(path: &Path) -> Error {
    Error::NotFound {
        path: path.to_string(),
        source: "404 Not Found".into(),
    }
}

/// Returns the [`pattern`] seed of one version of an object, from the seed of the simulation.
fn version_seed(simulation_seed: u64, key: &str, number: u64) -> u64 {
    let key = key
        .bytes()
        .fold(simulation_seed, |hash, byte| mix(hash ^ u64::from(byte)));
    mix(key ^ number)
}
