//! Threads that read blocks. A disk that does not return keeps only them waiting: when all threads
//! wait for too long, the tier is turned off, and reads end without bytes.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::format::{PAGE, VersionKey, pages_of};
use crate::limits::MAX_READ_TIME;
use crate::tier::Tier;

/// A read of one block.
pub trait ReadJob: Send {
    /// Returns version and number of the block.
    fn block(&self) -> (VersionKey, u32);

    /// Returns memory for the block: at least `bytes`, a multiple of 4 KiB, at an address that is a multiple of 4 KiB.
    /// `None` gives up. Called in a reader thread when it begins the read.
    fn buffer(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Ends the read: with the number of bytes read, which equal the written bytes, or without any.
    fn finish(self: Box<Self>, read: Option<usize>);
}

/// A few threads with a queue. Dropping it ends them after the reads they are at; queued reads are dropped.
pub struct Readers {
    shared: Arc<Shared>,
}

struct Shared {
    tier: Arc<Tier>,
    queue: Mutex<Queue>,
    /// There is a job, or the end.
    queued: Condvar,
    /// No reader is idle, or the end.
    busy: Condvar,
}

struct Queue {
    jobs: VecDeque<Box<dyn ReadJob>>,
    /// When each reader began the read it is at.
    began: Box<[Option<Duration>]>,
    closed: bool,
}

impl Queue {
    /// Returns how long all readers have been reading; `None` if one is idle.
    fn busy_for(&self, now: Duration) -> Option<Duration> {
        let mut last = Duration::ZERO;
        for began in &self.began {
            last = last.max((*began)?);
        }
        Some(now.saturating_sub(last))
    }
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn start(tier: &Arc<Tier>, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tier: Arc::clone(tier),
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                began: vec![None; threads].into(),
                closed: false,
            }),
            queued: Condvar::new(),
            busy: Condvar::new(),
        });
        let readers = Self {
            shared: Arc::clone(&shared),
        };
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn(run)
        };
        for reader in 0..threads {
            let shared = Arc::clone(&shared);
            start("bywash-disk-read", Box::new(move || shared.run(reader)))?;
        }
        start("bywash-disk-watch", Box::new(move || shared.watch()))?;
        Ok(readers)
    }

    /// Queues a read. It ends at once, without bytes, if all readers are stuck.
    pub fn read(&self, job: Box<dyn ReadJob>) {
        let shared = &self.shared;
        let mut queue = shared.queue.lock();
        let busy = queue.busy_for(shared.tier.now());
        if busy.is_some_and(|busy| busy >= MAX_READ_TIME) {
            drop(queue);
            shared.tier.turn_off_stuck();
            job.finish(None);
            return;
        }
        queue.jobs.push_back(job);
        drop(queue);
        shared.queued.notify_one();
        if busy.is_some() {
            shared.busy.notify_one();
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.queued.notify_all();
        self.shared.busy.notify_all();
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
    fn run(&self, reader: usize) {
        loop {
            let mut queue = self.queue.lock();
            let mut job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.closed => return,
                    None => self.queued.wait(&mut queue),
                }
            };
            queue.began[reader] = Some(self.tier.now());
            let waiting = !queue.jobs.is_empty();
            drop(queue);
            if waiting {
                self.busy.notify_one();
            }
            let read = self.read(&mut *job);
            // Before a waiter of the job queues another read.
            self.queue.lock().began[reader] = None;
            job.finish(read);
        }
    }

    fn read(&self, job: &mut dyn ReadJob) -> Option<usize> {
        let (version, block) = job.block();
        let length = self.tier.length(version, block)?;
        let buffer = job.buffer(pages_of(length as usize) as usize * PAGE)?;
        let read = self.tier.read(version, block, buffer);
        read.map(|length| length as usize)
    }

    /// Ends queued reads without bytes when all readers are stuck.
    fn watch(&self) {
        let mut queue = self.queue.lock();
        while !queue.closed {
            let busy = if queue.jobs.is_empty() {
                None
            } else {
                queue.busy_for(self.tier.now())
            };
            match busy.map(|busy| MAX_READ_TIME.saturating_sub(busy)) {
                None => self.busy.wait(&mut queue),
                Some(Duration::ZERO) => {
                    let jobs = std::mem::take(&mut queue.jobs);
                    drop(queue);
                    self.tier.turn_off_stuck();
                    for job in jobs {
                        job.finish(None);
                    }
                    queue = self.queue.lock();
                }
                Some(rest) => {
                    self.busy.wait_for(&mut queue, rest);
                }
            }
        }
    }
}
