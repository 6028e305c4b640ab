//! Damaged files of an engine and of its endpoints.

use super::Engine;
use crate::damage::DamagedFile;

impl Engine {
    /// Notes a damaged file, and logs it. The first 100 are kept.
    pub fn note_damage(&self, damaged: DamagedFile) {
        self.shared().damaged.note(damaged);
    }

    /// Forgets a damaged file that was mended or removed.
    pub fn note_mended(&self, file: &str) {
        self.shared().damaged.forget(file);
    }

    /// The damaged files, by their paths.
    #[must_use]
    pub fn damaged_files(&self) -> Vec<DamagedFile> {
        self.shared().damaged.all()
    }
}
