//! Clients' ETags of files that were read before, so that a listing opens no file for them.
//!
//! An entry belongs to one version of a file: device, inode, size, mtime and ctime. It cannot become stale, because every change of the
//! bytes or of an attribute sets the ctime, which no program can set back. The kernel takes the ctime from a clock that ticks every
//! 1 to 10 ms, and some file systems store whole seconds, so a second change within a tick would go unseen. Hence a version is
//! remembered only if its ctime was older than a tick before its ETag was read: each change during the read or later gets another ctime,
//! and then no look-up finds the entry. A network file system whose clock lags behind this machine's by more than a tick is not covered.
//!
//! The table is one of the process, because its entries belong to files and not to folders or stores. It takes at most 4 MiB, a
//! part at a time as entries come, and is covered by the program's own part of a server's memory.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::identity::{FileVersion, Identity};
use crate::limits::MAX_KNOWN_ETAGS;

/// Locks of the table. None is held during I/O.
const SHARDS: usize = 64;
/// Entries among which a version may be: a look-up compares all.
const WAYS: usize = 8;
static KNOWN: LazyLock<KnownETags> = LazyLock::new(|| KnownETags::new(MAX_KNOWN_ETAGS));

/// Returns the remembered state of a version: its client's ETag, or that it has none. `None`: the file must be read.
pub(super) fn find(identity: &Identity) -> Option<Option<String>> {
    KNOWN.find(&identity.version()?)
}

/// Remembers the client's ETag of a version, or that it has none, as read from the file after [`Identity::is_settled`] returned true.
pub(super) fn remember(identity: &Identity, e_tag: Option<&str>) {
    if let (Some(version), Some(kept)) = (identity.version(), KeptETag::new(e_tag)) {
        KNOWN.insert(version, kept);
    }
}

/// A client's ETag in few bytes: the MD5 of an object, or the MD5 of its parts with their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptETag {
    None,
    Whole([u8; 16]),
    Parts([u8; 16], u16),
}

impl KeptETag {
    /// Returns `None` for an ETag of another form, which is not kept.
    fn new(e_tag: Option<&str>) -> Option<Self> {
        let Some(e_tag) = e_tag else {
            return Some(Self::None);
        };
        let (digest, parts) = match e_tag.split_once('-') {
            Some((digest, parts)) => (digest, Some(parts.parse().ok()?)),
            None => (e_tag, None),
        };
        let is_hex = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digest.len() != 32 || !digest.bytes().all(is_hex) {
            return None;
        }
        let md5 = u128::from_str_radix(digest, 16).ok()?.to_be_bytes();
        let kept = match parts {
            Some(parts) => Self::Parts(md5, parts),
            None => Self::Whole(md5),
        };
        // A number with zeros or a sign before it is another text.
        (kept.text().as_deref() == Some(e_tag)).then_some(kept)
    }

