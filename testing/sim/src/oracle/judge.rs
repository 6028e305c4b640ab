//! May this reader have seen that?

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bywash::EngineError;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta};

use super::{History, Moment, Oracle, Version, Violation};
use crate::fault::FaultKind;

/// How long after a fault a reader may still get the error it caused: loads are shared, and one
/// may have been failing for this long (longer than any retry deadline) when a reader joined it.
const FAULT_MEMORY: Duration = Duration::from_secs(300);

/// How a read ended.
#[derive(Debug)]
pub enum Outcome {
    /// The body ended without error.
    Complete,
    /// The reader left after the bytes it has.
    Left,
    /// With an error, before or within the body.
    Failed(Error),
    /// Not at all.
    Hung,
}

/// What one reader saw.
#[derive(Debug)]
pub struct Observation {
    /// The object.
    pub path: Path,
    /// What was asked.
    pub options: GetOptions,
    /// Before the read began.
    pub start: Moment,
    /// After it ended.
    pub end: Moment,
    /// What the answer said of the object, if there was one.
    pub meta: Option<ObjectMeta>,
    /// The range the answer said its body is.
    pub range: Option<Range<u64>>,
    /// The bytes that came.
    pub body: Vec<u8>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Observation {
    /// A read that begins now.
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
            outcome: Outcome::Left,
        }
    }
}

/// What the engine was told, which decides what a reader may see.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long an answer of the origin may be trusted; `None`: for ever.
    pub window: Option<Duration>,
    /// Whether memory is so small that SlowDown is a right answer.
    pub tight_memory: bool,
}

/// What a read was, when it was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Bytes of this version, all that were asked or, for a reader that left, the first of them.
    Read(u64),
    /// The reader left before there was an answer.
    Nothing,
    /// A right "no such object".
    Absent,
    /// A right answer to a precondition: not modified, or failed.
    Condition,
    /// A right "range cannot be satisfied".
    Range,
    /// An error that faults or changes of the object excuse.
    Excused,
}

impl Oracle {
    /// Judges one read.
    ///
    /// # Errors
    ///
    /// The promise it broke.
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
            Outcome::Left if seen.meta.is_none() => Ok(Verdict::Nothing),
            Outcome::Complete | Outcome::Left => case.bytes(),
            // What came before the error must have been right as well.
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
        let (range_asked, head) = (options.range.as_ref(), options.head);
        let e_tag = meta.as_ref().map(|meta| (meta.e_tag.as_deref(), meta.size));
        format!(
            "{path} {} asked {range_asked:?}, answered {range:?} of {e_tag:?}, {} bytes, ticks {}..{}",
            if head { "HEAD" } else { "GET" },
            body.len(),
            start.tick,
            end.tick
        )
    }

    /// The bytes and the metadata are those of one visible version.
    fn bytes(&self) -> Result<Verdict, Violation> {
        let mut complaint = None;
        for version in self.visible.iter().flatten() {
            match self.matches(version) {
                Ok(()) => return Ok(Verdict::Read(version.number)),
                // The version whose bytes they are has the complaint worth reading.
                Err(detail) if self.is_prefix(version) => complaint = Some(detail),
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
                saw: stale.number,
                allowed: self
                    .visible
                    .iter()
                    .map(|v| v.as_ref().map(|v| v.number))
                    .collect(),
            });
        }
        if let Some(detail) = complaint {
            return Err(Violation::WrongAnswer {
                what: self.what(),
                detail,
            });
        }
        Err(self
            .torn()
            .unwrap_or_else(|| Violation::Invented { what: self.what() }))
    }

    fn matches(&self, version: &Version) -> Result<(), String> {
        let seen = self.seen;
        let size = version.body.len() as u64;
        let (Some(meta), Some(range)) = (&seen.meta, &seen.range) else {
            return Err("an answer without metadata".into());
        };
        if meta.size != size {
            return Err(format!("size {} of an object of {size} bytes", meta.size));
        }
        if meta.e_tag != version.meta.e_tag {
            return Err(format!(
                "ETag {:?}, is {:?}",
                meta.e_tag, version.meta.e_tag
            ));
        }
        if meta.last_modified != version.meta.last_modified
            && version.meta.last_modified != super::no_time()
        {
            return Err(format!(
                "last modified {}, is {}",
                meta.last_modified, version.meta.last_modified
            ));
        }
        if let Err(error) = seen.options.check_preconditions(&version.meta) {
            return Err(format!("a body in spite of a precondition: {error}"));
        }
        if seen.options.head {
            return if seen.body.is_empty() {
                Ok(())
            } else {
                Err("a body in answer to HEAD".into())
            };
        }
        let wanted = resolve(seen.options.range.as_ref(), size);
        if wanted.as_ref() != Some(range) {
            return Err(format!("range {range:?}, right is {wanted:?}"));
        }
        if !self.is_prefix(version) {
            return Err("other bytes".into());
        }
        let length = range.end - range.start;
        if matches!(seen.outcome, Outcome::Complete) && seen.body.len() as u64 != length {
            return Err(format!("{} bytes, {length} were promised", seen.body.len()));
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

    /// Two versions, one for the first bytes and one for the rest.
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

    /// Something the world did excuses the error.
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
        let broken = || faults().any(FaultKind::breaks);
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
                self.rules.tight_memory.then_some(Verdict::Excused)
            }
            (_, Some(EngineError::VersionChanged { .. })) => {
                // Before the answer began, one change is noticed and read around: it takes two, or an
                // origin that lies. Within the body there is no other way out.
                let least = if seen.range.is_some() { 1 } else { 2 };
                (changes >= least || faults().any(FaultKind::looks_changed))
                    .then_some(Verdict::Excused)
            }
            (_, Some(EngineError::RangeNotSatisfiable { length, .. })) => {
                let none = |version: &Arc<Version>| {
                    let size = version.body.len() as u64;
                    // No range of an empty object is satisfiable over HTTP, though a suffix names none of it.
                    let none = size == 0 || resolve(seen.options.range.as_ref(), size).is_none();
                    size == *length && seen.options.range.is_some() && none
                };
                self.visible
                    .iter()
                    .flatten()
                    .any(none)
                    .then_some(Verdict::Range)
            }
            (_, Some(_)) => broken().then_some(Verdict::Excused),
            (Error::NotFound { .. }, _) => {
                let absent = self.visible.iter().any(Option::is_none);
                let lied = faults().any(|kind| kind == FaultKind::NotFound);
                absent
                    .then_some(Verdict::Absent)
                    .or(lied.then_some(Verdict::Excused))
            }
            (Error::NotModified { .. }, _) => {
                condition(|e| matches!(e, Error::NotModified { .. })).then_some(Verdict::Condition)
            }
            (Error::Precondition { .. }, _) => {
                condition(|e| matches!(e, Error::Precondition { .. })).then_some(Verdict::Condition)
            }
            _ => broken().then_some(Verdict::Excused),
        };
        verdict.ok_or_else(|| Violation::WrongError {
            what: self.what(),
            error: error.to_string(),
        })
    }
}

/// The bytes of an object of `size` that `asked` means; `None` when it means none there are.
fn resolve(asked: Option<&GetRange>, size: u64) -> Option<Range<u64>> {
    match asked {
        None => Some(0..size),
        Some(range) => range.as_range(size).ok(),
    }
}
