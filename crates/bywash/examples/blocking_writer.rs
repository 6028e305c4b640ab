//! Writes an object line by line from an ordinary thread, as any code with a [`std::io::Write`] can.
//!
//! ```text
//! cargo run -p bywash --example blocking_writer -- file:///tmp/objects lines.csv 1000000
//! cargo run -p bywash --example blocking_writer -- gs://bucket/prefix lines.csv 1000000
//! ```
//!
//! Lines of a few bytes are collected in one chunk of memory, which is sent when it is full. Halfway the chunks get shorter,
//! as a program does whose memory is wanted elsewhere.

use std::error::Error;
use std::io::Write;

use bywash::{Consistency, Engine, OriginUrl, UploadOptions, UploadResult};
use object_store::path::Path;

type Failure = Box<dyn Error + Send + Sync>;

/// Bytes of the first chunks, and of those after half of the lines. Both are rounded down to the store's unit.
const CHUNK: u64 = 1 << 20;
const SHORTER: u64 = 300_000;

/// Writes `lines` lines to the object `path` below `origin`.
pub(crate) fn write_lines(
    origin: &OriginUrl,
    path: &Path,
    lines: u64,
) -> Result<UploadResult, Failure> {
    // Sends the chunks, while this thread writes.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let engine = Engine::builder().memory(32 << 20).build()?;
    let bucket = engine.mount_url("lines", origin, Consistency::default())?;
    let options = UploadOptions {
        chunk: Some(CHUNK),
        ..UploadOptions::default()
    };
    let upload = runtime.block_on(bucket.upload(path, options))?;
    let mut writer = upload.into_blocking_writer(runtime.handle());
    writeln!(writer, "number,square")?;
    for number in 0..lines {
        if number == lines / 2 {
            writer.upload().set_chunk(SHORTER)?;
        }
        writeln!(
            writer,
            "{number},{}",
            u128::from(number) * u128::from(number)
        )?;
    }
    Ok(writer.finish()?)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [origin, name, lines] = &arguments[..] else {
        return Err("usage: blocking_writer ORIGIN NAME LINES".into());
    };
    let written = write_lines(&origin.parse()?, &Path::parse(name)?, lines.parse()?)?;
    println!(
        "{} bytes, CRC32C {:08x}, {} buffers",
        written.length, written.crc32c, written.buffers
    );
    Ok(())
}
