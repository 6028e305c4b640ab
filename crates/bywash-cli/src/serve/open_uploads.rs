//! The open uploads, for the page.

use std::cmp::Reverse;
use std::path::Path;
use std::time::{Duration, Instant};

use bywash::Engine;
use bywash::upload::journal::ListedUpload;
use bywash_console::{ClientUpload, ListedUploads, OpenUpload, OpenUploads};
use chrono::{TimeDelta, Utc};
use parking_lot::Mutex;

use crate::endpoint;

/// Max age of the copies shown: all open pages together read the journal once in this time.
const COPIES_EVERY: Duration = Duration::from_secs(5);

/// Age at which an upload of an S3 client counts as stuck. Parts of 5 GiB over a slow line take hours.
const ABANDONED: TimeDelta = TimeDelta::days(1);
/// Note of a copy without a process.
const LEFT: &str = "no process; see bywash uploads";

/// Lists the uploads of S3 clients, which the server can abort, and those of `bywash cp`, which other processes record in the data
/// folder `dir`.
pub(super) fn open_uploads(
    dir: &Path,
    engine: Engine,
    clients: bywash_gateway::OpenUploads,
) -> OpenUploads {
    let dir = dir.to_owned();
    let copies = JournalCache::new(move || read_copies(&dir));
    let aborted = clients.clone();
    let list = move |max| {
        let (newest, total) = clients.newest(max);
        let copies = copies.at(Instant::now());
        let total = total + copies.len();
        let left = copies.iter().filter(|copy| copy.note == LEFT).count();
        let stuck = left + clients.begun_before(Utc::now() - ABANDONED);
        let mut newest: Vec<_> = newest.into_iter().map(of_client).chain(copies).collect();
        newest.sort_by_key(|upload| Reverse(upload.began));
        newest.truncate(max);
        ListedUploads {
            newest,
            total,
            stuck,
        }
    };
    OpenUploads::new(list, move |upload| {
        let (clients, engine) = (aborted.clone(), engine.clone());
        Box::pin(async move {
            let ClientUpload {
                bucket,
                key,
                upload,
            } = upload;
            let aborted = clients.abort(&engine, &bucket, &key, &upload).await;
            aborted.map_err(|error| error.to_string())
        })
    })
}

fn of_client(open: bywash_gateway::OpenUpload) -> OpenUpload {
    OpenUpload {
        target: format!("{}/{}", open.bucket, open.key),
        began: Some(open.initiated),
        bytes: open.bytes,
        length: None,
        note: match open.parts {
            1 => "S3 client, 1 part".to_owned(),
            parts => format!("S3 client, {parts} parts"),
        },
        client: Some(ClientUpload {
            bucket: open.bucket,
            key: open.key,
            upload: open.id,
        }),
    }
}

/// Copies of the journal, as read last.
struct JournalCache<R> {
    read: R,
    last: Mutex<Option<(Instant, Vec<OpenUpload>)>>,
}

impl<R: Fn() -> Vec<OpenUpload>> JournalCache<R> {
    fn new(read: R) -> Self {
        Self {
            read,
            last: Mutex::new(None),
        }
    }

    /// Returns the copies, after reading the journal if the last read is [`COPIES_EVERY`] ago. Concurrent calls wait for that read. Blocks.
    fn at(&self, now: Instant) -> Vec<OpenUpload> {
        let mut last = self.last.lock();
        match &*last {
            Some((read, copies)) if now.saturating_duration_since(*read) < COPIES_EVERY => {
                copies.clone()
            }
            _ => {
                let copies = (self.read)();
                *last = Some((now, copies.clone()));
                copies
            }
        }
    }
}

/// Returns the copies with readable files.
fn read_copies(dir: &Path) -> Vec<OpenUpload> {
    let copies = endpoint::journal(dir).list().unwrap_or_else(|error| {
        tracing::warn!(%error, "the open copies cannot be listed");
        Vec::new()
    });
    copies.into_iter().filter_map(copy).collect()
}

/// Returns a copy, if its file is readable.
fn copy(listed: ListedUpload) -> Option<OpenUpload> {
    let content = listed.content.ok()?;
    Some(OpenUpload {
        target: content.header.url,
        began: Some(content.header.started),
        bytes: content.progress.offset,
        length: content.header.options.length,
        note: if listed.alive {
            format!("bywash cp, process {}", content.process)
        } else {
            LEFT.to_owned()
        },
        client: None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn pages_read_the_journal_once_in_five_seconds_together() {
        let reads = AtomicUsize::new(0);
        let copies = JournalCache::new(|| {
            reads.fetch_add(1, Relaxed);
            Vec::new()
        });
        let start = Instant::now();
        for tab in 0..10 {
            copies.at(start + COPIES_EVERY * tab / 11);
        }
        assert_eq!(reads.load(Relaxed), 1);
        copies.at(start + COPIES_EVERY);
        assert_eq!(reads.load(Relaxed), 2);
    }
}
