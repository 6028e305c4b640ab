//! Judgement of reads against the recorded versions and faults.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash::EngineError;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta};

use super::{History, Moment, Oracle, Version, Violation};
use crate::fault::FaultKind;

/// Time after a fault in which it can still explain an error of a reader. Loads are shared: one may have been failing for
/// this long, longer than any retry deadline, when a reader joins it.
const FAULT_MEMORY: Duration = Duration::from_secs(300);

/// End of a read.
#[derive(Debug)]
pub enum Outcome {
    /// The body ended without an error.
    Complete,
    /// The reader cancelled after the bytes in `body`.
    Cancelled,
    /// An error before or within the body.
    Failed(Error),
    /// The read did not end.
    Hung,
}

/// One read and its result.
#[derive(Debug)]
pub struct Observation {
    /// The object.
    pub path: Path,
    /// Options of the read.
    pub options: GetOptions,
    /// Moment before the read began.
    pub start: Moment,
    /// Moment after it ended.
    pub end: Moment,
    /// Metadata in the response, if there was one.
    pub meta: Option<ObjectMeta>,
    /// Range of the body, according to the response.
    pub range: Option<Range<u64>>,
    /// Bytes of the body.
    pub body: Vec<u8>,
    /// End of the read.
    pub outcome: Outcome,
}

impl Observation {
    /// Begins the record of a read at the present moment.
    pub(crate) fn begin(oracle: &Oracle, path: &Path, options: GetOptions) -> Self {
        let start = oracle.now();
        Self {
            path: path.clone(),
            options,
            start,
            end: start,
            meta: None,
            range: None,
            body: Vec::new(),
            outcome: Outcome::Cancelled,
        }
    }
}

/// Engine settings that decide which versions a reader may see.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Maximum age of a response that the engine may reuse; `None` for no limit.
    pub window: Option<Duration>,
    /// Whether memory is so small that SlowDown is a correct error.
    pub tight_memory: bool,
}

/// Kind of a correct read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Bytes of this version: all requested ones or, after a cancellation, the first of them.
    Read(u64),
    /// The reader cancelled before there was a response.
    NoResponse,
    /// A correct "not found".
    Absent,
    /// A correct "not modified" or "precondition failed".
    Condition,
    /// A correct "range not satisfiable".
    Range,
    /// An error that a fault or a change of the object explains.
    Explained,
}

impl Oracle {
    /// Judges one read.
    ///
    /// # Errors
    ///
    /// The violation, if the read was not correct.
    pub fn judge(&self, seen: &Observation, rules: &Rules) -> Result<Verdict, Violation> {
        let ledger = self.ledger.lock();
        let empty = History::default();
        let history = ledger.keys.get(&seen.path).unwrap_or(&empty);
        let case = Case {
            seen,
            rules,
            history,
            visible: history.visible(seen.start, seen.end, rules.window),
        };
        match &seen.outcome {
            Outcome::Hung => Err(Violation::Hung { what: case.what() }),
            Outcome::Cancelled if seen.meta.is_none() => Ok(Verdict::NoResponse),
            Outcome::Complete | Outcome::Cancelled => case.bytes(),
            // What was read before the last bytes arrived is compared with the digest only then.
            Outcome::Failed(error) if is_digest_mismatch(error) => case.error(error),
            // The bytes before the error must be correct as well.
            Outcome::Failed(error) if seen.range.is_some() => {
                case.bytes().and_then(|_| case.error(error))
            }
            Outcome::Failed(error) => case.error(error),
        }
    }
}

struct Case<'a> {
    seen: &'a Observation,
    rules: &'a Rules,
    history: &'a History,
    visible: Vec<Option<Arc<Version>>>,
}

