//! What goes when there is too much, or when it is too old.

use super::SealedFiles;
use super::manifest::FileEntry;
use crate::{Retention, SeriesError};

impl SealedFiles {
    /// Drops the files that `retention` lets go at `now` (nanoseconds since the Unix epoch), entries and objects alike.
    ///
    /// What goes is a partition, or the days whose partitions were merged, with all its files: were a late file to go alone, the
    /// rows it replaced would be back. It goes when its last row is older than the age; and while all files are larger than
    /// the bytes, the one whose last row is the oldest goes. A row from the future thus holds its own partition and lets no
    /// other one go.
    pub(crate) async fn retain(&self, retention: Retention, now: i64) -> Result<(), SeriesError> {
        let edited = self.edit(|version| {
            let mut new = version.manifest().clone();
            new.files = kept(&new.files, retention, now);
            (new.files.len() < version.files().len()).then_some(new)
        });
        edited.await?;
        self.delete_doomed().await;
        Ok(())
    }
}

fn kept(files: &[FileEntry], retention: Retention, now: i64) -> Vec<FileEntry> {
    let oldest = retention.age.map(|age| {
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        now.saturating_sub(age)
    });
    let last = |group: &[FileEntry]| group.iter().map(|file| file.range.1).max();
    let bytes = |group: &[FileEntry]| group.iter().map(|file| file.bytes).sum::<u64>();
    let mut groups = groups(files);
    groups.retain(|group| oldest.is_none_or(|oldest| last(group) >= Some(oldest)));
    groups.sort_by_key(|group| std::cmp::Reverse(last(group)));
    let mut room = retention.bytes.unwrap_or(u64::MAX);
    let fits = |group: &Vec<FileEntry>| {
        let left = room.checked_sub(bytes(group));
        room = left.unwrap_or(0);
        left.is_some()
    };
    groups.into_iter().take_while(fits).flatten().collect()
}

/// Files that may have a timestamp twice are in one group.
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
