//! Records every version of every object and when it was current, and judges reads by this history.

mod judge;
#[cfg(test)]
mod tests;
mod violation;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fault::{Fault, FaultKind};

pub use judge::{Observation, Outcome, Rules, Verdict};
pub use violation::Violation;

/// A point in the order of events. With a paused clock many events share one instant, and `tick` orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Position in the order of all events of the simulation.
    pub tick: u64,
    /// Time on tokio's clock.
    pub at: Instant,
}

/// One version of one object.
#[derive(Debug, Clone)]
pub struct Version {
    /// Unique in the simulation, ascending.
    pub number: u64,
    /// Contents of the object.
    pub body: Bytes,
    /// Metadata as the origin sends it: ETag and Last-Modified depend on its validators.
    pub meta: ObjectMeta,
    /// Attributes of the write.
    pub attributes: Attributes,
}

/// KeyState of a key from one moment to another; without a version the object is absent.
#[derive(Debug, Clone)]
struct KeyState {
    version: Option<Arc<Version>>,
    since: Moment,
    until: Option<Moment>,
}

#[derive(Debug, Default)]
struct History {
    states: Vec<KeyState>,
    /// Acknowledged writes through the bucket: moment of the acknowledgement, and index of the state they made. A read that
    /// starts later must not see an earlier state, whatever the window.
    acknowledged: Vec<(Moment, usize)>,
    faults: Vec<(Moment, FaultKind)>,
    /// Whether states were forgotten, so that the first one has predecessors.
    forgotten: bool,
}

#[derive(Debug, Default)]
struct Ledger {
    tick: u64,
    keys: BTreeMap<Path, History>,
}

/// History of all objects of one simulation, and judge of its reads.
///
/// The origin commits every version to it, and serves the versions it has.
#[derive(Debug, Default)]
pub struct Oracle {
    ledger: Mutex<Ledger>,
}

impl Ledger {
    fn now(&mut self) -> Moment {
        self.tick += 1;
        Moment {
            tick: self.tick,
            at: Instant::now(),
        }
    }

    fn history(&mut self, path: &Path) -> &mut History {
        if !self.keys.contains_key(path) {
            self.keys.insert(path.clone(), History::default());
        }
        self.keys.get_mut(path).expect("inserted above")
    }
}

impl Oracle {
    /// Returns the present moment, which is later than all returned before.
    pub fn now(&self) -> Moment {
        self.ledger.lock().now()
    }

    /// Makes `version` current, or the object absent.
    pub fn commit(&self, path: &Path, version: Option<Version>) -> Moment {
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        let states = &mut ledger.history(path).states;
        if let Some(last) = states.last_mut() {
            last.until = Some(now);
        }
        states.push(KeyState {
            version: version.map(Arc::new),
            since: now,
            until: None,
        });
        now
    }

    /// Forgets the states of all objects that had ended for `age`, in a run too long to keep them all. Reads that began earlier, or
    /// whose window began earlier, must not be judged afterwards.
    pub fn forget_older(&self, age: Duration) {
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        let ended = |state: &KeyState| state.until.is_some_and(|until| until.at + age < now.at);
        for history in ledger.keys.values_mut() {
            let count = history.states.iter().take_while(|s| ended(s)).count();
            if count == 0 {
                continue;
            }
            history.forgotten = true;
            history.states.drain(..count);
            // Of the acknowledgements, the newest of what was forgotten counts for none of the rest.
            history.acknowledged.retain_mut(|(_, index)| {
                let kept = index.checked_sub(count);
                *index = kept.unwrap_or(0);
                kept.is_some()
            });
        }
    }

    /// Returns the current version, if the object exists.
    #[must_use]
    pub fn current(&self, path: &Path) -> Option<Arc<Version>> {
        let ledger = self.ledger.lock();
        ledger.keys.get(path)?.states.last()?.version.clone()
    }

