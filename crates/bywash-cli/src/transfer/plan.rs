//! Plan of a verb: all copies or deletions, complete before the first change.
//!
//! A plan of any length takes little memory: from 1 MiB on, its entries are in a temporary file without a name.

use std::io::{self, BufRead, BufReader, BufWriter, Lines, Seek, Write};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::SpooledTempFile;

use super::{Pair, below};
use crate::failure::Failure;
use crate::limits::MAX_PLAN_BYTES;
use crate::total::Total;
use crate::transfer::confinement::Tree;
use crate::transfer::copy::Listed;
use crate::transfer::tree::Item;
use crate::transfer::version::{ObjectVersion, Version};
use crate::url::Url;

/// Entries in the order of their addition, one JSON document a line.
#[derive(Debug)]
pub(crate) struct Plan<T> {
    file: BufWriter<SpooledTempFile>,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Plan<T> {
    pub(crate) fn new() -> Self {
        Self {
            file: BufWriter::new(SpooledTempFile::new(MAX_PLAN_BYTES)),
            len: 0,
            of: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, entry: &T) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut self.file, entry).map_err(io::Error::from);
        let written = written.and_then(|()| self.file.write_all(b"\n"));
        written.map_err(|error| failed(&error))?;
        self.len += 1;
        Ok(())
    }

    /// Returns the entries, from the first one on.
    pub(crate) fn entries(self) -> Result<Entries<T>, Failure> {
        let file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error);
        let rewound = file.and_then(|mut file| file.rewind().map(|()| file));
        let file = rewound.map_err(|error| failed(&error))?;
        Ok(Entries {
            lines: Some(BufReader::new(file).lines()),
            of: PhantomData,
        })
    }
}

/// Entries of a plan; the first error ends them.
#[derive(Debug)]
pub(crate) struct Entries<T> {
    lines: Option<Lines<BufReader<SpooledTempFile>>>,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Iterator for Entries<T> {
    type Item = Result<T, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.as_mut()?.next()?;
        let entry = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        if entry.is_err() {
            self.lines = None;
        }
        Some(entry.map_err(|error| failed(&error)))
    }
}

fn failed(error: &io::Error) -> Failure {
    let folder = std::env::temp_dir();
    Failure::io(
        format!("cannot keep the plan in {}", folder.display()),
        error,
    )
}

/// A file or object of a planned copy, named below its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Index of the source.
    source: usize,
    pub(crate) name: String,
    bytes: u64,
    /// Version of an object. The version of a file is determined when it is read.
    version: Option<ObjectVersion>,
}

impl Planned {
    pub(crate) fn new(source: usize, item: Item) -> Self {
        Self {
            source,
            name: item.name,
            bytes: item.bytes,
            version: match item.version {
                Version::Object(version) => Some(version),
                Version::File(_) => None,
            },
        }
    }
}

/// Roots of the copies of one command.
#[derive(Debug)]
pub(crate) struct Roots {
    pub(crate) sources: Vec<Url>,
    pub(crate) destination: Url,
    /// The destination, if it is a folder of files.
    pub(crate) tree: Option<Arc<Tree>>,
}

impl Roots {
    pub(crate) fn pair(&self, planned: Planned) -> Result<Pair, Failure> {
        let Planned {
            source,
            name,
            bytes,
            version,
        } = planned;
        Ok(Pair {
            source: self.sources[source].join(&name),
            destination: below(&self.destination, &name)?,
            listed: Some(Listed { bytes, version }),
            tree: self.tree.clone(),
            signed: None,
        })
    }
}

/// Copies planned from listings.
#[derive(Debug)]
pub(crate) struct CopyPlan {
    entries: Plan<Planned>,
    bytes: Total,
}

impl CopyPlan {
    pub(crate) fn new() -> Self {
        Self {
            entries: Plan::new(),
            bytes: Total::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn push(&mut self, planned: &Planned) -> Result<(), Failure> {
        self.bytes.add(planned.bytes);
        self.entries.push(planned)
    }

    /// Returns the planned copies.
    pub(crate) fn copies(self, roots: Arc<Roots>) -> Result<Copies, Failure> {
        let count = self.len();
        let pairs = self.entries.entries()?;
        let pairs = pairs.map(move |planned| roots.pair(planned?));
        Ok(Copies {
            count,
            bytes: self.bytes,
            pairs: Box::new(pairs),
        })
    }
}

/// Planned copies, in order.
pub(crate) struct Copies {
    pub(crate) count: usize,
    /// Sum of the known lengths.
    pub(crate) bytes: Total,
    pub(crate) pairs: Box<dyn Iterator<Item = Result<Pair, Failure>> + Send>,
}

impl From<Vec<Pair>> for Copies {
    fn from(pairs: Vec<Pair>) -> Self {
        Self {
            count: pairs.len(),
            bytes: Total::default(),
            pairs: Box::new(pairs.into_iter().map(Ok)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn plan_beyond_its_memory_returns_all_entries_in_order() {
        let name = |index: usize| format!("{index:0>100}\n\"größe\"");
        let count = 3 * MAX_PLAN_BYTES / 100;
        let mut plan = Plan::new();
        for index in 0..count {
            plan.push(&name(index)).unwrap();
        }
        assert!(plan.file.get_ref().is_rolled(), "all of it is in memory");
        assert_eq!(plan.len(), count);
        let mut entries = plan.entries().unwrap();
        for index in 0..count {
            assert_eq!(entries.next().unwrap().unwrap(), name(index));
        }
        assert!(entries.next().is_none());
    }
}
