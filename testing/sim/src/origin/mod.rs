//! An object store whose every request can go wrong.

mod answer;
mod log;
mod store;
mod uploads;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeZone, Utc};
use object_store::path::Path;
use object_store::{Attributes, Error, GetRange, ObjectMeta};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::fault::{Fault, Weather};
use crate::oracle::{Oracle, Version, no_time};
use crate::pattern::{pattern, version_seed};

pub use log::{Operation, Request};

/// Name of this store in errors.
const STORE: &str = "Sim";
/// 2026-01-01, when every world begins, in seconds since 1970.
const BEGINNING: i64 = 1_767_225_600;
/// Largest object a change behind the bucket's back makes, in bytes.
const LARGEST_CHANGE: usize = 1 << 20;

/// What an origin says of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validators {
    /// `"v7"` and Last-Modified: `If-Match` works.
    Strong,
    /// `W/"v7"` and Last-Modified: `If-Match` never matches, as RFC 9110 wants it.
    Weak,
    /// Last-Modified only, in whole seconds, never the same for two versions of a key.
    LastModified,
    /// Nothing.
    None,
}

/// A store of objects in memory, drop-in for an engine's origin; cheap to clone.
#[derive(Debug, Clone)]
pub struct SimOrigin {
    world: Arc<World>,
}

#[derive(Debug)]
struct World {
    seed: u64,
    oracle: Arc<Oracle>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: StdRng,
    weather: Weather,
    validators: Validators,
    validators_of: BTreeMap<Path, Validators>,
    scripts: HashMap<Path, VecDeque<Vec<Fault>>>,
    /// Sizes it claims in place of the true ones.
    sizes: HashMap<Path, u64>,
    uploads: BTreeMap<String, uploads::Upload>,
    next_number: u64,
    log: Vec<Request>,
}

impl fmt::Display for SimOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimOrigin({})", self.world.seed)
    }
}

impl SimOrigin {
    /// An empty origin with strong ETags. Use it inside a runtime.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            weather,
            validators: Validators::Strong,
            validators_of: BTreeMap::new(),
            scripts: HashMap::new(),
            sizes: HashMap::new(),
            uploads: BTreeMap::new(),
            next_number: 1,
            log: Vec::new(),
        };
        Self {
            world: Arc::new(World {
                seed,
                oracle: Arc::new(Oracle::default()),
                state: Mutex::new(state),
            }),
        }
    }

    /// Who knows what was right.
    #[must_use]
    pub fn oracle(&self) -> Arc<Oracle> {
        Arc::clone(&self.world.oracle)
    }

    /// What it says of its versions from now on.
    pub fn set_validators(&self, validators: Validators) {
        self.world.state.lock().validators = validators;
    }

    /// What it says of the versions of one object from now on.
    pub fn set_validators_of(&self, path: &Path, validators: Validators) {
        self.world
            .state
            .lock()
            .validators_of
            .insert(path.clone(), validators);
    }

    /// Claims in every answer from now on that the object has `size` bytes, whatever it has.
    pub fn lie_about_size(&self, path: &Path, size: u64) {
        self.world.state.lock().sizes.insert(path.clone(), size);
    }

    /// What goes wrong from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.world.state.lock().weather = weather;
    }

    /// The faults of the next data requests for `path`, one entry a request; an empty entry is a
    /// request that goes well. While the script lasts, the weather spares these requests.
    pub fn script(&self, path: &Path, requests: impl IntoIterator<Item = Vec<Fault>>) {
        self.world
            .state
            .lock()
            .scripts
            .entry(path.clone())
            .or_default()
            .extend(requests);
    }

    /// Overwrites an object behind the bucket's back with `len` bytes of its own pattern.
    pub fn write(&self, path: &Path, len: usize) -> Arc<Version> {
        let mut state = self.world.state.lock();
        let body = pattern(
            version_seed(self.world.seed, path.as_ref(), state.next_number),
            len,
        );
        self.world.commit(&mut state, path, body, Attributes::new())
    }

    /// Deletes an object behind the bucket's back.
    pub fn remove(&self, path: &Path) {
        self.world.remove(path);
    }

    /// Every request so far.
    #[must_use]
    pub fn log(&self) -> Vec<Request> {
        self.world.state.lock().log.clone()
    }

    /// Requests of every kind so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.world.state.lock().log.len() as u64
    }

    /// Requests for object data so far, for all objects or one.
    #[must_use]
    pub fn data_requests(&self, path: Option<&Path>) -> u64 {
        let state = self.world.state.lock();
        state
            .log
            .iter()
            .filter(|r| r.is_data() && path.is_none_or(|path| r.path == *path))
            .count() as u64
    }

    /// Bytes of object data sent so far, for all objects or one.
    #[must_use]
    pub fn data_bytes(&self, path: Option<&Path>) -> u64 {
        let state = self.world.state.lock();
        let log = state
            .log
            .iter()
            .filter(|r| r.is_data() && path.is_none_or(|path| r.path == *path));
        log.map(|request| request.sent).sum()
    }

    /// Uploads begun and neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.world.state.lock().uploads.len()
    }
}

