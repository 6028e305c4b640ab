//! Bodies of servers that send the whole object for any range.
//!
//! The requested range is extracted from such a body. The rest is not discarded: the body is parked at its position,
//! unread, and the next request for later bytes of the same version continues it. So a sequential reader costs one
//! GET, or one per concurrent request.

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

use crate::error::OriginError;
use crate::interface::unmodified_since;
use crate::limits::MAX_PARKED_BODIES;
use crate::object_head::Head;

/// Time for which a body is parked for a reader that continues; less than servers commonly wait for a client that
/// reads nothing.
const PARKED_FOR: Duration = Duration::from_secs(10);

/// The response body of a whole object.
pub(super) struct WholeBody {
    pub(super) head: Head,
    body: BoxStream<'static, Result<Bytes>>,
    /// Received already; follows `position`.
    held: Bytes,
    /// Offset of the next byte.
    position: u64,
}

impl WholeBody {
    pub(super) fn new(head: Head, body: BoxStream<'static, Result<Bytes>>) -> Self {
        Self {
            head,
            body,
            held: Bytes::new(),
            position: 0,
        }
    }

    /// Returns whether a conditional request may be served from this body: it must name this body's validator.
    fn serves(&self, path: &Path, options: &GetOptions) -> bool {
        let meta = &self.head.meta;
        let tied = options.if_match.is_some() || options.if_unmodified_since.is_some();
        let same = |requested: &Option<String>| requested.is_none() || *requested == meta.e_tag;
        let unchanged = options
            .if_unmodified_since
            .is_none_or(|date| date == unmodified_since(meta.last_modified));
        tied && meta.location == *path && same(&options.if_match) && unchanged
    }

    /// Whether there are bytes left that a conditional request could use.
    fn is_reusable(&self) -> bool {
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

impl fmt::Debug for WholeBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WholeBody({} at {})",
            self.head.meta.location, self.position
        )
    }
}

/// Parked bodies, for readers that continue.
#[derive(Debug, Default)]
pub(super) struct Parked(Mutex<VecDeque<(Instant, WholeBody)>>);

impl Parked {
    /// Returns the body nearest before `start` that matches these options.
    pub(super) fn take(&self, path: &Path, start: u64, options: &GetOptions) -> Option<WholeBody> {
        let mut parked = self.0.lock();
        let fits = |whole: &WholeBody| whole.position <= start && whole.serves(path, options);
        let (at, _) = parked
            .iter()
            .enumerate()
            .filter(|(_, (_, whole))| fits(whole))
            .max_by_key(|(_, (_, whole))| whole.position)?;
        parked.remove(at).map(|(_, whole)| whole)
    }

    fn park(self: &Arc<Self>, whole: WholeBody) {
        // Without a runtime no reader continues, and the body would never be dropped.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let oldest = {
            let mut parked = self.0.lock();
            parked.push_back((Instant::now(), whole));
            (parked.len() > MAX_PARKED_BODIES).then(|| parked.pop_front())
        };
        // Outside the lock: dropping it closes its connection.
        drop(oldest);
        let parked = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(PARKED_FOR).await;
            if let Some(parked) = parked.upgrade() {
                parked.drop_expired();
            }
        });
    }

    /// Drops the bodies that were parked long enough.
    fn drop_expired(&self) {
        let mut parked = self.0.lock();
        let waits = |since: &Instant| since.elapsed() < PARKED_FOR;
        let gone = parked.iter().position(|(since, _)| waits(since));
        let gone = gone.unwrap_or(parked.len());
        let gone: Vec<_> = parked.drain(..gone).collect();
        drop(parked);
        drop(gone);
    }
}

/// A range extracted from a whole body. Dropping it parks the rest.
#[derive(Debug)]
pub(super) struct Slice {
    /// `None` once it failed.
    whole: Option<WholeBody>,
    range: Range<u64>,
    parked: Arc<Parked>,
}

impl Slice {
    /// `range` must not begin before the body's position.
    pub(super) fn new(whole: WholeBody, range: Range<u64>, parked: Arc<Parked>) -> Self {
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
                    return this.fail(OriginError::bad_response(object, detail));
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
            && whole.is_reusable()
        {
            self.parked.park(whole);
        }
    }
}
