//! Responses to GET and HEAD, with their faults.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash::StatusError;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::StatusCode;
use object_store::path::Path;
use object_store::{
    Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result,
};
use rand::RngExt as _;

use super::{Operation, PendingRequest, STORE, Shared, SimOrigin, not_found};
use crate::fault::Fault;
use crate::oracle::Version;

impl SimOrigin {
    pub(super) async fn respond(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let shared = &self.shared;
        let operation = if options.head {
            Operation::Head
        } else {
            Operation::Get
        };
        let pinned = options.if_match.is_some() || options.if_unmodified_since.is_some();
        let pending = shared.receive(operation, path, options.range.clone(), pinned);
        pending.delay_or_fail(shared, path).await?;
        let version = shared.oracle.current(path).ok_or_else(|| not_found(path))?;
        if !pending.has(Fault::IgnorePrecondition) {
            check_preconditions(&options, &version.meta)?;
        }
        let range = if options.head {
            0..version.meta.size
        } else {
            range_to_send(&pending, options.range.as_ref(), version.meta.size)?
        };
        {
            let mut state = shared.state.lock();
            let request = &mut state.log[pending.index];
            request.version = Some(version.number);
            request.size = version.meta.size;
            request.sent_range = Some(range.clone());
        }
        let mut meta = version.meta.clone();
        if let Some(size) = shared.state.lock().sizes.get(path) {
            meta.size = *size;
        }
        if pending.has(Fault::WrongTotal) && pinned {
            meta.size += 17;
        }
        let payload = if options.head {
            stream::empty().boxed()
        } else {
            body(shared, pending, &version, &range)
        };
        let mut extensions = Extensions::new();
        if let Some(digest) = shared.state.lock().digest {
            extensions.insert(digest(&version.body));
        }
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            attributes: version.attributes.clone(),
            meta,
            range,
            extensions,
        })
    }
}

/// Checks preconditions as RFC 9110 requires: `If-Match` compares strongly, so a weak or absent ETag never matches.
fn check_preconditions(options: &GetOptions, meta: &ObjectMeta) -> Result<()> {
    let strong = meta
        .e_tag
        .as_ref()
        .is_some_and(|e_tag| !e_tag.starts_with("W/"));
    if options
        .if_match
        .as_ref()
        .is_some_and(|wanted| wanted != "*")
        && !strong
    {
        return Err(Error::Precondition {
            path: meta.location.to_string(),
            source: "If-Match needs a strong ETag".into(),
        });
    }
    options.check_preconditions(meta)
}

/// Returns the range to send: the requested one, unless a fault changes it. A range that starts after the end, and any range
/// of an empty object, is a 416 as on S3.
fn range_to_send(
    pending: &PendingRequest,
    requested: Option<&GetRange>,
    size: u64,
) -> Result<Range<u64>> {
    let Some(requested) = requested else {
        return Ok(0..size);
    };
    if pending.has(Fault::IgnoreRange) {
        return Ok(0..size);
    }
    let range = requested
        .as_range(size)
        .ok()
        .filter(|range| !range.is_empty());
    let range = range.ok_or_else(|| Error::Generic {
        store: STORE,
        source: Box::new(StatusError::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            format!("{requested} of {size} bytes"),
        )),
    })?;
    if pending.has(Fault::WrongRange) && range.end - range.start > 1 {
        return Ok(range.start + 1..range.end);
    }
    Ok(range)
}

/// Next step of a response body.
enum BodyStep {
    Send(Bytes),
    Change,
    Reset,
    Stall,
    /// Ends the body early without an error.
    Cut,
}

fn body(
    shared: &Arc<Shared>,
    pending: PendingRequest,
    version: &Version,
    range: &Range<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let steps = steps(shared, &pending, version, range);
    let start = (
        Arc::clone(shared),
        pending.index,
        version.meta.location.clone(),
        steps,
    );
    stream::unfold(start, |(shared, index, path, mut steps)| async move {
        loop {
            let Some(step) = steps.pop_front() else {
                shared.state.lock().log[index].complete = true;
                return None;
            };
            match step {
                BodyStep::Send(bytes) => {
                    let pause = {
                        let mut state = shared.state.lock();
                        let state = &mut *state;
                        state.fault_profile.pause(&mut state.rng)
                    };
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    shared.state.lock().log[index].sent += bytes.len() as u64;
                    return Some((Ok(bytes), (shared, index, path, steps)));
                }
                BodyStep::Change => shared.change(&path),
                BodyStep::Stall => std::future::pending().await,
                BodyStep::Cut => return None,
                BodyStep::Reset => {
                    steps.clear();
                    let error = Error::Generic {
                        store: STORE,
                        source: "connection reset by peer".into(),
                    };
                    return Some((Err(error), (shared, index, path, steps)));
                }
            }
        }
    })
    .boxed()
}

/// Splits the body into pieces, with the faults at their offsets between them.
fn steps(
    shared: &Shared,
    pending: &PendingRequest,
    version: &Version,
    range: &Range<u64>,
) -> VecDeque<BodyStep> {
    let at = |offset: u64| usize::try_from(offset).expect("objects here fit memory");
    let mut rest = version.body.slice(at(range.start)..at(range.end));
    for fault in &pending.faults {
        match *fault {
            Fault::Long { by } => rest = [rest, vec![0xEE; at(by)].into()].concat().into(),
            Fault::Flip { at: offset } if at(offset) < rest.len() => {
                let mut flipped = rest.to_vec();
                flipped[at(offset)] ^= 1;
                rest = flipped.into();
            }
            _ => {}
        }
    }
    let mut marks: Vec<(usize, BodyStep)> = (pending.faults.iter())
        .filter_map(|fault| match *fault {
            Fault::Reset { after } => Some((at(after), BodyStep::Reset)),
            Fault::Short { after } => Some((at(after), BodyStep::Cut)),
            Fault::Stall { after } => Some((at(after), BodyStep::Stall)),
            Fault::ChangeDuring { after } => Some((at(after), BodyStep::Change)),
            _ => None,
        })
        .collect();
    marks.sort_by_key(|(offset, _)| *offset);
    let (mut steps, mut sent) = (VecDeque::new(), 0);
    let mut marks = marks.into_iter().peekable();
    let mut state = shared.state.lock();
    loop {
        while let Some((_, step)) = marks.next_if(|(offset, _)| *offset == sent && !rest.is_empty())
        {
            steps.push_back(step);
        }
        if rest.is_empty() {
            return steps;
        }
        let piece = state.fault_profile.piece.clone();
        let piece = if piece.is_empty() {
            piece.start
        } else {
            state.rng.random_range(piece)
        };
        let until_mark = marks.peek().map_or(usize::MAX, |(offset, _)| offset - sent);
        let piece = piece.max(1).min(rest.len()).min(until_mark);
        steps.push_back(BodyStep::Send(rest.split_to(piece)));
        sent += piece;
    }
}