impl World {
    fn commit(
        &self,
        state: &mut State,
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
                // Versions ascend, and seconds ascend with them: no two share one.
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

    /// The whole second that version `number` claims to be written in. Numbers ascend, so seconds
    /// do; a virtual clock would give many versions the same one.
    fn second(&self, number: u64) -> DateTime<Utc> {
        let number = i64::try_from(number).unwrap_or(i64::MAX / 2);
        Utc.timestamp_opt(BEGINNING + number, 0)
            .single()
            .unwrap_or_else(no_time)
    }

    fn remove(&self, path: &Path) {
        if self.oracle.current(path).is_some() {
            self.oracle.commit(path, None);
        }
    }

    /// Overwrites an object the way a stranger would: often the same length, the hardest to notice.
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

    /// Logs a request and decides its fate: its place in the log, its faults, its latency.
    fn receive(
        &self,
        operation: Operation,
        path: &Path,
        asked: Option<GetRange>,
        pinned: bool,
    ) -> Received {
        let now = self.oracle.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let data = operation == Operation::Get;
        let scripted = data
            .then(|| state.scripts.get_mut(path)?.pop_front())
            .flatten();
        let faults = scripted.unwrap_or_else(|| state.weather.draw(&mut state.rng, data));
        let latency = state.weather.latency(&mut state.rng);
        let index = state.log.len();
        state.log.push(Request {
            at: now.at,
            tick: now.tick,
            operation,
            path: path.clone(),
            asked,
            pinned,
            version: None,
            size: 0,
            answered: None,
            sent: 0,
            ended: false,
            faults: faults.clone(),
        });
        drop(guard);
        for fault in &faults {
            self.oracle.note_fault(path, fault);
        }
        Received {
            index,
            faults,
            latency,
        }
    }
}

/// A request that was logged and now meets its fate.
struct Received {
    index: usize,
    faults: Vec<Fault>,
    latency: Duration,
}

impl Received {
    /// Waits out the latency and whatever fault comes before an answer.
    async fn admit(&self, world: &World, path: &Path) -> Result<(), Error> {
        let slow = self.faults.iter().find_map(|fault| match fault {
            Fault::SlowFirstByte(time) => Some(*time),
            _ => None,
        });
        tokio::time::sleep(self.latency + slow.unwrap_or_default()).await;
        if self.has(Fault::StallAnswer) {
            std::future::pending::<()>().await;
        }
        if self.has(Fault::Unavailable) {
            return Err(unavailable());
        }
        if self.has(Fault::NotFound) {
            return Err(not_found(path));
        }
        if self.has(Fault::ChangeBefore) {
            world.change(path);
        }
        Ok(())
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// After a write was done: its answer may still be lost.
    fn confirm(&self) -> Result<(), Error> {
        if self.has(Fault::AnswerLost) {
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
