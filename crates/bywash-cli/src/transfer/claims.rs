//! Destinations of the copies of one command. Two sources may have one name; the second copy would replace the first.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use crate::failure::Failure;
use crate::transfer::Pair;

/// Hashes of destinations that are written or being written.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    hasher: RandomState,
    taken: Mutex<HashSet<u64>>,
}

impl Claims {
    fn key(&self, pair: &Pair) -> u64 {
        self.hasher.hash_one(pair.destination.to_string())
    }

    /// Fails if another copy has this destination.
    pub(crate) fn take(&self, pair: &Pair) -> Result<(), Failure> {
        if self.taken.lock().insert(self.key(pair)) {
            return Ok(());
        }
        let (source, destination) = (&pair.source, &pair.destination);
        Err(Failure::failed(format!(
            "will not overwrite {destination}, which this command has just written from another source; copy {source} to another place"
        )))
    }

    /// Makes the destination of a failed copy free.
    pub(crate) fn release(&self, pair: &Pair) {
        self.taken.lock().remove(&self.key(pair));
    }
}
