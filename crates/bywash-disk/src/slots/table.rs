//! Taken and free slots, and their bytes on the disk. Without I/O.
//!
//! A slot is taken, free with its bytes still allocated on the disk, or a free hole. A file is
//! truncated while the table is not locked, and does not grow until that has ended. Slots cut off
//! are counted until they are gone, so the count is never too low.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::geometry::SlotClass;
use super::storage::SlotFile;
use crate::format::PAGE;

/// Bytes of the first file of a size. Each further one holds twice as many slots, so that there are few.
const FIRST_FILE_BYTES: u64 = 64 << 20;
/// Least slots of the first file.
const FIRST_FILE_SLOTS: u64 = 16;
/// Doublings, at most.
const DOUBLINGS: usize = 12;
/// Bytes that the file system may take for its own records of a file.
const FILE_OVERHEAD: u64 = PAGE as u64;

/// Place of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) class: SlotClass,
    pub(super) file: u32,
    pub(super) slot: u32,
}

impl Place {
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.slot) * self.class.bytes()
    }
}

#[derive(Debug)]
struct FileSlots {
    file: Arc<dyn SlotFile>,
    /// Slots within the file's length, and how many it may have.
    len: u32,
    max: u32,
    /// Free slots with bytes on the disk.
    free: BTreeSet<u32>,
    /// Free slots without.
    holes: BTreeSet<u32>,
    /// The end is being cut off.
    shrinking: bool,
}

/// Result of [`SlotTable::reserve`].
#[derive(Debug)]
pub(super) enum Reserved {
    /// A slot. `grows`: its bytes are counted, and are to be allocated.
    Slot {
        place: Place,
        file: Arc<dyn SlotFile>,
        grows: bool,
    },
    /// The first slot of a file that is to be created; its bytes are counted.
    NewFile(Place),
    /// There is room once this free slot is discarded; until then no other thread takes it.
    Discard(Place, Arc<dyn SlotFile>),
    /// There will be room once other threads have cut off or discarded slots.
    Wait,
    /// The limit is reached.
    Full,
}

/// The end of a file that is to be cut off.
#[derive(Debug)]
pub(super) struct Shrink {
    class: SlotClass,
    pub(super) number: u32,
    pub(super) file: Arc<dyn SlotFile>,
    /// Slots before and after. After 0 the file is to be removed, and is not in the table any more.
    old_len: u32,
    new_len: u32,
    /// Free slots cut off that had bytes on the disk.
    cut: Vec<u32>,
}

impl Shrink {
    pub(super) fn removes(&self) -> bool {
        self.new_len == 0
    }

    /// Length of the file afterwards.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.new_len) * self.class.bytes()
    }
}

#[derive(Debug)]
pub(super) struct SlotTable {
    files: BTreeMap<(SlotClass, u32), FileSlots>,
    next_file: u32,
    limit: u64,
    /// Bytes that the files take on the disk, or are about to.
    allocated: u64,
    /// Bytes of slots taken.
    used: u64,
    slots: u64,
    /// Cuts and discards in progress.
    releasing: u32,
}

impl SlotTable {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            next_file: 0,
            limit,
            allocated: 0,
            used: 0,
            slots: 0,
            releasing: 0,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes and number of the slots taken.
    pub(super) fn used(&self) -> (u64, u64) {
        (self.used, self.slots)
    }

    /// Numbers of all files.
    pub(super) fn files(&self) -> Vec<u32> {
        self.files.keys().map(|(_, number)| *number).collect()
    }

    fn of_class(&mut self, class: SlotClass) -> impl Iterator<Item = (&u32, &mut FileSlots)> {
        let files = self.files.range_mut((class, 0)..=(class, u32::MAX));
        files.map(|((_, number), entry)| (number, entry))
    }

    /// Takes the lowest free slot of a size, or returns the step that is needed first.
    pub(super) fn reserve(&mut self, class: SlotClass) -> Reserved {
        let bytes = class.bytes();
        let fits = self.limit.saturating_sub(self.allocated);
        let mut found = None;
        for (number, entry) in self.of_class(class) {
            if let Some(slot) = entry.free.pop_first() {
                found = Some((*number, slot, Arc::clone(&entry.file), false));
                break;
            }
        }
        if found.is_none() && fits >= bytes {
            for (number, entry) in self.of_class(class) {
                let slot = match entry.holes.pop_first() {
                    Some(slot) => slot,
                    None if entry.len < entry.max && !entry.shrinking => {
                        entry.len += 1;
                        entry.len - 1
                    }
                    None => continue,
                };
                found = Some((*number, slot, Arc::clone(&entry.file), true));
                break;
            }
        }
        if let Some((number, slot, file, grows)) = found {
            self.take(bytes, if grows { bytes } else { 0 });
            let place = Place {
                class,
                file: number,
                slot,
            };
            return Reserved::Slot { place, file, grows };
        }
        if fits >= bytes + FILE_OVERHEAD {
            self.take(bytes, bytes + FILE_OVERHEAD);
            self.next_file += 1;
            return Reserved::NewFile(Place {
                class,
                file: self.next_file - 1,
                slot: 0,
            });
        }
        match self.discardable() {
            Some((place, file)) => Reserved::Discard(place, file),
            None if self.releasing > 0 => Reserved::Wait,
            None => Reserved::Full,
        }
    }

