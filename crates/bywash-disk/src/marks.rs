//! Marks of versions whose blocks must not be found after a restart: a file of their keys.
//!
//! A slot has the key of one version, or zeros. A mark outlives a killed process; a power cut may lose it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::format::VersionKey;

/// The file in the folder of a tier.
pub(crate) const MARKS: &str = "unverified";
/// Versions that can be marked at once: 16 KiB.
const SLOTS: usize = 1024;
const SLOT_BYTES: usize = size_of::<VersionKey>();

/// The marked versions.
#[derive(Debug)]
pub(crate) struct Marks {
    file: File,
    slots: HashMap<VersionKey, usize>,
    free: Vec<usize>,
}

impl Marks {
    /// Opens the file, with the marks that an earlier run left.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join(MARKS))?;
        let mut bytes = vec![0; SLOTS * SLOT_BYTES];
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        let length = length.min(bytes.len());
        file.read_exact_at(&mut bytes[..length], 0)?;
        let mut marks = Self {
            file,
            slots: HashMap::new(),
            free: Vec::new(),
        };
        let (keys, _) = bytes.as_chunks::<SLOT_BYTES>();
        for (slot, key) in keys.iter().enumerate() {
            if *key == [0; SLOT_BYTES] || marks.slots.contains_key(&VersionKey(*key)) {
                marks.free.push(slot);
            } else {
                marks.slots.insert(VersionKey(*key), slot);
            }
        }
        Ok(marks)
    }

    /// Marked versions.
    pub(crate) fn versions(&self) -> impl Iterator<Item = VersionKey> + '_ {
        self.slots.keys().copied()
    }

    /// Marks a version, if it is not marked yet. Returns whether it is marked: there may be no slot.
    pub(crate) fn add(&mut self, version: VersionKey) -> io::Result<bool> {
        if self.slots.contains_key(&version) {
            return Ok(true);
        }
        let Some(slot) = self.free.last().copied() else {
            return Ok(false);
        };
        if !planted!("disk-mark-not-written") {
            self.write(slot, &version.0)?;
        }
        self.free.pop();
        self.slots.insert(version, slot);
        Ok(true)
    }

    /// Removes the marks of the versions that `keep` does not select.
    pub(crate) fn retain(&mut self, keep: impl Fn(&VersionKey) -> bool) -> io::Result<()> {
        let removed = self.slots.iter().filter(|(version, _)| !keep(version));
        let removed: Vec<_> = removed.map(|(version, slot)| (*version, *slot)).collect();
        for (version, slot) in removed {
            self.write(slot, &[0; SLOT_BYTES])?;
            self.slots.remove(&version);
            self.free.push(slot);
        }
        Ok(())
    }

    fn write(&self, slot: usize, key: &[u8; SLOT_BYTES]) -> io::Result<()> {
        self.file.write_all_at(key, (slot * SLOT_BYTES) as u64)
    }
}
