//! Ordered walk of the overflow area: chunks of 66 bytes of the key, sorted by their decoded bytes.

use std::sync::Arc;
use std::vec::IntoIter;

use object_store::Result;
use rustix::io::Errno;

use super::super::error::io_error;
use super::super::names::{KEYS, NameChunk, decode, encode};
use super::super::root::{EntryKind, Root, join};
use super::{Filter, ListItem, left_out, object};

/// A folder of the overflow area being walked.
#[derive(Debug)]
struct ChunkLevel {
    /// Path relative to the root.
    folder: String,
    /// The decoded beginning of the keys below.
    start: Vec<u8>,
    chunks: IntoIter<(NameChunk, String)>,
}

/// Walks the keys of the overflow area.
#[derive(Debug)]
pub(super) struct OverflowWalk {
    root: Arc<Root>,
    filter: Filter,
    levels: Vec<ChunkLevel>,
    /// The folder to enter next, and the decoded beginning of the keys below.
    enter: Option<(String, Vec<u8>)>,
    folded: Option<String>,
}

impl OverflowWalk {
    pub(super) fn new(root: Arc<Root>, filter: Filter) -> Self {
        Self {
            root,
            filter,
            levels: Vec::new(),
            enter: Some((KEYS.to_owned(), Vec::new())),
            folded: None,
        }
    }

    fn enter(&mut self, folder: String, start: Vec<u8>) -> Result<(), Errno> {
        let mut chunks = Vec::new();
        let filter = &self.filter;
        let found = self.root.read_folder(&folder, |name, kind| {
            // Names that are not chunks were not written by the store.
            let Some(chunk) =
                decode(name).filter(|chunk| chunk.folder == (kind == EntryKind::Folder))
            else {
                return true;
            };
            let whole = [start.as_slice(), &chunk.bytes].concat();
            let taken = if chunk.folder {
                filter.may_take_below(&whole)
            } else {
                filter.takes_key(&whole)
            };
            if taken {
                chunks.push((chunk, name.to_owned()));
            }
            true
        })?;
        if found.is_some() {
            chunks.sort_unstable();
            self.levels.push(ChunkLevel {
                folder,
                start,
                chunks: chunks.into_iter(),
            });
        }
        Ok(())
    }
}

impl Iterator for OverflowWalk {
    type Item = Result<ListItem>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((folder, start)) = self.enter.take()
                && let Err(errno) = self.enter(folder, start.clone())
            {
                let name = String::from_utf8_lossy(&start).into_owned();
                return Some(if self.levels.is_empty() {
                    Err(io_error("list", KEYS, errno))
                } else {
                    left_out(&self.root, name, errno)
                });
            }
            let level = self.levels.last_mut()?;
            let Some((chunk, name)) = level.chunks.next() else {
                self.levels.pop();
                continue;
            };
            let whole = [level.start.as_slice(), &chunk.bytes].concat();
            let path = join(&level.folder, &name);
            if chunk.folder {
                self.enter = Some((path, whole));
                continue;
            }
            let Ok(key) = String::from_utf8(whole) else {
                continue;
            };
            if let Some(prefix) = self.filter.fold(&key) {
                if self.folded.as_deref() != Some(prefix) {
                    self.folded = Some(prefix.to_owned());
                    return Some(Ok(ListItem::Prefix(prefix.to_owned())));
                }
                continue;
            }
            debug_assert!(path.ends_with(&encode(&key)), "chunks decode as encoded");
            match object(&self.root, &key, &path) {
                Ok(None) => {}
                found => return found.transpose(),
            }
        }
    }
}
