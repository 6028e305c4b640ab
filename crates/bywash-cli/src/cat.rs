//! `bywash cat`: objects and files to standard output.

use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::location::Location;
use crate::output::{Output, written};
use crate::progress::or_interrupt;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::source::{ByteRange, Source};

/// Write objects or files to standard output, one after the other
///
/// With --json, one line a source on standard error: source, bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, a file path, or - for standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<Location>,
    /// Only these bytes of each: 0-99 (both ends included), 100- or -20 (the last 20)
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    range: Option<ByteRange>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let endpoint = Endpoint::new(&args.remote, DEFAULT_DATA_DIR.as_ref());
    for location in &args.sources {
        let bytes = or_interrupt(async {
            let mut source = Source::open(location, args.range, None, &endpoint).await?;
            to_stdout(&mut source, |_| ()).await
        })
        .await?;
        args.output
            .summary(&serde_json::json!({"source": location.to_string(), "bytes": bytes}))?;
    }
    Ok(())
}

/// Writes all of `source` to standard output and returns the number of bytes; `wrote` hears of
/// each part's length.
pub(crate) async fn to_stdout(source: &mut Source, wrote: impl Fn(u64)) -> Result<u64, Failure> {
    use tokio::io::AsyncWriteExt;

    let mut stdout = tokio::io::stdout();
    let mut bytes = 0;
    while let Some(part) = source.next().await? {
        written(stdout.write_all(&part).await)?;
        bytes += part.len() as u64;
        wrote(part.len() as u64);
    }
    written(stdout.flush().await)?;
    Ok(bytes)
}
