//! The `bywash` program. One verb a file is in `verbs`; copies are in `transfer`, the server in `serve`.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod address;
mod admin;
#[cfg(test)]
mod argument_fuzz;
mod endpoint;
mod escape;
mod failure;
mod filter;
mod interrupt;
mod limits;
mod output;
mod progress;
mod retry;
mod serve;
mod size;
mod total;
mod transfer;
mod url;
mod verbs;

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bywash_gateway::limits::MAX_BLOCKING_THREADS;
use clap::{Parser, Subcommand};
use tracing::field::Field;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use failure::Failure;
use transfer::After;
use verbs::cp::Transfer;
use verbs::{
    buckets, cache, cat, cluster, cp, du, env, keys, local, ls, presign, rm, series, shell, stat,
    sync, uploads,
};

/// Returns freed memory to the system. The system's allocator keeps it in the arenas of its threads:
/// docs/decisions/0015-an-allocator-that-returns-memory.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Idle time after which a blocking thread ends. Idle threads get work in turn, so with a longer
/// time a few requests a second would keep all threads of a burst.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_millis(500);

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  wrong usage or settings
  3  the object, bucket or file does not exist
  4  access denied (wrong, missing or insufficient credentials)
  5  the endpoint cannot be reached
  130  interrupted";

/// Object storage at memory speed: a cache over folders and buckets, for clients of S3 and of Google's storage.
#[derive(Debug, Parser)]
#[command(name = "bywash", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    /// What to log to standard error, for example `debug` or `info,bywash=trace`
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "BYWASH_LOG",
        help_heading = "Logs"
    )]
    log: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(Box<serve::Args>),
    Env(env::Args),
    Keys(keys::Args),
    /// Copy objects or files, one or whole trees
    ///
    /// A destination that is a folder, a bucket or ends in / gets the source's name; with --recursive it gets all names below the
    /// source. Objects keep their content headers and metadata; files get the modification time of their source. To resume a killed
    /// download of a large object, run the same command again; to resume a killed upload of a large file: bywash uploads resume.
    ///
    /// With --json, one line a copy: source, destination, bytes (null if the store copied by itself), resumed_bytes, seconds, e_tag.
    Cp(Transfer),
    /// Move objects or files, one or whole trees
    ///
    /// A source is deleted only once its copy is complete, and only if it still is the version that was copied. Stores with
    /// conditional deletes compare it: S3, gs:// and az://. For other servers with S3's protocol it is compared just before, unless
    /// AWS_CONDITIONAL_DELETE=etag states that they heed If-Match. Folders that become empty stay. Names, options and JSON lines are
    /// those of cp.
    Mv(Transfer),
    Sync(sync::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Du(du::Args),
    Rm(rm::Args),
    /// Make a bucket, or a folder
    ///
    /// With --json, one line: made.
    Mb(buckets::Args),
    /// Remove an empty bucket, or an empty folder
    ///
    /// To empty a bucket first: bywash rm -r --force s3://bucket. With --json, one line: removed.
    Rb(buckets::Args),
    Presign(presign::Args),
    Uploads(uploads::Args),
    Cache(cache::Args),
    Cluster(cluster::Args),
    Local(local::Args),
    Series(series::Args),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

impl Verb {
    /// Whether failures are printed as JSON too.
    fn json(&self) -> bool {
        match self {
            Self::Serve(_) | Self::Completions(_) | Self::Man(_) => false,
            Self::Env(args) => args.output.json,
            Self::Keys(args) => args.output.json,
            Self::Cp(args) | Self::Mv(args) => args.output.json,
            Self::Sync(args) => args.output.json,
            Self::Ls(args) => args.output.json,
            Self::Cat(args) => args.output.json,
            Self::Stat(args) => args.output.json,
            Self::Du(args) => args.output.json,
            Self::Rm(args) => args.output.json,
            Self::Mb(args) | Self::Rb(args) => args.output.json,
            Self::Presign(args) => args.output.json,
            Self::Uploads(args) => args.output.json,
            Self::Cache(args) => args.output.json,
            Self::Cluster(args) => args.output.json,
            Self::Local(args) => args.output.json,
            Self::Series(args) => args.output.json,
        }
    }

    /// The default log filter: info for a server, warnings for the other verbs.
    fn default_log(&self) -> &'static str {
        match self {
            // s3s logs each rejected request as an error; `--access-log` records them.
            Self::Serve(_) => "info,s3s=off",
            _ => "warn",
        }
    }

    async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Serve(args) => Box::pin(serve::run(*args)).await,
            Self::Env(args) => env::run(&args),
            Self::Keys(args) => keys::run(args),
            Self::Cp(args) => Box::pin(cp::run(args, After::Keep)).await,
            Self::Mv(args) => Box::pin(cp::run(args, After::Remove)).await,
            Self::Sync(args) => Box::pin(sync::run(args)).await,
            Self::Ls(args) => ls::run(args).await,
            Self::Cat(args) => Box::pin(cat::run(args)).await,
            Self::Stat(args) => stat::run(args).await,
            Self::Du(args) => du::run(args).await,
            Self::Rm(args) => Box::pin(rm::run(args)).await,
            Self::Mb(args) => Box::pin(buckets::make(args)).await,
            Self::Rb(args) => Box::pin(buckets::remove(args)).await,
            Self::Presign(args) => Box::pin(presign::run(args)).await,
            Self::Uploads(args) => Box::pin(uploads::run(args)).await,
            Self::Cache(args) => cache::run(args).await,
            Self::Cluster(args) => cluster::run(args).await,
            Self::Local(args) => local::run(args),
            Self::Series(args) => Box::pin(series::run(args)).await,
            Self::Completions(args) => shell::completions(&args),
            Self::Man(args) => shell::man(&args),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.verb.json();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    start_logs(cli.log.as_deref().unwrap_or(cli.verb.default_log()))?;
    // The HTTP client is built without a TLS provider of its own; an error means one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
    let outcome = runtime.block_on(cli.verb.run());
    // A pending read of standard input must not keep the process from exiting.
    runtime.shutdown_background();
    outcome
}

fn start_logs(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("log filter {filter:?} is not understood: {error}"))
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .fmt_fields(debug_fn(field).delimited(" "));
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .with(filter_fn(is_without_signatures))
        .init();
    Ok(())
}

/// Returns false for logs of s3s below `info`. They contain heads of requests and, after a wrong signature, the right one, with
/// which a reader of the log could repeat the request.
fn is_without_signatures(metadata: &Metadata<'_>) -> bool {
    let is_s3s = metadata.target().split("::").next() == Some("s3s");
    !is_s3s || *metadata.level() <= Level::INFO
}

/// Writes a field of a log line. Values may be an endpoint's or a client's own text.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = escape::plain(&value);
    match field.name() {
        "message" => writer.write_str(&value),
        name => write!(writer, "{name}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// The kernel's flags of the mapping that contains `address`.
    #[cfg(target_os = "linux")]
    fn mapping_flags(maps: &str, address: usize) -> Option<String> {
        let mut inside = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
                inside = (start..end).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return Some(flags.to_owned());
            }
        }
        None
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn heap_uses_no_huge_pages() {
        let block = std::hint::black_box(vec![1_u8; 4 << 20]);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let flags = mapping_flags(&maps, block.as_ptr().addr() + (2 << 20));
        let flags = flags.expect("a kernel that names the flags of mappings");
        assert!(!flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    }
}
