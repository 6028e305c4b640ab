//! A plain loop of `pread`: threads that read places of one file by direct I/O, without a cache, an index or a checksum.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::fs::OFlags;

use super::worker::{Figures, Order, Samples, WorkerArgs, content, figures, serve};
use crate::Failure;
use crate::read::load::consume;

pub(super) struct Pread {
    file: File,
    value_bytes: usize,
    values: u64,
}

impl Pread {
    pub(super) fn open(args: &WorkerArgs) -> Result<Self, Failure> {
        std::fs::create_dir_all(&args.folder)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(args.folder.join("values"))?;
        Ok(Self {
            file,
            value_bytes: args.value_bytes,
            values: args.values,
        })
    }

    /// Returns memory that is aligned as direct I/O needs it.
    fn buffer(&self) -> Result<MmapMut, Failure> {
        Ok(MmapMut::map_anon(self.value_bytes)?)
    }

    fn fill(&self) -> Result<(), Failure> {
        let mut buffer = self.buffer()?;
        for value in 0..self.values {
            buffer.copy_from_slice(&content(value, self.value_bytes));
            let at = value * self.value_bytes as u64;
            self.file.write_all_at(&buffer, at)?;
        }
        Ok(())
    }

    fn read_at_random(&self, seed: u64, window: Duration) -> Result<Samples, Failure> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut buffer = self.buffer()?;
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.is_empty() || begun.elapsed() < window {
            let one = Instant::now();
            let at = random.random_range(0..self.values) * self.value_bytes as u64;
            self.file.read_exact_at(&mut buffer, at)?;
            consume(&buffer);
            times.push(one.elapsed());
        }
        Ok((times, 0))
    }
}

/// Works until standard input ends.
pub(super) fn orders(args: &WorkerArgs, file: &Pread) -> Result<(), Failure> {
    serve(|order| {
        let begun = Instant::now();
        match order {
            Order::Fill => {
                file.fill()?;
                Ok(Figures {
                    values: args.values,
                    seconds: begun.elapsed().as_secs_f64(),
                    ..Figures::default()
                })
            }
            Order::Read {
                readers,
                window_ms,
                seed,
            } => {
                let window = Duration::from_millis(window_ms);
                let samples: Result<Vec<_>, Failure> = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..readers as u64)
                        .map(|reader| {
                            scope.spawn(move || file.read_at_random(seed + reader, window))
                        })
                        .collect();
                    let joined = threads.into_iter().map(|thread| {
                        thread
                            .join()
                            .map_err(|_| Failure::from("a reader panicked"))?
                    });
                    joined.collect()
                });
                Ok(figures(samples?, begun.elapsed()))
            }
        }
    })
}
