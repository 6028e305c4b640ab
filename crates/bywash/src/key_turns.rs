//! Turns of writes over a store without conditional deletes: the delete of a copied object is alone with its key.
//!
//! Any number of writes of a key run at a time. A delete that was preceded by a look at the object has the key to itself from the
//! look to its end, so that it deletes no version that a write of this process stored in between. In a table of their own, changes
//! of attributes are alone with their key from the read to the end of the write.

use std::collections::HashMap;
use std::sync::Arc;

use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The keys of a bucket that are being written.
#[derive(Debug, Default)]
pub(crate) struct KeyTurns(Mutex<HashMap<Path, Arc<RwLock<()>>>>);

#[derive(Debug)]
enum Right {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// The right to write one key.
#[derive(Debug)]
struct KeyTurn {
    turns: Arc<KeyTurns>,
    path: Path,
    /// `None` while it is waited for, and once it has ended.
    right: Option<Right>,
}

/// The right to write some keys, until it is dropped.
#[derive(Debug, Default)]
pub struct HeldKeys {
    _turns: Vec<KeyTurn>,
}

impl KeyTurns {
    /// Waits until no delete is alone with one of the keys.
    pub(crate) async fn shared(self: &Arc<Self>, mut paths: Vec<Path>) -> HeldKeys {
        // In one order, so that no two wait for each other.
        paths.sort_unstable();
        paths.dedup();
        let mut turns = Vec::with_capacity(paths.len());
        for path in paths {
            let (mut turn, lock) = self.register(path);
            let guard = lock.read_owned().await;
            turn.right = Some(Right::Shared { _guard: guard });
            turns.push(turn);
        }
        HeldKeys { _turns: turns }
    }

    /// Waits until no other write of the key is in progress.
    pub(crate) async fn alone(self: &Arc<Self>, path: Path) -> HeldKeys {
        let (mut turn, lock) = self.register(path);
        let guard = lock.write_owned().await;
        turn.right = Some(Right::Alone { _guard: guard });
        HeldKeys { _turns: vec![turn] }
    }

    fn register(self: &Arc<Self>, path: Path) -> (KeyTurn, Arc<RwLock<()>>) {
        let lock = Arc::clone(self.0.lock().entry(path.clone()).or_default());
        let turn = KeyTurn {
            turns: Arc::clone(self),
            path,
            right: None,
        };
        (turn, lock)
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let mut all = self.turns.0.lock();
        self.right = None;
        // Clones are made under the table's lock: the last user removes the entry.
        if all
            .get(&self.path)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            all.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn path() -> Path {
        Path::from("a")
    }

    #[tokio::test]
    async fn delete_is_alone_with_its_key_and_writes_are_not() {
        let turns = Arc::new(KeyTurns::default());
        let first = turns.shared(vec![path(), Path::from("b"), path()]).await;
        let second = turns.shared(vec![path()]).await;
        let mut alone = Box::pin(turns.alone(path()));
        assert!(alone.as_mut().now_or_never().is_none());
        // A later write waits for the delete, others do not.
        let mut later = Box::pin(turns.shared(vec![path()]));
        assert!(later.as_mut().now_or_never().is_none());
        drop(turns.shared(vec![Path::from("b")]).await);
        drop((first, second));
        let held = alone.await;
        assert!(later.as_mut().now_or_never().is_none());
        drop(held);
        drop(later.await);
        assert!(turns.0.lock().is_empty());
    }

    #[tokio::test]
    async fn turn_that_is_no_longer_waited_for_leaves_nothing() {
        let turns = Arc::new(KeyTurns::default());
        let held = turns.shared(vec![path()]).await;
        let mut alone = Box::pin(turns.alone(path()));
        assert!(alone.as_mut().now_or_never().is_none());
        drop(alone);
        drop(turns.shared(vec![path()]).await);
        drop(held);
        assert!(turns.0.lock().is_empty());
    }
}
