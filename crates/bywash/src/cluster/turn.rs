//! A write in a cluster: begun before its first request to the origin, ended after the last.
//!
//! One turn is around all attempts of a write, so that retries and their time limits belong to one node alone. It runs in the
//! task of the write, which continues when its client leaves; if the task itself is dropped, the turn ends in doubt.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, Result};

use super::{WriteEnd, WriteTurn};
use crate::key_turns::HeldKeys;
use crate::shared::BucketShared;

/// A write in progress.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` without a cluster.
    cluster: Option<Box<dyn WriteTurn>>,
    _keys: HeldKeys,
}

impl BucketShared {
    /// Begins a write of `paths`.
    pub(crate) async fn turn(self: &Arc<Self>, paths: Vec<Path>) -> Turn {
        let keys = match &self.key_turns {
            Some(turns) => turns.shared(paths.clone()).await,
            None => HeldKeys::default(),
        };
        self.turn_with(paths, keys).await
    }

    /// As [`Self::turn`], with the right to write the keys.
    pub(crate) async fn turn_with(&self, paths: Vec<Path>, keys: HeldKeys) -> Turn {
        let cluster = match &self.cluster {
            Some(cluster) => Some(cluster.versions.begin_write(&self.name, paths).await),
            None => None,
        };
        Turn {
            cluster,
            _keys: keys,
        }
    }
}

impl Turn {
    /// Ends the write with its result. A success is returned only if no node returns the replaced version any more.
    pub(crate) async fn end<T>(self, result: Result<T>) -> Result<T> {
        let end = result.as_ref().map_or_else(end_of, |_| WriteEnd::Written);
        match (self.end_as(end).await, result) {
            (Err(error), Ok(_)) => Err(error),
            (_, result) => result,
        }
    }

    pub(crate) async fn end_as(self, end: WriteEnd) -> Result<()> {
        match self.cluster {
            Some(turn) => turn.end(end).await,
            None => Ok(()),
        }
    }
}

/// Returns how a failed write ended. Only responses to requests that are never sent twice prove that nothing has changed: behind a
/// refusal of a second attempt the first one may have succeeded.
fn end_of(error: &Error) -> WriteEnd {
    match error {
        Error::Precondition { .. }
        | Error::AlreadyExists { .. }
        | Error::NotImplemented { .. }
        | Error::NotSupported { .. } => WriteEnd::Refused,
        _ => WriteEnd::InDoubt,
    }
}
