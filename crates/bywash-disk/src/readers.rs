//! Threads that read blocks. A disk that does not return keeps only them waiting.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::format::{PAGE, VersionKey, pages_of};
use crate::tier::Tier;

/// A read of one block.
pub trait ReadJob: Send {
    /// Returns version and number of the block.
    fn block(&self) -> (VersionKey, u32);

    /// Returns memory for the block: at least `bytes`, a multiple of 4 KiB, at an address that is a multiple of 4 KiB.
    /// `None` gives up. Called in a reader thread when it begins the read.
    fn buffer(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Ends the read: with the number of bytes read, which are those that were written, or without any.
    fn finish(self: Box<Self>, read: Option<usize>);
}

/// A few threads with a queue. Dropping it ends them after the reads they are at; queued reads are dropped.
pub struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    tier: Arc<Tier>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn ReadJob>>,
    closed: bool,
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn start(tier: &Arc<Tier>, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tier: Arc::clone(tier),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let readers = Self {
            shared: Arc::clone(&shared),
        };
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            let name = "bywash-disk-read".to_owned();
            thread::Builder::new()
                .name(name)
                .spawn(move || shared.run())?;
        }
        Ok(readers)
    }

    /// Queues a read.
    pub fn read(&self, job: Box<dyn ReadJob>) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.changed.notify_one();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers")
            .field("queued", &self.shared.queue.lock().jobs.len())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.closed => return,
                    None => self.changed.wait(&mut queue),
                }
            };
            drop(queue);
            self.read(job);
        }
    }

    fn read(&self, mut job: Box<dyn ReadJob>) {
        let (version, block) = job.block();
        let read = self.tier.length(version, block).and_then(|length| {
            let buffer = job.buffer(pages_of(length as usize) as usize * PAGE)?;
            self.tier.read(version, block, buffer)
        });
        job.finish(read.map(|length| length as usize));
    }
}
