//! The answer to one GET or HEAD, with all that can be wrong with it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash::StatusError;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result};
use rand::RngExt as _;

use super::{Operation, Received, STORE, SimOrigin, World, not_found};
use crate::fault::Fault;
use crate::oracle::Version;

impl SimOrigin {
    pub(super) async fn answer(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let world = &self.world;
        let operation = if options.head {
            Operation::Head
        } else {
            Operation::Get
        };
        let pinned = options.if_match.is_some() || options.if_unmodified_since.is_some();
        let received = world.receive(operation, path, options.range.clone(), pinned);
        received.admit(world, path).await?;
        let version = world.oracle.current(path).ok_or_else(|| not_found(path))?;
        if !received.has(Fault::IgnorePrecondition) {
            check_preconditions(&options, &version.meta)?;
        }
        let range = if options.head {
            0..version.meta.size
        } else {
            answered_range(&received, options.range.as_ref(), version.meta.size)?
        };
        {
            let mut state = world.state.lock();
            let request = &mut state.log[received.index];
            request.version = Some(version.number);
            request.size = version.meta.size;
            request.answered = Some(range.clone());
        }
        let mut meta = version.meta.clone();
        if let Some(size) = world.state.lock().sizes.get(path) {
            meta.size = *size;
        }
        if received.has(Fault::WrongTotal) && pinned {
            meta.size += 17;
        }
        let payload = if options.head {
            stream::empty().boxed()
        } else {
            body(world, received, &version, &range)
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            attributes: version.attributes.clone(),
            meta,
            range,
            extensions: Default::default(),
        })
    }
}

/// As RFC 9110 has it: `If-Match` compares strongly, so a weak or absent ETag never matches.
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

/// The range that is answered: the one asked, unless a fault makes it another. A range that starts
/// beyond the end, and any range of an empty object, is a 416 as from S3.
fn answered_range(received: &Received, asked: Option<&GetRange>, size: u64) -> Result<Range<u64>> {
    let Some(asked) = asked else {
        return Ok(0..size);
    };
    if received.has(Fault::RangeIgnored) {
        return Ok(0..size);
    }
    let range = asked.as_range(size).ok().filter(|range| !range.is_empty());
    let range = range.ok_or_else(|| Error::Generic {
        store: STORE,
        source: Box::new(StatusError::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            format!("{asked} of {size} bytes"),
        )),
    })?;
    if received.has(Fault::OtherRange) && range.end - range.start > 1 {
        return Ok(range.start + 1..range.end);
    }
    Ok(range)
}

/// What a body still has to do.
enum Step {
    Send(Bytes),
    Change,
    Reset,
    Stall,
    /// Ends early, and says it is complete.
    Cut,
}

fn body(
    world: &Arc<World>,
    received: Received,
    version: &Version,
    range: &Range<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let steps = steps(world, &received, version, range);
    let start = (
        Arc::clone(world),
        received.index,
        version.meta.location.clone(),
        steps,
    );
    stream::unfold(start, |(world, index, path, mut steps)| async move {
        loop {
            let Some(step) = steps.pop_front() else {
                world.state.lock().log[index].ended = true;
                return None;
            };
            match step {
                Step::Send(bytes) => {
                    let pause = {
                        let mut state = world.state.lock();
                        let state = &mut *state;
                        state.weather.pause(&mut state.rng)
                    };
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    world.state.lock().log[index].sent += bytes.len() as u64;
                    return Some((Ok(bytes), (world, index, path, steps)));
                }
                Step::Change => world.change(&path),
                Step::Stall => std::future::pending().await,
                Step::Cut => return None,
                Step::Reset => {
                    steps.clear();
                    let error = Error::Generic {
                        store: STORE,
                        source: "connection reset by peer".into(),
                    };
                    return Some((Err(error), (world, index, path, steps)));
                }
            }
        }
    })
    .boxed()
}

/// Cuts the body into pieces, with the faults between them at their offsets.
fn steps(
    world: &World,
    received: &Received,
    version: &Version,
    range: &Range<u64>,
) -> VecDeque<Step> {
    let at = |offset: u64| usize::try_from(offset).expect("objects here fit memory");
    let mut rest = version.body.slice(at(range.start)..at(range.end));
    for fault in &received.faults {
        if let Fault::Long { by } = fault {
            rest = [rest, vec![0xEE; at(*by)].into()].concat().into();
        }
    }
    let mut marks: Vec<(usize, Step)> = (received.faults.iter())
        .filter_map(|fault| match *fault {
            Fault::Reset { after } => Some((at(after), Step::Reset)),
            Fault::Short { after } => Some((at(after), Step::Cut)),
            Fault::Stall { after } => Some((at(after), Step::Stall)),
            Fault::ChangeDuring { after } => Some((at(after), Step::Change)),
            _ => None,
        })
        .collect();
    marks.sort_by_key(|(offset, _)| *offset);
    let (mut steps, mut sent) = (VecDeque::new(), 0);
    let mut marks = marks.into_iter().peekable();
    let mut state = world.state.lock();
    loop {
        while let Some((_, step)) = marks.next_if(|(offset, _)| *offset == sent && !rest.is_empty())
        {
            steps.push_back(step);
        }
        if rest.is_empty() {
            return steps;
        }
        let piece = state.weather.piece.clone();
        let piece = if piece.is_empty() {
            piece.start
        } else {
            state.rng.random_range(piece)
        };
        let until_mark = marks.peek().map_or(usize::MAX, |(offset, _)| offset - sent);
        let piece = piece.max(1).min(rest.len()).min(until_mark);
        steps.push_back(Step::Send(rest.split_to(piece)));
        sent += piece;
    }
}
