//! Contents of the tier, by version.

use super::Tier;
use crate::VersionRecord;
use crate::format::VersionKey;
use crate::recovery;

impl Tier {
    /// Calls `visit` with each version that has blocks here, and their number. A version with
    /// blocks in several segments may be visited once for each. Blocks the thread: reads the
    /// footers of all segments, one after the other, and holds no lock during that. Leaves out
    /// segments that cannot be read; while the tier is off, there are none.
    ///
    /// Returns whether all segments were read.
    pub fn for_each_version(&self, mut visit: impl FnMut(&VersionRecord, u32)) -> bool {
        let mut complete = true;
        let numbers = self.segments.lock().oldest_first(None);
        for number in numbers {
            let segment = self.segments.lock().get(number);
            let Some(segment) = segment else {
                continue;
            };
            let readable = self.health.is_readable();
            let contents = readable.then(|| recovery::contents(&segment, self.pages));
            let Some(Ok(summaries)) = contents else {
                complete = false;
                continue;
            };
            // It can be used again while its versions are visited.
            drop(segment);
            for record in summaries.iter().flat_map(|summary| &summary.records) {
                let blocks = self.versions.lock().blocks(VersionKey::of(record));
                if blocks > 0 {
                    visit(record, blocks);
                }
            }
        }
        complete
    }
}