impl Case<'_> {
    fn what(&self) -> String {
        let Observation {
            path,
            options,
            start,
            end,
            meta,
            range,
            body,
            ..
        } = self.seen;
        let (requested, head) = (options.range.as_ref(), options.head);
        let e_tag = meta.as_ref().map(|meta| (meta.e_tag.as_deref(), meta.size));
        format!(
            "{path} {} requested {requested:?}, got {range:?} of {e_tag:?}, {} bytes, ticks {}..{}",
            if head { "HEAD" } else { "GET" },
            body.len(),
            start.tick,
            end.tick
        )
    }

    /// Checks that the bytes and the metadata are those of one visible version.
    fn bytes(&self) -> Result<Verdict, Violation> {
        let mut mismatch = None;
        for version in self.visible.iter().flatten() {
            match self.matches(version) {
                Ok(()) => return Ok(Verdict::Read(version.number)),
                // The mismatch with the version that has these bytes is the informative one.
                Err(detail) if self.is_prefix(version) => mismatch = Some(detail),
                Err(_) => {}
            }
        }
        let versions = || {
            self.history
                .states
                .iter()
                .filter_map(|state| state.version.as_ref())
        };
        if let Some(stale) = versions().find(|version| self.matches(version).is_ok()) {
            return Err(Violation::Stale {
                what: self.what(),
                version: stale.number,
                visible: self
                    .visible
                    .iter()
                    .map(|v| v.as_ref().map(|v| v.number))
                    .collect(),
            });
        }
        if let Some(detail) = mismatch {
            return Err(Violation::WrongResponse {
                what: self.what(),
                detail,
            });
        }
        Err(self
            .torn()
            .unwrap_or_else(|| Violation::Unknown { what: self.what() }))
    }

    fn matches(&self, version: &Version) -> Result<(), String> {
        let seen = self.seen;
        let size = version.body.len() as u64;
        let (Some(meta), Some(range)) = (&seen.meta, &seen.range) else {
            return Err("a response without metadata".into());
        };
        if meta.size != size {
            return Err(format!("size {} of an object of {size} bytes", meta.size));
        }
        if meta.e_tag != version.meta.e_tag {
            return Err(format!(
                "ETag {:?}, expected {:?}",
                meta.e_tag, version.meta.e_tag
            ));
        }
        if meta.last_modified != version.meta.last_modified
            && version.meta.last_modified != super::no_time()
        {
            return Err(format!(
                "last modified {}, expected {}",
                meta.last_modified, version.meta.last_modified
            ));
        }
        if let Err(error) = seen.options.check_preconditions(&version.meta) {
            return Err(format!("a body although a precondition fails: {error}"));
        }
        if seen.options.head {
            return if seen.body.is_empty() {
                Ok(())
            } else {
                Err("a body in response to HEAD".into())
            };
        }
        let wanted = resolve(seen.options.range.as_ref(), size);
        if wanted.as_ref() != Some(range) {
            return Err(format!("range {range:?}, expected {wanted:?}"));
        }
        if !self.is_prefix(version) {
            return Err("other bytes".into());
        }
        let length = range.end - range.start;
        if matches!(seen.outcome, Outcome::Complete) && seen.body.len() as u64 != length {
            return Err(format!(
                "{} bytes, announced were {length}",
                seen.body.len()
            ));
        }
        Ok(())
    }

    fn is_prefix(&self, version: &Version) -> bool {
        let Some(range) = &self.seen.range else {
            return false;
        };
        let rest = usize::try_from(range.start)
            .ok()
            .and_then(|start| version.body.get(start..));
        rest.is_some_and(|rest| rest.starts_with(&self.seen.body))
    }

    /// Finds two versions of which one has the first bytes and the other the next ones.
    fn torn(&self) -> Option<Violation> {
        let start = usize::try_from(self.seen.range.as_ref()?.start).ok()?;
        let body = &self.seen.body;
        let versions: Vec<_> = self
            .history
            .states
            .iter()
            .filter_map(|state| state.version.as_ref())
            .collect();
        let common = |version: &Version| {
            let rest = version.body.get(start..).unwrap_or_default();
            rest.iter().zip(body).take_while(|(a, b)| a == b).count()
        };
        let first = versions.iter().max_by_key(|version| common(version))?;
        let split = common(first);
        let second = versions.iter().find(|version| {
            let rest = version.body.get(start + split..).unwrap_or_default();
            split < body.len() && rest.starts_with(&body[split..body.len().min(split + 16)])
        })?;
        Some(Violation::Torn {
            what: self.what(),
            first: first.number,
            second: second.number,
            at: (start + split) as u64,
        })
    }

    /// Checks that a fault, a change of the object or the request explains the error.
    fn error(&self, error: &Error) -> Result<Verdict, Violation> {
        let seen = self.seen;
        let faults = || {
            self.history.faults(
                seen.start
                    .at
                    .checked_sub(FAULT_MEMORY)
                    .unwrap_or(seen.start.at),
                seen.end,
            )
        };
        let broken = || faults().any(FaultKind::can_fail_reads);
        let changes = self
            .history
            .changes(seen.start, seen.end, self.rules.window);
        let condition = |wanted: fn(&Error) -> bool| {
            let fails = |version: &Arc<Version>| {
                seen.options
                    .check_preconditions(&version.meta)
                    .is_err_and(|e| wanted(&e))
            };
            self.visible.iter().flatten().any(fails)
        };
        let verdict = match (error, EngineError::find(error)) {
            (_, Some(EngineError::SlowDown { .. })) => {
                self.rules.tight_memory.then_some(Verdict::Explained)
            }
            (_, Some(EngineError::VersionChanged { .. })) => {
                // Before the response began, the engine retries after one change; the error needs two changes or a fault.
                // Within the body one change is enough.
                let min_changes = if seen.range.is_some() { 1 } else { 2 };
                (changes >= min_changes || faults().any(FaultKind::resembles_change))
                    .then_some(Verdict::Explained)
            }
            (_, Some(EngineError::RangeNotSatisfiable { length, .. })) => {
                let unsatisfiable = |version: &Arc<Version>| {
                    let size = version.body.len() as u64;
                    // Over HTTP no range of an empty object is satisfiable, not even a suffix.
                    let empty = size == 0 || resolve(seen.options.range.as_ref(), size).is_none();
                    size == *length && seen.options.range.is_some() && empty
                };
                self.visible
                    .iter()
                    .flatten()
                    .any(unsatisfiable)
                    .then_some(Verdict::Range)
            }
            (_, Some(EngineError::DigestMismatch { .. })) => faults()
                .any(|kind| kind == FaultKind::Flip)
                .then_some(Verdict::Explained),
            (_, Some(_)) => broken().then_some(Verdict::Explained),
            (Error::NotFound { .. }, _) => {
                let absent = self.visible.iter().any(Option::is_none);
                let lied = faults().any(|kind| kind == FaultKind::NotFound);
                absent
                    .then_some(Verdict::Absent)
                    .or(lied.then_some(Verdict::Explained))
            }
            (Error::NotModified { .. }, _) => {
                condition(|e| matches!(e, Error::NotModified { .. })).then_some(Verdict::Condition)
            }
            (Error::Precondition { .. }, _) => {
                condition(|e| matches!(e, Error::Precondition { .. })).then_some(Verdict::Condition)
            }
            _ => broken().then_some(Verdict::Explained),
        };
        verdict.ok_or_else(|| Violation::WrongError {
            what: self.what(),
            error: error.to_string(),
        })
    }
}

fn is_digest_mismatch(error: &Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::DigestMismatch { .. })
    )
}

/// Resolves a requested range of an object of `size` bytes; `None` if it is not satisfiable.
fn resolve(requested: Option<&GetRange>, size: u64) -> Option<Range<u64>> {
    match requested {
        None => Some(0..size),
        Some(range) => range.as_range(size).ok(),
    }
}