    fn text(self) -> Option<String> {
        let hex = |md5: [u8; 16]| format!("{:032x}", u128::from_be_bytes(md5));
        match self {
            Self::None => None,
            Self::Whole(md5) => Some(hex(md5)),
            Self::Parts(md5, parts) => Some(format!("{}-{parts}", hex(md5))),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    version: FileVersion,
    kept: KeptETag,
}

/// Entries under one lock.
#[derive(Debug, Default)]
struct Shard {
    /// Empty before the first entry, then of constant length.
    slots: Vec<Option<Entry>>,
    /// Rotates over the ways: the next one is replaced when all are taken.
    turn: usize,
}

#[derive(Debug)]
struct KnownETags {
    shards: Box<[Mutex<Shard>]>,
    /// Sets of [`WAYS`] slots in a shard.
    sets: usize,
    hasher: RandomState,
}

impl KnownETags {
    /// A table of at most `entries`, a multiple of the shards' ways.
    fn new(entries: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            sets: entries / SHARDS / WAYS,
            hasher: RandomState::new(),
        }
    }

    /// Returns the shard and the first slot of a file. All versions of a file are in one set, so that a new one takes the place of
    /// the one before.
    fn place(&self, version: &FileVersion) -> (&Mutex<Shard>, usize) {
        let hash = self.hasher.hash_one(version.node()) as usize;
        let set = hash / SHARDS % self.sets;
        (&self.shards[hash % SHARDS], set * WAYS)
    }

    fn find(&self, version: &FileVersion) -> Option<Option<String>> {
        let (shard, first) = self.place(version);
        let shard = shard.lock();
        let slots = shard.slots.get(first..first + WAYS)?;
        let found = slots
            .iter()
            .flatten()
            .find(|entry| entry.version == *version);
        let kept = found.map(|entry| entry.kept);
        drop(shard);
        kept.map(KeptETag::text)
    }

    fn insert(&self, version: FileVersion, kept: KeptETag) {
        let (shard, first) = self.place(&version);
        let mut shard = shard.lock();
        if shard.slots.is_empty() {
            shard.slots = vec![None; self.sets * WAYS];
        }
        let slots = &shard.slots[first..first + WAYS];
        let of_file =
            |slot: &Option<Entry>| slot.is_none_or(|entry| entry.version.node() == version.node());
        let way = slots.iter().position(of_file).unwrap_or(shard.turn % WAYS);
        shard.turn = shard.turn.wrapping_add(1);
        shard.slots[first + way] = Some(Entry { version, kept });
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        let count = |shard: &Mutex<Shard>| shard.lock().slots.iter().flatten().count();
        self.shards.iter().map(count).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const ETAG: &str = "9e107d9d372bb6826bd81d3542a419d6";

    fn version(inode: u64, changed: i64) -> FileVersion {
        FileVersion::of_test(inode, changed)
    }

    fn kept(e_tag: &str) -> KeptETag {
        KeptETag::new(Some(e_tag)).unwrap()
    }

    #[test]
    fn etags_come_back_as_they_were_and_other_texts_are_not_kept() {
        for e_tag in [
            ETAG,
            "00000000000000000000000000000000-1",
            "ffffffffffffffffffffffffffffffff-10000",
        ] {
            assert_eq!(kept(e_tag).text().as_deref(), Some(e_tag));
        }
        assert_eq!(KeptETag::new(None).unwrap().text(), None);
        let upper = ETAG.to_uppercase();
        let others = [
            "",
            "-1",
            &upper,
            &ETAG[1..],
            "9e107d9d372bb6826bd81d3542a419d6-01",
        ];
        let signed = format!("{ETAG}-+1");
        for other in others
            .into_iter()
            .chain([&*signed, "9e107d9d372bb6826bd81d3542a419d6-65536"])
        {
            assert_eq!(KeptETag::new(Some(other)), None, "{other}");
        }
    }

    #[test]
    fn entries_beyond_the_limit_replace_others() {
        let limit = 2 * SHARDS * WAYS;
        let table = KnownETags::new(limit);
        let written = 20 * limit as u64;
        for inode in 0..written {
            table.insert(version(inode, 1), kept(ETAG));
            assert_eq!(table.find(&version(inode, 1)), Some(Some(ETAG.to_owned())));
        }
        assert_eq!(table.count(), limit);
        let found = (0..written).filter(|inode| table.find(&version(*inode, 1)).is_some());
        assert_eq!(found.count(), limit);
        assert_eq!(size_of::<Option<Entry>>() * MAX_KNOWN_ETAGS, 4 << 20);
    }

    #[test]
    fn another_version_of_a_file_is_not_found_and_takes_the_place_of_the_first() {
        let table = KnownETags::new(SHARDS * WAYS);
        table.insert(version(1, 1), kept(ETAG));
        assert_eq!(table.find(&version(1, 2)), None);
        table.insert(version(1, 2), KeptETag::None);
        assert_eq!(table.find(&version(1, 1)), None);
        assert_eq!(table.find(&version(1, 2)), Some(None));
        assert_eq!(table.count(), 1);
    }
}
