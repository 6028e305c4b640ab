//! Who knows the truth: every version of every object, when it was current, and what readers may see.

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

/// A point in the order of events. Under a paused clock many events share one instant; `tick`
/// tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Position in the order of all events of the world.
    pub tick: u64,
    /// Time on tokio's clock.
    pub at: Instant,
}

/// One version of one object.
#[derive(Debug, Clone)]
pub struct Version {
    /// Unique in its world, ascending.
    pub number: u64,
    /// All its bytes.
    pub body: Bytes,
    /// What the origin says of it: ETag and Last-Modified as far as the origin gives them.
    pub meta: ObjectMeta,
    /// Attributes it was written with.
    pub attributes: Attributes,
}

/// What a key held from one moment to another; `None` is "no object".
#[derive(Debug, Clone)]
struct State {
    version: Option<Arc<Version>>,
    since: Moment,
    until: Option<Moment>,
}

#[derive(Debug, Default)]
struct History {
    states: Vec<State>,
    /// Writes through the bucket that were acknowledged: when, and which state they made. A read
    /// that starts later must not see an earlier state, however long answers may be trusted.
    acknowledged: Vec<(Moment, usize)>,
    faults: Vec<(Moment, FaultKind)>,
}

#[derive(Debug, Default)]
struct Ledger {
    tick: u64,
    keys: BTreeMap<Path, History>,
}

/// The ledger of a world, and its judge.
///
/// The origin commits to it, so it cannot disagree with what the origin serves.
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
    /// The present moment, later than all before it.
    pub fn now(&self) -> Moment {
        self.ledger.lock().now()
    }

    /// Makes `version` current (or the object absent).
    pub fn commit(&self, path: &Path, version: Option<Version>) -> Moment {
        let mut ledger = self.ledger.lock();
        let now = ledger.now();
        let states = &mut ledger.history(path).states;
        if let Some(last) = states.last_mut() {
            last.until = Some(now);
        }
        states.push(State {
            version: version.map(Arc::new),
            since: now,
            until: None,
        });
        now
    }

    /// The current version, if the object exists.
    #[must_use]
    pub fn current(&self, path: &Path) -> Option<Arc<Version>> {
        let ledger = self.ledger.lock();
        ledger.keys.get(path)?.states.last()?.version.clone()
    }

    /// The current version of every object, in ascending order of keys.
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

    /// How many versions `path` ever had.
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

    /// A write through the bucket, begun at `start`, was acknowledged.
    ///
    /// # Errors
    ///
    /// If nothing of the kind was committed since `start`: the acknowledgement is a lie.
    pub fn acknowledge(
        &self,
        path: &Path,
        start: Moment,
        wrote: Wrote<'_>,
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
            // A write that was repeated was acknowledged for the last time it was done.
            Wrote::Body(body) => {
                made.rfind(|(_, state)| state.version.as_ref().is_some_and(|v| v.body == *body))
            }
            Wrote::Absence => made.rfind(|(_, state)| state.version.is_none()),
            Wrote::Something => made.find(|(_, state)| state.version.is_some()),
        };
        let made = made.map(|(index, _)| index);
        // Deleting what is absent commits nothing.
        let was_absent = || {
            let gone = |state: &State| {
                state.version.is_none() && state.until.is_none_or(|until| until >= start)
            };
            history.states.is_empty() || history.states.iter().any(gone)
        };
        match made {
            Some(made) => history.acknowledged.push((now, made)),
            None if wrote == Wrote::Absence && was_absent() => {}
            None => {
                return Err(Violation::FalseAcknowledgement {
                    path: path.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// What a write through the bucket claims to have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrote<'a> {
    /// These bytes are the object.
    Body(&'a Bytes),
    /// There is no such object.
    Absence,
    /// Bytes the writer does not know: a copy.
    Something,
}

impl History {
    /// The states a read from `start` to `end` may have seen, when an answer of the origin may be
    /// trusted for `window` (`None`: for ever).
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
        let recent = |state: &State| match (state.until, window) {
            (Some(until), Some(window)) => until.at + window >= start.at || until >= start,
            _ => true,
        };
        let mut seen: Vec<_> = (self.states.iter().enumerate())
            .filter(|(index, state)| {
                floor.is_none_or(|floor| *index >= floor) && state.since <= end && recent(state)
            })
            .map(|(_, state)| state.version.clone())
            .collect();
        // Before its first version an object was absent, for ever.
        let first = self.states.first().map(|state| state.since);
        let absent_first = first.is_none_or(|first| match window {
            Some(window) => first.at + window >= start.at || first >= start,
            None => true,
        });
        if absent_first && floor.is_none() {
            seen.push(None);
        }
        seen
    }

    /// Changes that a read from `start` to `end` may have come across.
    fn changes(&self, start: Moment, end: Moment, window: Option<Duration>) -> usize {
        let late = |state: &&State| match window {
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

/// When [`Version::meta`] has this as its time, the origin gave none.
pub(crate) fn no_time() -> DateTime<Utc> {
    DateTime::<Utc>::UNIX_EPOCH
}
