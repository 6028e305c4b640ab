//! The layer that times each request of an origin and counts its errors.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{Attributes, Error, GetResult, GetResultPayload, PutOptions, Result};

use super::health::{OriginErrorKind, OriginHealth};
use super::interface::Origin;
use super::layer::{Layer, OriginRequest, Policy};
use super::stated_headers::TextAttributes;
use super::write_mark::WriteMark;

/// Age at which a request that is dropped without a response counts as timed out. One dropped earlier lost to a hedged
/// request, or its client left.
const TIMED_OUT: Duration = Duration::from_secs(10);

/// Records the latency of a request. Called once a request, by any thread.
pub type NoteRequest = Arc<dyn Fn(OriginRequest, Duration) + Send + Sync>;

/// Counters of one origin, and where latencies go.
struct Meter {
    health: Arc<OriginHealth>,
    note: NoteRequest,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// A request in flight.
struct Attempt<'a> {
    meter: &'a Meter,
    request: OriginRequest,
    sent: Instant,
    ended: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended && self.sent.elapsed() >= TIMED_OUT {
            let text = format!("no response in {} s", self.sent.elapsed().as_secs());
            let now = SystemTime::now();
            self.meter
                .health
                .failed(OriginErrorKind::Timeout, text, now);
        }
    }
}

impl Meter {
    /// Measures one request from its start to its response.
    async fn measure<T>(
        &self,
        request: OriginRequest,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut attempt = Attempt {
            meter: self,
            request,
            sent: Instant::now(),
            ended: false,
        };
        let result = work.await;
        attempt.ended = true;
        self.ended(attempt.request, attempt.sent, result.as_ref().err());
        result
    }

    fn ended(&self, request: OriginRequest, sent: Instant, error: Option<&Error>) {
        (self.note)(request, sent.elapsed());
        match error {
            // The response to a revalidation: the version is current.
            None | Some(Error::NotModified { .. }) => self.health.succeeded(),
            Some(error) => self.health.ended_with(error),
        }
    }
}

/// Measures the time to the first item of a stream, and counts its errors.
fn measured<T: Send + 'static>(
    meter: &Arc<Meter>,
    request: OriginRequest,
    items: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let (meter, mut sent) = (Arc::clone(meter), Some(Instant::now()));
    let items = items.inspect(move |item| {
        let error = item.as_ref().err();
        match (sent.take(), error) {
            (Some(sent), error) => meter.ended(request, sent, error),
            (None, Some(error)) => meter.health.ended_with(error),
            (None, None) => {}
        }
    });
    items.boxed()
}

/// Empty pieces of a body after which its task yields, so that limits of time are seen.
const EMPTY_PIECES: usize = 32;

/// Counts the errors of a response's body, and leaves empty pieces out: they are no progress.
fn counted(
    meter: &Arc<Meter>,
    mut body: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let meter = Arc::clone(meter);
    let mut empty = 0;
    let pieces = futures::stream::poll_fn(move |context| {
        loop {
            let piece = ready!(body.poll_next_unpin(context));
            match &piece {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Err(error)) => {
                    meter.health.ended_with(error);
                    return Poll::Ready(piece);
                }
                _ => return Poll::Ready(piece),
            }
            empty += 1;
            if empty % EMPTY_PIECES == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    });
    pieces.boxed()
}

/// An origin that measures each request and passes it on.
pub type Metered = Layer<SharedMeter>;

/// The policy of [`Metered`].
#[derive(Debug, Clone)]
pub struct SharedMeter(Arc<Meter>);

impl Metered {
    /// Wraps `origin`: errors are counted in `health`, latencies go to `note`.
    pub fn new(origin: Arc<dyn Origin>, health: Arc<OriginHealth>, note: NoteRequest) -> Self {
        Self::over(origin, SharedMeter(Arc::new(Meter { health, note })))
    }
}

impl Policy for SharedMeter {
    fn watch<T: Send>(
        &self,
        request: OriginRequest,
        sent: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        self.0.measure(request, sent)
    }

    fn watch_all<T: Send + 'static>(
        &self,
        request: OriginRequest,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        measured(&self.0, request, items)
    }

    /// Gives the client's metadata names that no mark has.
    fn write(&self, store: &dyn Origin, attributes: &mut Attributes) {
        if store.capabilities().keeps_marks {
            WriteMark::escape(attributes);
        }
    }

    fn put(&self, store: &dyn Origin, options: &mut PutOptions) {
        self.write(store, &mut options.attributes);
        if let Some(mark) = options.extensions.remove::<WriteMark>() {
            mark.add(&mut options.attributes);
        }
    }

    fn read(&self, store: &dyn Origin, mut response: GetResult) -> GetResult {
        if let Some(TextAttributes(texts)) = response.extensions.remove() {
            for (name, value) in &texts {
                response.attributes.insert(name.clone(), value.clone());
            }
        }
        if store.capabilities().keeps_marks {
            WriteMark::hide(&mut response);
        }
        #[allow(
            irrefutable_let_patterns,
            reason = "object_store's feature `fs` adds a variant"
        )]
        if let GetResultPayload::Stream(body) = response.payload {
            response.payload = GetResultPayload::Stream(counted(&self.0, body));
        }
        response
    }
}
