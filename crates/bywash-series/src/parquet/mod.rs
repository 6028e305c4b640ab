//! Data files: Parquet with an index of series in its tail.

mod cache;
mod charge;
mod index;
mod layout;
mod names;
pub(crate) mod page;
mod read;
mod write;

pub(crate) use cache::LayoutCache;
pub(crate) use charge::Charge;
#[cfg(any(test, fuzzing))]
pub(crate) use index::SeriesIndex;
pub(crate) use layout::Layout;
pub(crate) use read::FileReader;
pub(crate) use write::{FileWriter, ROW_GROUP_ROWS, WrittenFile};
