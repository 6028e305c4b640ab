//! Standard output of verbs.

use std::io::{self, Write};

use serde::Serialize;

use crate::escape::{plain, plain_json};
use crate::failure::{Failure, Kind};

/// Format of results.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Output {
    /// Print results and errors as JSON, one document a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Output {
    /// Writes one result to standard output: `value` as JSON, or else `text`.
    pub(crate) fn line(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.lines(value, || vec![text()])
    }

    /// Writes one result to standard output: `value` as JSON, or else these lines.
    pub(crate) fn lines(
        self,
        value: &impl Serialize,
        lines: impl FnOnce() -> Vec<String>,
    ) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.json {
            return written(writeln!(out, "{}", to_json(value)?));
        }
        for line in lines() {
            written(writeln!(out, "{}", plain(&line)))?;
        }
        Ok(())
    }

    /// Prints a note for people on standard error. Scripts find the same facts in the results.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            eprintln!("bywash: {}", plain(text));
        }
    }

    /// Writes the summary of a verb whose data went to standard output: JSON on standard error.
    pub(crate) fn summary(self, value: &impl Serialize) -> Result<(), Failure> {
        if self.json {
            eprintln!("{}", to_json(value)?);
        }
        Ok(())
    }
}

fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map(plain_json)
        .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))
}

/// Converts the result of a write to standard output.
///
/// A reader that closes the pipe (`| head`) ends the verb without an error.
pub(crate) fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new(
            Kind::ReaderGone,
            "the reader of standard output closed it",
        )),
        Err(error) => Err(Failure::io("cannot write to standard output", &error)),
        Ok(()) => Ok(()),
    }
}
