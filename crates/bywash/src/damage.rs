//! Files of the server that cannot be used, and the service without them.
//!
//! A damaged file stops only the service that depends on it. It is named in the log, and shown until it is mended.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;

use crate::limits::MAX_DAMAGED_FILES;

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedFile {
    /// Its path.
    pub file: String,
    /// The damage.
    pub reason: String,
    /// The service that is missing without it, and the next step.
    pub effect: String,
}

/// The damaged files of an engine and of its endpoints, by their paths.
#[derive(Debug, Default)]
pub(crate) struct DamagedFiles(Mutex<BTreeMap<String, DamagedFile>>);

impl DamagedFiles {
    pub(crate) fn note(&self, damaged: DamagedFile) {
        let DamagedFile {
            file,
            reason,
            effect,
        } = &damaged;
        tracing::error!(file, reason, effect, "a file is damaged");
        let mut files = self.0.lock();
        if files.len() < MAX_DAMAGED_FILES || files.contains_key(file) {
            files.insert(file.clone(), damaged);
        }
    }

    pub(crate) fn forget(&self, file: &str) {
        self.0.lock().remove(file);
    }

    pub(crate) fn all(&self) -> Vec<DamagedFile> {
        self.0.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(number: usize) -> DamagedFile {
        DamagedFile {
            file: format!("{number:03}"),
            reason: "cut".to_owned(),
            effect: "none".to_owned(),
        }
    }

    #[test]
    fn damaged_files_beyond_the_limit_are_only_logged() {
        let files = DamagedFiles::default();
        (0..=MAX_DAMAGED_FILES).for_each(|number| files.note(damaged(number)));
        files.note(damaged(0));
        assert_eq!(files.all().len(), MAX_DAMAGED_FILES);
        files.forget("000");
        files.note(damaged(MAX_DAMAGED_FILES));
        let last = files.all().pop();
        assert_eq!(last, Some(damaged(MAX_DAMAGED_FILES)));
    }
}
