//! Files that a read leaves out because they are damaged or missing.

use crate::SeriesError;
use crate::limits::MAX_LEFT_OUT;
use crate::manifest::DataFile;

/// Damaged and missing files whose rows a result lacks.
#[derive(Debug, Default)]
pub struct LeftOut(Vec<(String, SeriesError)>);

impl LeftOut {
    /// Whether the result lacks no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Object of each file in the series store, and the error of its read.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SeriesError)> {
        self.0.iter().map(|(object, error)| (&**object, error))
    }

    pub(super) fn has(&self, file: &DataFile) -> bool {
        let path = file.entry().path();
        self.0.iter().any(|(object, _)| object == path.as_ref())
    }

    /// Adds the file that caused an error of a read, which is to be repeated without it.
    ///
    /// Fails with that error if it is of no file, or if too many are left out.
    pub(super) fn add(&mut self, error: SeriesError) -> Result<(), SeriesError> {
        let object = match &error {
            SeriesError::DamagedFile { object, .. } | SeriesError::MissingFile { object } => {
                object.clone()
            }
            _ => return Err(error),
        };
        let known = self.0.iter().any(|(known, _)| *known == object);
        if known || self.0.len() == MAX_LEFT_OUT {
            return Err(error);
        }
        self.0.push((object, error));
        Ok(())
    }
}
