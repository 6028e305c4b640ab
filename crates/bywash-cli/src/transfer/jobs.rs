//! Concurrent execution of many jobs; failed ones do not stop the others.

use std::future::Future;

use tokio::task::JoinSet;

use crate::failure::{Failure, Kind};
use crate::output::Output;

/// Default number of jobs. Small objects cost a round trip each, so it may exceed the number of processors.
const DEFAULT_JOBS: usize = 16;
/// Max jobs: more would only compete for memory and connections.
const JOBS_MAX: i64 = 1024;

/// Number of concurrent jobs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Jobs {
    /// Objects or files worked on at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_JOBS, value_parser = jobs)]
    pub(crate) jobs: usize,
}

fn jobs(text: &str) -> Result<usize, String> {
    let count: Option<i64> = text.parse().ok().filter(|n| (1..=JOBS_MAX).contains(n));
    let count = count.and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| format!("{text:?} is no number of jobs; write 1 to {JOBS_MAX}"))
}

/// Runs `act` on each of `total` items concurrently and calls `done` for each success. Failures are reported as they occur; the
/// outcome has the kind of the first one. After a final failure (endpoint unreachable, interrupt) no further items
/// start.
pub(crate) async fn each<W, F, T>(
    jobs: Jobs,
    output: Output,
    what: &str,
    total: usize,
    mut work: impl Iterator<Item = Result<W, Failure>>,
    act: impl Fn(W) -> F,
    mut done: impl FnMut(T) -> Result<(), Failure>,
) -> Result<(), Failure>
where
    F: Future<Output = Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    let (mut running, mut failures) = (JoinSet::new(), Failures::new(output));
    loop {
        while !failures.are_final()
            && running.len() < jobs.jobs
            && let Some(next) = work.next()
        {
            match next {
                Ok(next) => _ = running.spawn(act(next)),
                Err(failure) => failures.push(failure),
            }
        }
        let Some(ended) = running.join_next().await else {
            return failures.end(total, what);
        };
        let ended = ended.unwrap_or_else(|error| Err(Failure::failed(format!("{what}: {error}"))));
        if let Err(failure) = ended.and_then(&mut done) {
            failures.push(failure);
        }
    }
}

/// Failures of many items, reported as they occur.
#[derive(Debug)]
pub(crate) struct Failures {
    output: Output,
    count: usize,
    kind: Option<Kind>,
    /// Not reported yet: if it stays the only one, it becomes the verb's own failure.
    last: Option<Failure>,
    /// A failure after which no item can succeed.
    ended: Option<Failure>,
}

impl Failures {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            output,
            count: 0,
            kind: None,
            last: None,
            ended: None,
        }
    }

    pub(crate) fn push(&mut self, failure: Failure) {
        if matches!(failure.kind, Kind::Interrupted | Kind::ReaderGone) {
            self.ended = Some(failure);
            return;
        }
        self.count += 1;
        self.kind.get_or_insert(failure.kind);
        if let Some(before) = self.last.replace(failure) {
            before.report(self.output.json);
        }
    }

    /// Whether further items would fail too.
    fn are_final(&self) -> bool {
        self.ended.is_some() || self.kind == Some(Kind::Unreachable)
    }

    /// Returns the outcome of `total` items, as "3 of 8 `what`".
    pub(crate) fn end(self, total: usize, what: &str) -> Result<(), Failure> {
        if let Some(ended) = self.ended {
            return Err(ended);
        }
        match (self.last, self.kind) {
            (Some(only), _) if self.count == 1 => Err(only),
            (Some(last), Some(kind)) => {
                last.report(self.output.json);
                let count = self.count;
                Err(Failure::new(kind, format!("{count} of {total} {what}")))
            }
            _ => Ok(()),
        }
    }
}
