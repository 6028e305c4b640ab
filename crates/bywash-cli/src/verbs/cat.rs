//! `bywash cat`: objects and files to standard output.

use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::serve::data_dir::DEFAULT_DATA_DIR;
use crate::transfer::byte_range::ByteRange;
use crate::transfer::file::to_stdout;
use crate::transfer::source::Source;
use crate::url::Url;

/// Write objects or files to standard output, one after the other
///
/// With --json, one line a source on standard error: source, bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, a file path, or - for standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<Url>,
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
        let bytes = or_interrupt(Box::pin(async {
            let mut source = Source::open(location, args.range, None, &endpoint).await?;
            to_stdout(&mut source, |_| ()).await
        }))
        .await?;
        args.output
            .summary(&serde_json::json!({"source": location.to_string(), "bytes": bytes}))?;
    }
    Ok(())
}
