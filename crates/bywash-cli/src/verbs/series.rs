//! `bywash series`: rows of a running server, or of a database's folder.

mod database;
mod export;

use std::io::{self, Read};
use std::path::PathBuf;

use bywash_console::SeriesRequest;
use chrono::{DateTime, SecondsFormat};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::output::Output;
use database::Database;

/// Series: values over time, each of a source and a metric
///
/// Series belong to the server that uses the data folder, or used it last: values sent to it, and its own history, whose sources
/// begin with `bywash`.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    database: database::DatabaseArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write values, as lines of the Influx line protocol: `weather,place=garden temperature=21.5`
    Write {
        /// Files of lines; standard input by default
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Unit of timestamps: ns, us, ms, s, m or h
        #[arg(long, value_name = "UNIT", default_value = "ns")]
        precision: String,
    },
    /// Show the points of series; `*` stands for any characters in a name, `?` for one
    Query {
        #[command(flatten)]
        selection: Selection,
        /// Aggregate the points of each span of this length, as 10s or 5m
        #[arg(long, value_name = "SPAN")]
        step: Option<String>,
        /// Aggregation: avg, min, max, sum, count, first or last [default: avg]
        #[arg(long, value_name = "HOW", requires = "step")]
        agg: Option<String>,
    },
    /// Show the names of series
    Ls {
        #[command(flatten)]
        selection: Selection,
    },
    /// Write the points of series to a file, with columns source, metric, timestamp and value
    Export {
        #[command(flatten)]
        selection: Selection,
        #[arg(long, value_enum, default_value = "csv")]
        format: Format,
        /// The file; standard output by default
        #[arg(long, short, value_name = "FILE")]
        to: Option<PathBuf>,
    },
}

/// Selection of series, and of a range of time.
#[derive(Debug, clap::Args)]
struct Selection {
    /// Measurement and tags, as `weather,place=garden` [default: all]
    source: Option<String>,
    /// The field, as `temperature` [default: all]
    metric: Option<String>,
    /// Start of the range: nanoseconds since 1970, 2026-11-22T07:00:00Z, or -15m
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    start: Option<String>,
    /// End of the range, likewise
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    end: Option<String>,
}

impl Selection {
    fn request(&self) -> SeriesRequest {
        SeriesRequest {
            source: self.source.clone(),
            metric: self.metric.clone(),
            start: self.start.clone(),
            end: self.end.clone(),
            ..SeriesRequest::default()
        }
    }
}

/// Format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Parquet,
}

/// One point, with its series' name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    source: String,
    metric: String,
    /// Nanoseconds since 1970.
    timestamp: i64,
    value: f64,
}

impl Row {
    fn text(&self) -> String {
        let at = DateTime::from_timestamp_nanos(self.timestamp)
            .to_rfc3339_opts(SecondsFormat::AutoSi, true);
        format!("{at}  {}/{}  {}", self.source, self.metric, self.value)
    }
}

/// A series' name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Name {
    source: String,
    metric: String,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let database = Database::open(&args.database).await?;
    let done = at(&database, &args).await;
    let closed = database.close().await;
    done.and(closed)
}

async fn at(database: &Database, args: &Args) -> Result<(), Failure> {
    match &args.verb {
        Verb::Write { file, precision } => database.write(lines(file.as_ref())?, precision).await,
        Verb::Query {
            selection,
            step,
            agg,
        } => {
            let request = SeriesRequest {
                step: step.clone(),
                agg: agg.clone(),
                ..selection.request()
            };
            for row in database.query(&request).await? {
                args.output.line(&row, || row.text())?;
            }
            Ok(())
        }
        Verb::Ls { selection } => {
            for name in database.list(&selection.request()).await? {
                args.output
                    .line(&name, || format!("{}  {}", name.source, name.metric))?;
            }
            Ok(())
        }
        Verb::Export {
            selection,
            format,
            to,
        } => {
            let rows = database.query(&selection.request()).await?;
            let failed = |error: &dyn std::fmt::Display| {
                Failure::failed(format!("cannot write the rows: {error}"))
            };
            let content = match format {
                Format::Csv => export::csv(&rows).map_err(|error| failed(&error))?,
                Format::Parquet => export::parquet(&rows).map_err(|error| failed(&error))?,
            };
            export::put(&content, to.as_deref())
        }
    }
}

/// Returns the lines to write.
fn lines(file: Option<&PathBuf>) -> Result<Vec<u8>, Failure> {
    let Some(path) = file else {
        let mut lines = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut lines)
            .map_err(|error| Failure::io("cannot read standard input", &error))?;
        return Ok(lines);
    };
    std::fs::read(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))
}
