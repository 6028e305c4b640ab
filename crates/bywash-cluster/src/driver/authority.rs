//! The engine's questions: which version is current, and the conditions that a write waits for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bywash::cluster::{ClusterStatus, CurrentVersion, VersionAuthority, VersionSource, WriteTurn};
use object_store::Result;
use object_store::path::Path;

use super::ClusterNode;
use super::clock::boottime;
use super::core::Core;
use super::status::shown;
use super::turn::Turn;
use crate::message::{Event, Source};
use crate::names::Key;

impl Core {
    /// Version that may be served now without a question.
    ///
    /// Without an allocation, and by a read lease without the lock of the machine: the clock is read during the read, and a write
    /// that ends a lease is acknowledged after the table shows it.
    pub(super) fn current(
        &self,
        bucket: &str,
        path: &str,
        window: Duration,
    ) -> Option<CurrentVersion> {
        let key = (bucket, path);
        if let Some(version) = self.leases.get(&key, boottime()) {
            self.counters.served(Source::Lease);
            return Some(version);
        }
        // Read under the lock, as for events.
        let known = self.look(|node| node.known(boottime(), &key, window))?;
        self.counters.served(Source::Holder);
        Some(known)
    }
}

#[async_trait]
impl VersionAuthority for ClusterNode {
    fn attach(&self, bucket: &str, window: Option<Duration>, source: Arc<dyn VersionSource>) {
        let replaced = self.core.buckets.write().attach(bucket, window, source);
        if replaced {
            self.core.handle(Event::Forget(bucket.into()));
        }
        self.core.review();
        self.core.record_changed.notify_one();
    }

    fn detach(&self, bucket: &str) {
        self.core.buckets.write().detach(bucket);
        // After it, so that no question to its origin begins.
        self.core.handle(Event::Forget(bucket.into()));
        self.core.record_changed.notify_one();
    }

    fn current(&self, bucket: &str, path: &str) -> Option<CurrentVersion> {
        let timing = &self.core.timing;
        let window = self
            .core
            .buckets
            .read()
            .get(bucket)?
            .usable_window(timing)?;
        self.core.current(bucket, path, window)
    }

    async fn read(&self, bucket: &str, path: &Path) -> Result<CurrentVersion> {
        let view = self.core.buckets.read().attached(bucket)?;
        let Some(window) = view.usable_window(&self.core.timing) else {
            return view.source().request(path).await;
        };
        let key = Key::new(Arc::clone(&view.name), path.as_ref());
        self.core.read(key, window).await
    }

    async fn begin_write(&self, bucket: &str, paths: Vec<Path>) -> Box<dyn WriteTurn> {
        self.core.start.listed_soon().await;
        Box::new(Turn::begin(Arc::clone(&self.core), bucket, &paths).await)
    }

    fn status(&self) -> Option<ClusterStatus> {
        Some(shown(self))
    }
}
