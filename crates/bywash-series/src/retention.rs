//! Retention: drops files by age and total size.

use crate::manifest::DataFiles;
use crate::manifest::FileEntry;
use crate::{Retention, SeriesError};

impl DataFiles {
    /// Drops the files that `retention` does not keep at `now` (nanoseconds since the Unix epoch): first from the
    /// manifest, then from the store.
    ///
    /// A partition, or compacted days, are dropped with all their files: dropping only a late file would bring back
    /// the rows it replaced. A group is dropped when its last row exceeds the age. While all files exceed the bytes,
    /// the group with the oldest last row is dropped. So a row from the future keeps its own partition and expires no
    /// other.
    pub(crate) async fn apply_retention(
        &self,
        retention: Retention,
        now: i64,
    ) -> Result<(), SeriesError> {
        let edited = self.edit(|version| {
            let mut new = version.manifest().clone();
            new.files = retained(&new.files, retention, now);
            (new.files.len() < version.files().len()).then_some(new)
        });
        edited.await?;
        self.delete_obsolete().await;
        Ok(())
    }
}

fn retained(files: &[FileEntry], retention: Retention, now: i64) -> Vec<FileEntry> {
    let oldest = retention.age.map(|age| {
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        now.saturating_sub(age)
    });
    let last = |group: &[FileEntry]| group.iter().map(|file| file.range.1).max();
    let bytes = |group: &[FileEntry]| group.iter().map(|file| file.bytes).sum::<u64>();
    let mut groups = groups(files);
    groups.retain(|group| oldest.is_none_or(|oldest| last(group) >= Some(oldest)));
    groups.sort_by_key(|group| std::cmp::Reverse(last(group)));
    let mut remaining = retention.bytes.unwrap_or(u64::MAX);
    let fits = |group: &Vec<FileEntry>| {
        let left = remaining.checked_sub(bytes(group));
        remaining = left.unwrap_or(0);
        left.is_some()
    };
    groups.into_iter().take_while(fits).flatten().collect()
}

/// Files that may share timestamps form a group.
fn groups(files: &[FileEntry]) -> Vec<Vec<FileEntry>> {
    let mut files = files.to_vec();
    files.sort_by_key(|file| file.partitions);
    let mut groups: Vec<(i64, Vec<FileEntry>)> = Vec::new();
    for file in files {
        match groups.last_mut() {
            Some((last, group)) if file.partitions.0 <= *last => {
                *last = file.partitions.1.max(*last);
                group.push(file);
            }
            _ => groups.push((file.partitions.1, vec![file])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}
