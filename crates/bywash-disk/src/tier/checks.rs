//! Versions that are being compared with their digest: their blocks are marked before they are written, so that they are not found
//! after the process was killed.

use std::collections::HashMap;
use std::io;

use super::Tier;
use super::write::Writer;
use crate::Block;
use crate::format::VersionKey;

/// Comparisons of one version.
#[derive(Debug, Default)]
pub(super) struct Check {
    running: u32,
    /// The version is marked.
    marked: bool,
}

pub(super) type Checks = HashMap<VersionKey, Check>;

impl Tier {
    /// Records that a version is being compared with its digest. Blocks of it that are written until [`Self::end_check`] are not
    /// found if the process is killed before.
    pub fn begin_check(&self, version: VersionKey) {
        self.checks.lock().entry(version).or_default().running += 1;
    }

    /// Ends one comparison, with any result: bytes with another digest are erased apart. Returns
    /// whether marks are to be released.
    pub fn end_check(&self, version: VersionKey) -> bool {
        let mut checks = self.checks.lock();
        let Some(check) = checks.get_mut(&version) else {
            return false;
        };
        check.running -= 1;
        if check.running > 0 {
            return false;
        }
        checks.remove(&version).is_some_and(|check| check.marked)
    }

    /// Removes the marks of versions that are compared no more, unless their erasure is not on the disk yet. Blocks on the disk.
    pub fn release_marks(&self) {
        let mut writer = self.writer.lock();
        let Some(marks) = &mut writer.marks else {
            return;
        };
        let kept = |version: &VersionKey| {
            self.checks.lock().contains_key(version) || self.erasures.is_pending(version)
        };
        // A mark that stays costs the blocks after a restart, no more.
        let _ = marks.retain(kept);
    }

    /// Marks those versions of `blocks` that are being compared. Returns whether there was room for all.
    pub(super) fn mark(&self, writer: &mut Writer, blocks: &[Block<'_>]) -> io::Result<bool> {
        let Some(marks) = &mut writer.marks else {
            return Ok(true);
        };
        let checked: Vec<_> = {
            let checks = self.checks.lock();
            let versions = blocks.iter().map(|block| block.version);
            versions
                .filter(|version| checks.contains_key(version))
                .collect()
        };
        for version in checked {
            if !marks.add(version)? {
                return Ok(false);
            }
            if let Some(check) = self.checks.lock().get_mut(&version) {
                check.marked = true;
            }
        }
        Ok(true)
    }
}
