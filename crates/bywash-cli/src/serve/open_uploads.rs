//! The open uploads, for the page.

use std::cmp::Reverse;
use std::path::Path;
use std::time::{Duration, Instant};

use bywash::Engine;
use bywash::upload::journal::ListedUpload;
use bywash_console::{ClientUpload, ListedUploads, OpenUpload, OpenUploads};
use chrono::{TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::endpoint;

/// Max age of the shown uploads: all open pages together read the journal, and the records of a
/// cluster, once in this time.
const READ_EVERY: Duration = Duration::from_secs(5);

/// Age at which an upload of an S3 client counts as stuck. Parts of 5 GiB over a slow line take hours.
const ABANDONED: TimeDelta = TimeDelta::days(1);
/// Note of a copy without a process.
const LEFT: &str = "no process; see bywash uploads";

/// Lists the uploads of S3 clients, which the server can abort, and the uploads of `bywash cp`,
/// which other processes record in the data folder `dir`.
pub(super) fn open_uploads(
    dir: &Path,
    engine: Engine,
    clients: bywash_gateway::OpenUploads,
) -> OpenUploads {
    let dir = dir.to_owned();
    let copies = Cached::new(move || read_copies(&dir));
    let shared = {
        let (clients, engine) = (clients.clone(), engine.clone());
        let runtime = Handle::current();
        Cached::new(move || runtime.block_on(read_shared(&clients, &engine)))
    };
    let aborted = clients.clone();
    let list = move |max| {
        let (newest, total) = clients.newest(max);
        let copies = copies.at(Instant::now());
        let (shared, partial) = shared.at(Instant::now());
        let total = total + copies.len() + shared.len();
        let left = copies.iter().filter(|copy| copy.note == LEFT).count();
        let abandoned = Utc::now() - ABANDONED;
        let is_old = |upload: &&OpenUpload| upload.began.is_some_and(|began| began < abandoned);
        let old = shared.iter().filter(is_old).count();
        let stuck = left + old + clients.begun_before(abandoned);
        let newest = newest.into_iter().map(of_client);
        let mut newest: Vec<_> = newest.chain(copies).chain(shared).collect();
        newest.sort_by_key(|upload| Reverse(upload.began));
        newest.truncate(max);
        ListedUploads {
            newest,
            total,
            stuck,
            partial,
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
        bytes: Some(open.bytes),
        length: None,
        session: Some(open.id.clone()),
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

/// Lists the uploads that the nodes of a cluster share, and returns whether some are missing. None outside a cluster.
async fn read_shared(
    clients: &bywash_gateway::OpenUploads,
    engine: &Engine,
) -> (Vec<OpenUpload>, bool) {
    match clients.of_cluster(engine).await {
        None => (Vec::new(), false),
        Some(Ok((uploads, all))) => (uploads.into_iter().map(of_cluster).collect(), !all),
        Some(Err(error)) => {
            tracing::warn!(%error, "the open uploads of the cluster cannot be listed");
            (Vec::new(), true)
        }
    }
}

fn of_cluster(open: bywash_gateway::ClusterUpload) -> OpenUpload {
    OpenUpload {
        target: format!("{}/{}", open.bucket, open.key),
        began: Some(open.initiated),
        bytes: None,
        length: None,
        note: "S3 client, at any node".to_owned(),
        session: Some(open.origin_id),
        client: Some(ClientUpload {
            bucket: open.bucket,
            key: open.key,
            upload: open.id,
        }),
    }
}

/// Result of the last read.
struct Cached<R, T> {
    read: R,
    last: Mutex<Option<(Instant, T)>>,
}

impl<R: Fn() -> T, T: Clone> Cached<R, T> {
    fn new(read: R) -> Self {
        Self {
            read,
            last: Mutex::new(None),
        }
    }

    /// Returns it, after reading again if the last read is [`READ_EVERY`] ago. Concurrent calls
    /// wait for that read. Blocks.
    fn at(&self, now: Instant) -> T {
        let mut last = self.last.lock();
        match &*last {
            Some((read, known)) if now.saturating_duration_since(*read) < READ_EVERY => {
                known.clone()
            }
            _ => {
                let known = (self.read)();
                *last = Some((now, known.clone()));
                known
            }
        }
    }
}

/// The copies with readable files.
fn read_copies(dir: &Path) -> Vec<OpenUpload> {
    let copies = endpoint::journal(dir).list().unwrap_or_else(|error| {
        tracing::warn!(%error, "the open copies cannot be listed");
        Vec::new()
    });
    copies.into_iter().filter_map(copy).collect()
}

/// A copy, if its file is readable.
fn copy(listed: ListedUpload) -> Option<OpenUpload> {
    let content = listed.content.ok()?;
    Some(OpenUpload {
        target: content.header.url,
        began: Some(content.header.started),
        bytes: Some(content.progress.offset),
        session: None,
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
        let copies = Cached::new(|| {
            reads.fetch_add(1, Relaxed);
            Vec::<OpenUpload>::new()
        });
        let start = Instant::now();
        for tab in 0..10 {
            copies.at(start + READ_EVERY * tab / 11);
        }
        assert_eq!(reads.load(Relaxed), 1);
        copies.at(start + READ_EVERY);
        assert_eq!(reads.load(Relaxed), 2);
    }
}
