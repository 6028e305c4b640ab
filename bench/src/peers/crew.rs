//! Threads that wait for work, as cheap to use as goroutines.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::Failure;

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads, including the calling one.
#[derive(Debug)]
pub(crate) struct Crew {
    workers: Vec<(SyncSender<Job>, JoinHandle<()>)>,
}

impl Crew {
    pub(crate) fn new(threads: usize) -> Self {
        let workers = (1..threads).map(|_| {
            let (jobs, queue) = sync_channel::<Job>(1);
            let thread = std::thread::spawn(move || queue.into_iter().for_each(|job| job()));
            (jobs, thread)
        });
        Self {
            workers: workers.collect(),
        }
    }

    /// Runs one job per thread, the first on this thread, and waits for all. The results are in no order.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        jobs: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
    ) -> Result<Vec<T>, Failure> {
        let (done, results) = sync_channel(self.workers.len());
        let mut jobs = jobs.into_iter();
        let first = jobs.next();
        let mut sent = 0;
        for (job, (worker, _)) in jobs.zip(&self.workers) {
            let done = done.clone();
            // A worker that ended sends no result either.
            let _ = worker.send(Box::new(move || {
                let _ = done.send(job());
            }));
            sent += 1;
        }
        drop(done);
        let mut found: Vec<T> = first.map(|job| job()).into_iter().collect();
        found.extend(results);
        if found.len() != sent + 1 {
            return Err("a thread of the crew panicked".into());
        }
        Ok(found)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (jobs, thread) in self.workers.drain(..) {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_job_runs_on_its_own_thread() {
        let crew = Crew::new(3);
        let ids = crew
            .run((0..3).map(|_| || std::thread::current().id()))
            .unwrap();
        let different: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!((ids.len(), different.len()), (3, 3));
    }

    #[test]
    fn panic_of_a_job_is_reported() {
        let crew = Crew::new(2);
        let jobs = (0..2).map(|at| move || assert!(at == 0, "planted"));
        assert!(crew.run(jobs).is_err());
    }
}