    /// Returns the current version of every object, in ascending order of keys.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Version>> {
        let ledger = self.ledger.lock();
        let current = |history: &History| {
            history
                .states
                .last()
                .and_then(|state| state.version.clone())
        };
        ledger.keys.values().filter_map(current).collect()
    }

    /// Returns the number of versions that `path` had.
    #[must_use]
    pub fn versions(&self, path: &Path) -> usize {
        let ledger = self.ledger.lock();
        ledger.keys.get(path).map_or(0, |history| {
            history
                .states
                .iter()
                .filter(|s| s.version.is_some())
                .count()
        })
    }

    pub(crate) fn note_fault(&self, path: &Path, fault: &Fault) {
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        ledger.history(path).faults.push((now, fault.kind()));
    }

    /// Records that a write through the bucket, begun at `start`, was acknowledged.
    ///
    /// # Errors
    ///
    /// If no such write was committed since `start`: the acknowledgement is false.
    pub fn acknowledge(
        &self,
        path: &Path,
        start: Moment,
        wrote: WriteEffect<'_>,
    ) -> Result<(), Violation> {
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        let history = ledger.history(path);
        let mut made = history
            .states
            .iter()
            .enumerate()
            .filter(|(_, state)| state.since >= start);
        let made = match wrote {
            // A retried write was acknowledged for its last attempt.
            WriteEffect::Body(body) => {
                made.rfind(|(_, state)| state.version.as_ref().is_some_and(|v| v.body == *body))
            }
            // Any of these deletions may be another client's, which is not acknowledged yet: only the first is sure.
            WriteEffect::Deleted => made.find(|(_, state)| state.version.is_none()),
            WriteEffect::Unknown => made.find(|(_, state)| state.version.is_some()),
        };
        let made = made.map(|(index, _)| index);
        // Deleting an absent object commits nothing.
        let was_absent = || {
            let absent = |state: &KeyState| {
                state.version.is_none() && state.until.is_none_or(|until| until >= start)
            };
            // Before its first version an object was absent.
            let first = history.states.first();
            let absent_first = first.is_none_or(|first| first.since >= start);
            (absent_first && !history.forgotten) || history.states.iter().any(absent)
        };
        match made {
            Some(made) => history.acknowledged.push((now, made)),
            None if wrote == WriteEffect::Deleted && was_absent() => {}
            None => {
                return Err(Violation::FalseAcknowledgement {
                    path: path.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Effect of an acknowledged write through the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEffect<'a> {
    /// The object has these bytes.
    Body(&'a Bytes),
    /// The object is absent.
    Deleted,
    /// The object has bytes that the writer does not know (a copy).
    Unknown,
}

impl History {
    /// Returns the states that a read from `start` to `end` may see if responses of the origin may be reused for `window`
    /// (`None`: without a limit).
    fn visible(
        &self,
        start: Moment,
        end: Moment,
        window: Option<Duration>,
    ) -> Vec<Option<Arc<Version>>> {
        let floor = self
            .acknowledged
            .iter()
            .filter(|(when, _)| *when <= start)
            .map(|(_, state)| *state)
            .max();
        let recent = |state: &KeyState| match (state.until, window) {
            (Some(until), Some(window)) => until.at + window >= start.at || until >= start,
            _ => true,
        };
        let mut seen: Vec<_> = (self.states.iter().enumerate())
            .filter(|(index, state)| {
                floor.is_none_or(|floor| *index >= floor) && state.since <= end && recent(state)
            })
            .map(|(_, state)| state.version.clone())
            .collect();
        // Before its first version an object was absent.
        let first = self.states.first().map(|state| state.since);
        let absent_first = first.is_none_or(|first| match window {
            Some(window) => first.at + window >= start.at || first >= start,
            None => true,
        });
        if absent_first && floor.is_none() && !self.forgotten {
            seen.push(None);
        }
        seen
    }

    /// Returns the number of changes that a read from `start` to `end` can be affected by.
    fn changes(&self, start: Moment, end: Moment, window: Option<Duration>) -> usize {
        let late = |state: &&KeyState| match window {
            Some(window) => state.since.at + window >= start.at,
            None => true,
        };
        self.states
            .iter()
            .skip(1)
            .filter(late)
            .filter(|state| state.since <= end)
            .count()
    }

    fn faults(&self, start: Instant, end: Moment) -> impl Iterator<Item = FaultKind> + '_ {
        self.faults
            .iter()
            .filter(move |(when, _)| when.at >= start && *when <= end)
            .map(|(_, kind)| *kind)
    }
}

/// Time in [`Version::meta`] of a version without Last-Modified.
pub(crate) fn no_time() -> DateTime<Utc> {
    DateTime::<Utc>::UNIX_EPOCH
}
