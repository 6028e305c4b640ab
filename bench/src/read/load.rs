//! Clients that read objects one after another for a time, and their figures.

use std::future::Future;
use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use crate::Failure;

/// Number of objects of warm reads, if they fit: a hot set, not one hot block.
const WARM_OBJECTS: u64 = 16;
/// Size above which the warm set is one object.
const LARGE_BYTES: u64 = 16 << 20;

/// One measurement: a number of clients that read objects of one size.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cell {
    pub(crate) size: u64,
    pub(crate) cold: bool,
    pub(crate) clients: usize,
    /// Time in which reads begin; each client does at least one.
    pub(crate) window_ms: u64,
    /// Distinguishes the objects of this measurement from those of all others.
    pub(crate) tag: String,
    /// Whether only the warm objects are read, once each.
    pub(crate) fill: bool,
}

/// One read.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) first_byte: Duration,
}

/// Figures of a cell.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Load {
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) first_byte_p50_ms: f64,
}

impl Cell {
    /// Returns the object of a client's n-th read.
    fn key(&self, client: usize, n: u64) -> String {
        let size = self.size;
        if self.cold {
            return format!("s{size}/cold-{}-{client}-{n}", self.tag);
        }
        let objects = if size > LARGE_BYTES { 1 } else { WARM_OBJECTS };
        format!("s{size}/warm-{}", (client as u64 * 7 + n) % objects)
    }

    /// Returns the min bytes of a round: one object per client.
    pub(crate) fn least_bytes(&self) -> u64 {
        self.size * self.clients as u64
    }

    /// Returns the warm objects of this size.
    fn warm_set(&self) -> Vec<String> {
        let objects = if self.size > LARGE_BYTES {
            1
        } else {
            WARM_OBJECTS
        };
        (0..objects).map(|n| self.key(0, n)).collect()
    }
}

/// Reads every byte of a piece of a body, like a program that computes on it, so that the cost of memory accesses counts.
pub(crate) fn consume(piece: &[u8]) -> u64 {
    let (words, rest) = piece.as_chunks::<8>();
    let sum = words
        .iter()
        .fold(0, |sum, word| sum ^ u64::from_le_bytes(*word));
    std::hint::black_box(rest.iter().fold(sum, |sum, byte| sum ^ u64::from(*byte)));
    piece.len() as u64
}

/// Runs a cell. `connect` makes a client: a function that reads one object.
pub(crate) async fn drive<C, R, F>(
    cell: &Cell,
    connect: impl Fn(usize) -> C,
) -> Result<Load, Failure>
where
    C: Future<Output = Result<R, Failure>>,
    R: FnMut(String) -> F + Send + 'static,
    F: Future<Output = Result<Sample, Failure>> + Send,
{
    let mut clients = try_join_all((0..cell.clients).map(&connect)).await?;
    let begun = Instant::now();
    if cell.fill {
        let mut filled = Vec::new();
        for key in cell.warm_set() {
            let sample = (clients[0])(key).await?;
            check(cell, &sample)?;
            filled.push(sample);
        }
        return Ok(sum(&filled, begun.elapsed()));
    }
    let end = begun + Duration::from_millis(cell.window_ms);
    let tasks = clients.drain(..).enumerate().map(|(client, mut read)| {
        let cell = cell.clone();
        let work = async move {
            let mut samples = Vec::new();
            while samples.is_empty() || Instant::now() < end {
                let sample = read(cell.key(client, samples.len() as u64)).await?;
                check(&cell, &sample)?;
                samples.push(sample);
            }
            Ok::<_, Failure>(samples)
        };
        let task = tokio::spawn(work);
        async move { task.await? }
    });
    let samples: Vec<Sample> = try_join_all(tasks).await?.into_iter().flatten().collect();
    Ok(sum(&samples, begun.elapsed()))
}

fn sum(samples: &[Sample], took: Duration) -> Load {
    let first_bytes = samples
        .iter()
        .map(|sample| sample.first_byte.as_secs_f64() * 1e3)
        .collect();
    Load {
        reads: samples.len() as u64,
        bytes: samples.iter().map(|sample| sample.bytes).sum(),
        seconds: took.as_secs_f64(),
        first_byte_p50_ms: median(first_bytes),
    }
}

fn check(cell: &Cell, sample: &Sample) -> Result<(), Failure> {
    if sample.bytes == cell.size {
        return Ok(());
    }
    Err(format!("a read of {} bytes gave {}", cell.size, sample.bytes).into())
}

/// Returns the median; of an even number of values, the upper one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
