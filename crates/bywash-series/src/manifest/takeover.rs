//! Opening a store for writing: the state that the new writer takes over, and the records that are
//! kept of other logs.
//!
//! Rows are acknowledged once they are in a log, which is on a disk of one machine, while the files
//! may be in a store that many reach. A generation is flushed or not *of one log*. So the manifest
//! keeps the flushed generations of each log apart, for the current writer's log and the last logs
//! before it: a log that returns is replayed from where its files end, and none of its rows is
//! taken for a row of another log. Each writer with another log begins an epoch of generations, so
//! that generations of two logs never mix.

use std::collections::BTreeSet;
use std::path::Path;

use super::format::{EarlierLog, Manifest, first_generation};
use crate::SeriesError;

/// Earlier logs whose flushed generations a manifest keeps. A log that returns later is refused.
pub(super) const EARLIER_LOGS: usize = 8;

/// Id of a process that opens a store.
pub(crate) fn new_writer() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The log of a process that opens a store, as far as it is known before its replay.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnLog<'a> {
    pub(super) folder: &'a Path,
    /// Ids of the writers that used it last; none in a new log and in one of an older build.
    pub(super) writers: &'a [String],
    /// Whether it has no segment.
    pub(super) is_empty: bool,
    /// Whether the store may differ from the store of an older build's log.
    pub(super) shared_store: bool,
}

impl OwnLog<'_> {
    fn was_written_by(&self, writer: &str) -> bool {
        self.writers.iter().any(|known| known == writer)
    }

    /// Id by which a manifest knows this log.
    pub(super) fn known_as<'m>(&self, manifest: &'m Manifest) -> Option<&'m str> {
        let earlier = manifest.earlier.iter().map(|log| &log.writer);
        let mut writers = [&manifest.writer].into_iter().chain(earlier);
        writers
            .find(|writer| self.was_written_by(writer))
            .map(|writer| &**writer)
    }
}

/// Returns the manifest with which `writer` takes the store over: its own log's flushed
/// generations, and the flushed generations of the log before it if that is another.
///
/// Fails with [`SeriesError::ForeignLog`] if the log has segments and the manifest does not know which of their rows are in
/// files.
pub(super) fn taken_over(
    found: Option<Manifest>,
    width: i64,
    writer: &str,
    log: Option<OwnLog<'_>>,
) -> Result<Manifest, SeriesError> {
    let foreign = |log: OwnLog<'_>| SeriesError::ForeignLog {
        path: log.folder.to_owned(),
    };
    let mut manifest = match found {
        None => {
            // A log that was used has its rows in another store, or in one that was lost.
            if let Some(log) =
                log.filter(|log| !log.is_empty && (!log.writers.is_empty() || log.shared_store))
            {
                return Err(foreign(log));
            }
            Manifest::empty(width)
        }
        Some(found) if found.span != width => {
            return Err(SeriesError::PartitionWidthMismatch { stored: found.span });
        }
        Some(mut found) => {
            let continues = match log {
                None => !found.logged,
                // Logs of older builds have no ids, and are next to their files.
                Some(log) if log.writers.is_empty() => !log.is_empty && !log.shared_store,
                Some(log) => log.was_written_by(&found.writer),
            };
            if !continues {
                begin_epoch(&mut found, log).map_err(foreign)?;
            }
            found
        }
    };
    manifest.number += 1;
    writer.clone_into(&mut manifest.writer);
    manifest.logged = log.is_some();
    Ok(manifest)
}

/// Sets the log of the writer before aside, and continues with the manifest's record of `log`.
/// Returns the log if there is no record, but the log has rows.
fn begin_epoch<'a>(manifest: &mut Manifest, log: Option<OwnLog<'a>>) -> Result<(), OwnLog<'a>> {
    let known = log.and_then(|log| {
        let mut earlier = manifest.earlier.iter();
        earlier.position(|earlier| log.was_written_by(&earlier.writer))
    });
    let known = known.map(|at| manifest.earlier.remove(at));
    if let Some(log) = log.filter(|log| !log.is_empty && known.is_none()) {
        return Err(log);
    }
    let epoch = manifest.epoch + 1;
    let (flushed_below, flushed) = match known {
        Some(known) => (known.flushed_below, known.flushed),
        None => (first_generation(epoch), BTreeSet::new()),
    };
    let before = EarlierLog {
        writer: std::mem::take(&mut manifest.writer),
        epoch: manifest.epoch,
        flushed_below: std::mem::replace(&mut manifest.flushed_below, flushed_below),
        flushed: std::mem::replace(&mut manifest.flushed, flushed),
    };
    if manifest.logged {
        manifest.earlier.push(before);
    }
    let more = manifest.earlier.len().saturating_sub(EARLIER_LOGS);
    manifest.earlier.drain(..more);
    manifest.epoch = epoch;
    Ok(())
}
