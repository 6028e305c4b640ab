//! The order in which sessions ended: records of the oldest are removed when there are too many.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path as FsPath;
use std::time::SystemTime;

use super::record::{DONE, is_id};

/// A session's name as bytes.
type Id = [u8; 32];

/// Names of finished sessions whose records are kept, the oldest first.
#[derive(Debug)]
pub(super) struct FinishedSessions {
    ids: VecDeque<Id>,
    max: usize,
}

fn to_bytes(id: &str) -> Option<Id> {
    let mut bytes = [0; 32];
    if !is_id(id) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(id.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl FinishedSessions {
    /// Reads the names in a folder. Blocks.
    pub(super) fn read(folder: &FsPath, max: usize) -> io::Result<Self> {
        let mut found: Vec<(SystemTime, Id)> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            let is_done = path.extension().is_some_and(|kind| kind == DONE);
            let id = path.file_stem().and_then(|name| to_bytes(name.to_str()?));
            if let Some(id) = id.filter(|_| is_done) {
                found.push((entry.metadata()?.modified()?, id));
            }
        }
        found.sort_unstable();
        let ids = found.into_iter().map(|(_, id)| id).collect();
        Ok(Self { ids, max })
    }

    /// Adds a session. Returns the sessions to forget.
    pub(super) fn add(&mut self, id: &str) -> Vec<String> {
        self.ids.extend(to_bytes(id));
        self.beyond()
    }

    /// Takes out the oldest sessions beyond the limit.
    pub(super) fn beyond(&mut self) -> Vec<String> {
        let excess = self.ids.len().saturating_sub(self.max);
        let ids = self.ids.drain(..excess);
        ids.map(|id| crate::digest::hex(&id)).collect()
    }

    /// Forgets a session if it is the oldest: sessions expire in this order. Others stay, and count, until they are.
    pub(super) fn forget(&mut self, id: &str) {
        if self.ids.front().copied() == to_bytes(id) {
            self.ids.pop_front();
        }
    }
}
