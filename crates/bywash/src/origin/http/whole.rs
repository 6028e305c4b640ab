//! Bodies of servers that send the whole object whatever range is asked for.
//!
//! A range is cut out of such a body. What follows it is not thrown away: the body is parked where it stands, read no further,
//! and the next request for bytes behind that place of the same version goes on with it. So a reader that goes from block to
//! block costs one GET, or one for each of its requests in flight.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, Result};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::head::Head;
use crate::EngineError;
use crate::limits::MAX_PARKED_BODIES;

/// How long a body is kept for whoever reads on; less than servers commonly wait for a client that takes nothing.
const PARKED_FOR: Duration = Duration::from_secs(10);

/// A whole object on its way.
pub(super) struct Whole {
    pub(super) head: Head,
    body: BoxStream<'static, Result<Bytes>>,
    /// Came already, and belongs behind `position`.
    held: Bytes,
    /// The byte that comes next.
    position: u64,
}

impl Whole {
    pub(super) fn new(head: Head, body: BoxStream<'static, Result<Bytes>>) -> Self {
        Self {
            head,
            body,
            held: Bytes::new(),
            position: 0,
        }
    }

    /// Whether a request tied to a version may be answered with this body: it must name the validator that this one has.
    fn is_asked_for(&self, path: &Path, options: &GetOptions) -> bool {
        let meta = &self.head.meta;
        let tied = options.if_match.is_some() || options.if_unmodified_since.is_some();
        let same = |asked: &Option<String>| asked.is_none() || *asked == meta.e_tag;
        let unchanged = options
            .if_unmodified_since
            .is_none_or(|date| date == meta.last_modified);
        tied && meta.location == *path && same(&options.if_match) && unchanged
    }

    /// Whether anything is left that a request can be tied to.
    fn can_be_asked_for(&self) -> bool {
        let meta = &self.head.meta;
        let has_validator = meta.e_tag.is_some() || meta.last_modified.timestamp() > 0;
        has_validator && self.position < meta.size
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if !self.held.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.held))));
        }
        self.body.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Whole({} at {})", self.head.meta.location, self.position)
    }
}

/// Bodies that wait for whoever reads on.
#[derive(Debug, Default)]
pub(super) struct Parked(Mutex<VecDeque<(Instant, Whole)>>);

impl Parked {
    /// The body that stands nearest before `start` and may answer these options.
    pub(super) fn take(&self, path: &Path, start: u64, options: &GetOptions) -> Option<Whole> {
        let mut parked = self.0.lock();
        let fits = |whole: &Whole| whole.position <= start && whole.is_asked_for(path, options);
        let (at, _) = parked
            .iter()
            .enumerate()
            .filter(|(_, (_, whole))| fits(whole))
            .max_by_key(|(_, (_, whole))| whole.position)?;
        parked.remove(at).map(|(_, whole)| whole)
    }

    fn park(self: &Arc<Self>, whole: Whole) {
        // Without a runtime nobody reads on, and nobody could let it go.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let oldest = {
            let mut parked = self.0.lock();
            parked.push_back((Instant::now(), whole));
            (parked.len() > MAX_PARKED_BODIES).then(|| parked.pop_front())
        };
        // Closes its connection, so outside the lock.
        drop(oldest);
        let parked = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(PARKED_FOR).await;
            if let Some(parked) = parked.upgrade() {
                parked.let_go();
            }
        });
    }

    /// Drops the bodies that waited long enough.
    fn let_go(&self) {
        let mut parked = self.0.lock();
        let waits = |since: &Instant| since.elapsed() < PARKED_FOR;
        let gone = parked.iter().position(|(since, _)| waits(since));
        let gone = gone.unwrap_or(parked.len());
        let gone: Vec<_> = parked.drain(..gone).collect();
        drop(parked);
        drop(gone);
    }
}

/// A range cut out of a whole body. Dropped, it parks what follows.
#[derive(Debug)]
pub(super) struct Slice {
    /// `None` once it failed.
    whole: Option<Whole>,
    range: Range<u64>,
    parked: Arc<Parked>,
}

impl Slice {
    /// `range` does not begin before the body's position.
    pub(super) fn new(whole: Whole, range: Range<u64>, parked: Arc<Parked>) -> Self {
        Self {
            whole: Some(whole),
            range,
            parked,
        }
    }

    fn fail(&mut self, error: object_store::Error) -> Poll<Option<Result<Bytes>>> {
        self.whole = None;
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for Slice {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let Some(whole) = &mut this.whole else {
                return Poll::Ready(None);
            };
            if whole.position >= this.range.end {
                return Poll::Ready(None);
            }
            let mut piece = match ready!(whole.poll_piece(context)) {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return this.fail(error),
                None => {
                    let detail = format!("the body ended at byte {}", whole.position);
                    let object = whole.head.meta.location.to_string();
                    return this.fail(EngineError::BadAnswer { object, detail }.into());
                }
            };
            let left = this.range.end - whole.position;
            if piece.len() as u64 > left {
                whole.held = piece.split_off(left as usize);
            }
            let before = this.range.start.saturating_sub(whole.position);
            whole.position += piece.len() as u64;
            if (piece.len() as u64) <= before {
                continue;
            }
            return Poll::Ready(Some(Ok(piece.split_off(before as usize))));
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        if let Some(whole) = self.whole.take()
            && whole.can_be_asked_for()
        {
            self.parked.park(whole);
        }
    }
}
