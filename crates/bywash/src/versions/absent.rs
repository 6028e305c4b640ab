//! Keys that are not there, so that programs that look for the same few files over and over ask the origin once a window.

use std::time::Duration;

use foldhash::fast::RandomState;
use object_store::path::Path;
use tokio::time::Instant;

/// How many such keys of one bucket are remembered: a scan for keys that never were costs no more than this. An entry takes
/// about 0.25 KiB that the budget does not see.
const ABSENT_KEYS: usize = 16_384;

/// What the origin said is not there, and when the question was asked.
#[derive(Debug)]
pub(super) struct Absent {
    asked: papaya::HashMap<Path, Instant, RandomState>,
    /// How long an answer is trusted. `None`: objects never change; but one that is not there may come at any time.
    window: Option<Duration>,
}

impl Absent {
    pub(super) fn new(window: Option<Duration>, hasher: RandomState) -> Self {
        let asked = papaya::HashMap::with_hasher(hasher);
        Self { asked, window }
    }

    /// Whether the origin said so within the window.
    pub(super) fn has(&self, path: &Path) -> bool {
        let Some(window) = self.window else {
            return false;
        };
        let asked = self.asked.pin();
        asked.get(path).is_some_and(|at| at.elapsed() <= window)
    }

    /// Takes in an answer to a question asked at `at`; nothing, when as many as can be were said within the window.
    pub(super) fn add(&self, path: &Path, at: Instant) {
        let Some(window) = self.window else {
            return;
        };
        let asked = self.asked.pin();
        if asked.len() >= ABSENT_KEYS {
            asked.retain(|_, at| at.elapsed() <= window);
        }
        if asked.len() < ABSENT_KEYS {
            asked.insert(path.clone(), at);
        }
    }

    /// It may be there by now.
    pub(super) fn remove(&self, path: &Path) {
        self.asked.pin().remove(path);
    }

    /// A list that was asked for at `listed` shows it.
    pub(super) fn listed(&self, path: &Path, listed: Instant) {
        let asked = self.asked.pin();
        if asked.get(path).is_some_and(|at| *at < listed) {
            asked.remove(path);
        }
    }

    pub(super) fn clear(&self) {
        self.asked.pin().clear();
    }
}
