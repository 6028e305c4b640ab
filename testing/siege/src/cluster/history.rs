//! The history of a soak as lines of JSON, and porcupine's verdict on it.
//!
//! The checker is `testing/clients/linearizability`, a program of Go. It does not know the oracle: it reads requests, results and times.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bywash_support::http::HttpResponse;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::clients::Operation;
use crate::CaseError;

/// Name of the checker's program in the environment.
pub const CHECKER: &str = "BYWASH_LINEARIZABILITY";

/// Returns the checker's program, which the environment names; `None` if it does not.
#[must_use]
pub fn checker() -> Option<PathBuf> {
    std::env::var_os(CHECKER).map(PathBuf::from)
}

/// How a soak is judged by the checker.
#[derive(Debug, Clone)]
pub struct Judging {
    pub checker: PathBuf,
    /// Window of the bucket.
    pub window: Duration,
    /// Whether reads concurrent with a write must be linearizable too. They are while no fault takes a key from its holder.
    pub is_strict: bool,
    /// Whether the oracle's word is not taken: a history in which it finds a fault goes on to its end.
    pub is_alone: bool,
}

/// A history that is being written.
#[derive(Debug)]
pub(super) struct History {
    path: PathBuf,
    file: Mutex<BufWriter<File>>,
}

/// When an operation began and ended, since the begin of the soak.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) begun: Duration,
    pub(super) ended: Duration,
}

/// Identity of a body. Those of a soak differ from each other.
fn value_of(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    format!("{:016x}", hasher.finish())
}

/// Returns kind, value and outcome of an operation, or `None` for one that says nothing of a key's value: a read of a part, or one that
/// failed. A write without a response, or with an error of the server, may have happened.
fn described(
    operation: &Operation,
    response: Option<&HttpResponse>,
) -> Option<(&'static str, String, &'static str)> {
    let status = response.map_or(0, |response| response.status);
    let outcome = match status {
        200 | 204 => "ok",
        404 => "absent",
        412 => "exists",
        _ => "unknown",
    };
    Some(match operation {
        Operation::Put(body) => ("put", value_of(body), outcome),
        Operation::Behind(body) => ("put", value_of(body), "ok"),
        Operation::Create(body) => ("create", value_of(body), outcome),
        Operation::Delete => ("delete", String::new(), outcome),
        Operation::Get if status == 200 => ("get", value_of(&response?.body), "ok"),
        Operation::Get if status == 404 => ("get", String::new(), "ok"),
        Operation::Get | Operation::Head | Operation::Range(_) => return None,
    })
}

impl History {
    pub(super) fn create(folder: &Path) -> std::io::Result<Self> {
        let path = folder.join("history.jsonl");
        let file = Mutex::new(BufWriter::new(File::create(&path)?));
        Ok(Self { path, file })
    }

    /// Adds an operation. A line that cannot be written ends the soak: a history with holes proves nothing.
    pub(super) fn add(
        &self,
        key: &str,
        operation: &Operation,
        response: Option<&HttpResponse>,
        span: Span,
    ) -> std::io::Result<()> {
        let Some((kind, value, outcome)) = described(operation, response) else {
            return Ok(());
        };
        let line = json!({
            "key": key, "kind": kind, "value": value, "outcome": outcome,
            "call": span.begun.as_nanos() as u64, "return": span.ended.as_nanos() as u64,
        });
        writeln!(self.file.lock(), "{line}")
    }

    /// Asks the checker. Returns its verdict in words, and whether the history is right.
    pub(super) async fn judged(&self, judging: &Judging) -> Result<(String, bool), CaseError> {
        self.file.lock().flush()?;
        let mut command = tokio::process::Command::new(&judging.checker);
        if judging.is_strict {
            command.arg("-strict");
        }
        let window = format!("-window={}ms", judging.window.as_millis());
        let output = command.arg(window).arg(&self.path).output().await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let verdict: Value = serde_json::from_str(&text).map_err(|_| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("the checker of linearizability gave no verdict: {error}")
        })?;
        let count = |name: &str| verdict[name].as_u64().unwrap_or(0);
        let words = format!(
            "{} operations on {} keys: {} linearizable, {} except for reads concurrent with a write, {} undecided, wrong: {}",
            count("operations"),
            count("keys"),
            count("linearizable"),
            count("weaker"),
            count("undecided"),
            verdict["wrong"]
        );
        Ok((words, output.status.success()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn write_without_a_response_may_have_happened_and_a_failed_read_says_nothing() {
        let body = || bytes::Bytes::from_static(b"one");
        let put = described(&Operation::Put(body()), None).unwrap();
        assert_eq!((put.0, put.2), ("put", "unknown"));
        assert_eq!(described(&Operation::Get, None), None);
        assert_eq!(described(&Operation::Head, None), None);
        assert_ne!(value_of(b"one"), value_of(b"two"));
    }

    #[test]
    fn lines_are_json_with_nanoseconds() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::create(folder.path()).unwrap();
        let span = Span {
            begun: Duration::from_micros(1),
            ended: Duration::from_micros(2),
        };
        history.add("k", &Operation::Delete, None, span).unwrap();
        history.add("k", &Operation::Get, None, span).unwrap();
        history.file.lock().flush().unwrap();
        let text = std::fs::read_to_string(&history.path).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let wanted = json!({"key": "k", "kind": "delete", "value": "", "outcome": "unknown", "call": 1000, "return": 2000});
        assert_eq!(lines, [wanted]);
    }
}
