//! Taking slots and giving them back: the decisions of the table, executed on the disk. The table
//! is not locked during I/O.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::geometry::SlotClass;
use super::storage::SlotFile;
use super::table::{Place, Reserved, Shrink};
use super::{SlotError, SlotFiles};

impl SlotFiles {
    /// Takes a slot, with its bytes allocated on the disk.
    pub(super) fn take(&self, class: SlotClass) -> Result<(Place, Arc<dyn SlotFile>), SlotError> {
        loop {
            let reserved = {
                let mut state = self.state.lock();
                loop {
                    match state.table.reserve(class) {
                        Reserved::Wait => self.released.wait(&mut state),
                        reserved => break reserved,
                    }
                }
            };
            let (place, file) = match reserved {
                Reserved::Slot {
                    place,
                    file,
                    grows: false,
                } => return Ok((place, file)),
                Reserved::Slot { place, file, .. } => (place, file),
                Reserved::NewFile(place) => (place, self.create(place)?),
                Reserved::Discard(place, file) => {
                    if self.discard(place, &*file) {
                        continue;
                    }
                    return Err(self.full(class));
                }
                Reserved::Wait | Reserved::Full => return Err(self.full(class)),
            };
            let Err(error) = file.allocate(place.offset(), class.bytes()) else {
                return Ok((place, file));
            };
            self.give_back(place, false);
            if !is_full(&error) || !self.discard_one() {
                return Err(self.not_written(class, place, error));
            }
        }
    }

    fn create(&self, place: Place) -> Result<Arc<dyn SlotFile>, SlotError> {
        match self.storage.create(place.file) {
            Ok(file) => {
                let mut state = self.state.lock();
                state.table.created(place, Arc::clone(&file));
                Ok(file)
            }
            Err(error) => {
                self.state.lock().table.not_created(place);
                Err(self.not_written(place.class, place, error))
            }
        }
    }

    /// Gives a free slot that was taken out back to the file system. Returns whether that worked.
    fn discard(&self, place: Place, file: &dyn SlotFile) -> bool {
        let done = file.discard(place.offset(), place.class.bytes()).is_ok();
        let shrink = self.state.lock().table.discarded(place, done);
        self.released.notify_all();
        self.cut(shrink);
        done
    }

    /// Gives one free slot, if there is one, back to the file system.
    fn discard_one(&self) -> bool {
        let found = self.state.lock().table.discardable();
        found.is_some_and(|(place, file)| self.discard(place, &*file))
    }

    /// Frees a slot. `allocated`: it has bytes on the disk.
    pub(super) fn give_back(&self, place: Place, allocated: bool) {
        let shrink = self.state.lock().table.free(place, allocated);
        self.cut(shrink);
    }

    /// Cuts off the free ends of a file.
    fn cut(&self, mut next: Option<Shrink>) {
        while let Some(shrink) = next {
            let done = if shrink.removes() {
                self.storage.remove(shrink.number)
            } else {
                shrink.file.truncate(shrink.bytes())
            };
            next = self.state.lock().table.shrunk(shrink, done.is_ok());
            self.released.notify_all();
        }
    }

    fn full(&self, class: SlotClass) -> SlotError {
        let state = self.state.lock();
        SlotError::Full {
            folder: self.folder.clone(),
            needed: class.bytes(),
            used: state.table.allocated(),
            limit: state.table.limit(),
        }
    }

    /// Error of a slot that could not be created, allocated or written.
    pub(super) fn not_written(
        &self,
        class: SlotClass,
        place: Place,
        error: io::Error,
    ) -> SlotError {
        if !is_full(&error) {
            return self.failed("write", place.file, error);
        }
        let state = self.state.lock();
        SlotError::DiskFull {
            folder: self.folder.clone(),
            needed: class.bytes(),
            used: state.table.allocated(),
            limit: state.table.limit(),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    [Errno::NOSPC, Errno::DQUOT]
        .iter()
        .any(|full| error.raw_os_error() == Some(full.raw_os_error()))
}
