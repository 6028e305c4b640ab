//! Open uploads for the admin page, from what the endpoint has in memory: no file is read.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock, Weak};

use chrono::{DateTime, Utc};

use super::{OpenUpload, Uploads};

/// The open multipart uploads of an endpoint, empty until the endpoint serves. A cheap handle.
#[derive(Debug, Clone, Default)]
pub struct OpenUploads(Arc<OnceLock<Weak<Uploads>>>);

impl OpenUploads {
    /// Shows the uploads of an endpoint. Only the first call has an effect.
    pub(crate) fn show(&self, uploads: &Arc<Uploads>) {
        // A second endpoint with the same configuration is not shown.
        let _ = self.0.set(Arc::downgrade(uploads));
    }

    /// Returns the uploads that began last, at most `max`, the newest first, and the number of all.
    #[must_use]
    pub fn newest(&self, max: usize) -> (Vec<OpenUpload>, usize) {
        let uploads = self.0.get().and_then(Weak::upgrade);
        uploads.map_or_else(Default::default, |uploads| uploads.newest(max))
    }

    /// Returns the number of uploads that began before `time`.
    #[must_use]
    pub fn begun_before(&self, time: DateTime<Utc>) -> usize {
        let uploads = self.0.get().and_then(Weak::upgrade);
        uploads.map_or(0, |uploads| {
            let open = uploads.open.lock();
            open.values()
                .filter(|upload| upload.initiated < time)
                .count()
        })
    }
}

impl Uploads {
    fn newest(&self, max: usize) -> (Vec<OpenUpload>, usize) {
        let open = self.open.lock();
        let mut newest: Vec<_> = open.iter().collect();
        let total = newest.len();
        newest.sort_unstable_by_key(|(_, upload)| Reverse(upload.initiated));
        newest.truncate(max);
        let newest: Vec<_> = newest
            .into_iter()
            .map(|(name, upload)| (name.clone(), upload.initiated, Arc::clone(&upload.parts)))
            .collect();
        drop(open);
        let shown = newest
            .into_iter()
            .map(|(name, initiated, parts)| OpenUpload {
                id: name.id,
                bucket: name.bucket,
                key: name.key,
                initiated,
                parts: parts.len(),
                bytes: parts.values().map(|part| part.size).sum(),
            });
        (shown.collect(), total)
    }
}
