//! Objects at an origin, more than a server's memory holds, and clients that read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use bywash_sim::server::Server;
use bywash_sim::server::web::{Web, WebServerOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;

use crate::CaseError;
use crate::client::{Client, Expect};
use crate::context::{CaseContext, body};
use crate::record::Class;

/// Bytes of an object.
const LENGTH: usize = 4 << 20;
/// Objects that the clients of a round read again and again: more than the memory holds, and less than the disk.
pub(super) const WINDOW: u64 = 20;
/// Number of concurrent readers.
pub(super) const READERS: u64 = 4;
/// Objects at an origin whose blocks the server keeps on its disk.
pub(super) struct Objects {
    store: Arc<Web>,
    server: Server,
    /// Each object is a part of these bytes.
    base: Bytes,
    versions: Vec<AtomicU64>,
}

impl Objects {
    pub(super) async fn start(seed: u64, count: u64) -> Result<Arc<Self>, CaseError> {
        let store = Arc::new(Web::new(WebServerOptions::default()));
        let server = Server::start(Arc::<Web>::clone(&store)).await?;
        let objects = Self {
            store,
            server,
            base: body(seed, 0, 2 * LENGTH),
            versions: (0..count).map(|_| AtomicU64::new(0)).collect(),
        };
        for number in 0..count {
            objects.replace(number);
        }
        Ok(Arc::new(objects))
    }

    pub(super) fn count(&self) -> u64 {
        self.versions.len() as u64
    }

    pub(super) fn origin(&self) -> String {
        format!("web={}/data", self.server.url())
    }

    /// Writes a new version. No reader may be at work.
    pub(super) fn replace(&self, number: u64) {
        // Relaxed: the readers are started later.
        self.versions[number as usize].fetch_add(1, Ordering::Relaxed);
        let path = format!("/data/{number}");
        self.store.put(&path, self.expected(number));
    }

    fn expected(&self, number: u64) -> Bytes {
        // Relaxed: see `replace`.
        let version = self.versions[number as usize].load(Ordering::Relaxed);
        // No two versions begin at the same place of a page.
        let place = (number * 131 + version) * 37 % (LENGTH as u64 / 8);
        let start = 8 * place as usize;
        self.base.slice(start..start + LENGTH)
    }

    /// Reads an object, or a part of it, and judges each byte.
    async fn read(&self, client: &mut Client, number: u64, random: &mut StdRng) -> bool {
        let path = format!("/web/{}", number % self.count());
        let expected = self.expected(number % self.count());
        if random.random_ratio(3, 4) {
            return client.get(&path, &expected).await.is_some();
        }
        let start = random.random_range(0..LENGTH);
        let end = random.random_range(start..LENGTH);
        let range = format!("bytes={start}-{end}");
        let expect = Expect::Bytes(expected.slice(start..=end));
        let (request, headers) = (("GET", &*path, ""), [("range", &*range)]);
        let response = client.send(request, &headers, b"", &expect);
        response.await.is_some()
    }
}

/// Readers of a window of objects, until they are stopped.
pub(super) struct Readers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(super) fn start(
        context: &CaseContext,
        objects: &Arc<Objects>,
        first: u64,
        class: Class,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..READERS).map(|reader| {
            let (objects, stop) = (Arc::clone(objects), Arc::clone(&stop));
            let mut client = Client::new(context.address(), class, &context.record);
            let mut random = StdRng::seed_from_u64(context.seed ^ (first << 8) ^ reader);
            tokio::spawn(async move {
                // Relaxed: one more request is harmless.
                while !stop.load(Ordering::Relaxed) {
                    for number in (reader..WINDOW).step_by(READERS as usize) {
                        objects.read(&mut client, first + number, &mut random).await;
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
        }
    }

    pub(super) async fn stop(self) {
        // Relaxed: see `start`.
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let _ = task.await;
        }
    }
}

/// Reads a window of objects once.
pub(super) async fn read_window(context: &CaseContext, objects: &Arc<Objects>, first: u64) {
    let numbers = first..first + WINDOW;
    context
        .run_concurrently(READERS, |reader| {
            let (objects, numbers) = (Arc::clone(objects), numbers.clone());
            let mut client = context.well_behaved();
            let mut random = StdRng::seed_from_u64(context.seed ^ reader);
            async move {
                for number in numbers.skip(reader as usize).step_by(READERS as usize) {
                    objects.read(&mut client, number, &mut random).await;
                }
            }
        })
        .await;
}