    fn take(&mut self, used: u64, allocated: u64) {
        self.used += used;
        self.slots += 1;
        self.allocated += allocated;
    }

    /// Takes out a free slot with bytes on the disk. [`Self::discarded`] must follow.
    pub(super) fn discardable(&mut self) -> Option<(Place, Arc<dyn SlotFile>)> {
        let mut files = self.files.iter_mut();
        let found = files.find_map(|((class, number), entry)| {
            let slot = entry.free.pop_last()?;
            let place = Place {
                class: *class,
                file: *number,
                slot,
            };
            Some((place, Arc::clone(&entry.file)))
        });
        self.releasing += u32::from(found.is_some());
        found
    }

    /// Puts back a slot that was taken out: a hole if it was discarded, else with its bytes.
    /// Returns the end of its file that can be cut off now.
    pub(super) fn discarded(&mut self, place: Place, is_hole: bool) -> Option<Shrink> {
        self.releasing -= 1;
        if is_hole {
            self.allocated -= place.class.bytes();
        }
        let entry = self.entry(place);
        let set = if is_hole {
            &mut entry.holes
        } else {
            &mut entry.free
        };
        set.insert(place.slot);
        self.shrink(place.class, place.file)
    }

    /// Enters a file that was created for its first slot, which is taken.
    pub(super) fn created(&mut self, place: Place, file: Arc<dyn SlotFile>) {
        let first = (FIRST_FILE_BYTES / place.class.bytes()).max(FIRST_FILE_SLOTS);
        let doublings = self.of_class(place.class).count().min(DOUBLINGS);
        let entry = FileSlots {
            file,
            len: 1,
            max: (first << doublings) as u32,
            free: BTreeSet::new(),
            holes: BTreeSet::new(),
            shrinking: false,
        };
        self.files.insert((place.class, place.file), entry);
    }

    /// Gives up a slot whose file could not be created.
    pub(super) fn not_created(&mut self, place: Place) {
        let bytes = place.class.bytes();
        self.used -= bytes;
        self.slots -= 1;
        self.allocated -= bytes + FILE_OVERHEAD;
    }

    /// Frees a slot. `allocated`: it has bytes on the disk. Returns the end of its file if that can be cut off.
    pub(super) fn free(&mut self, place: Place, allocated: bool) -> Option<Shrink> {
        let bytes = place.class.bytes();
        self.used -= bytes;
        self.slots -= 1;
        if !allocated {
            self.allocated -= bytes;
        }
        let entry = self.entry(place);
        let set = if allocated {
            &mut entry.free
        } else {
            &mut entry.holes
        };
        set.insert(place.slot);
        self.shrink(place.class, place.file)
    }

    /// Returns the end of a file if it is free and no other thread cuts it off.
    fn shrink(&mut self, class: SlotClass, number: u32) -> Option<Shrink> {
        let entry = self.files.get_mut(&(class, number))?;
        if entry.shrinking {
            return None;
        }
        let old_len = entry.len;
        let mut cut = Vec::new();
        while let Some(last) = entry.len.checked_sub(1) {
            if entry.free.remove(&last) {
                cut.push(last);
            } else if !entry.holes.remove(&last) {
                break;
            }
            entry.len = last;
        }
        if entry.len == old_len {
            return None;
        }
        entry.shrinking = true;
        let shrink = Shrink {
            class,
            number,
            file: Arc::clone(&entry.file),
            old_len,
            new_len: entry.len,
            cut,
        };
        self.releasing += 1;
        if shrink.removes() {
            self.files.remove(&(class, number));
        }
        Some(shrink)
    }

    /// Subtracts slots that were cut off from the allocated bytes, or puts them back if that
    /// failed. Returns the end that can be cut off next.
    pub(super) fn shrunk(&mut self, shrink: Shrink, done: bool) -> Option<Shrink> {
        self.releasing -= 1;
        let bytes = shrink.cut.len() as u64 * shrink.class.bytes();
        if done {
            self.allocated -= bytes;
        }
        if shrink.removes() {
            if done {
                self.allocated -= FILE_OVERHEAD;
            }
            // A file that could not be removed stays counted, and is removed at the next start.
            return None;
        }
        let entry = self.files.get_mut(&(shrink.class, shrink.number))?;
        entry.shrinking = false;
        if !done {
            let cut = shrink.cut.iter().copied().collect::<BTreeSet<_>>();
            let holes = (shrink.new_len..shrink.old_len).filter(|slot| !cut.contains(slot));
            entry.holes.extend(holes);
            entry.free.extend(shrink.cut);
            entry.len = shrink.old_len;
            return None;
        }
        self.shrink(shrink.class, shrink.number)
    }

    /// Returns the file of a slot that is taken.
    pub(super) fn file(&mut self, place: Place) -> Arc<dyn SlotFile> {
        Arc::clone(&self.entry(place).file)
    }

    fn entry(&mut self, place: Place) -> &mut FileSlots {
        let entry = self.files.get_mut(&(place.class, place.file));
        entry.expect("a file with a taken slot is in the table")
    }
}
