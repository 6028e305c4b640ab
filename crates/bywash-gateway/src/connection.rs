//! State of a connection: its phase with a deadline, and the bytes of unfinished request heads.
//!
//! A head for which there is no memory gets a response, as a request without memory does: a client
//! that is cut does not learn that it may send the request again.

mod head;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bywash::traffic::{ConnectionEnd, Traffic};
use bywash::{ByteCharge, ByteLimit, Engine};
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use self::head::{Head, head_length};
use crate::config::Limits;
use crate::limits::MIN_RECLAIM_IDLE;

/// Phase of a connection. In all phases but `Busy` it can be closed without failing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Phase {
    /// Connected; no byte of a request has arrived.
    Fresh = 0,
    /// A request head is arriving.
    Head = 1,
    /// A request is being served.
    Busy = 2,
    /// Between two requests.
    Idle = 3,
    /// Selected to be closed.
    Closing = 4,
}

/// Bits of the phase in [`Connection::state`]; the other bits are its start time.
const PHASE_BITS: u32 = 3;

/// Returns an endpoint's response to a head for which there is no memory.
pub(crate) type NoRoom = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Bytes of all unfinished heads.
pub(crate) struct HeadBytes {
    bytes: Arc<ByteLimit>,
    no_room: NoRoom,
    /// Counts rejected heads.
    traffic: Option<Arc<Traffic>>,
}

impl HeadBytes {
    pub(crate) fn new(
        limit: usize,
        engine: Engine,
        no_room: NoRoom,
        traffic: Option<Arc<Traffic>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            bytes: ByteLimit::new(engine, limit as u64),
            no_room,
            traffic,
        })
    }

    /// Charges `bytes` if they fit the limit and the budget. Never waits.
    fn try_charge(&self, bytes: usize) -> Option<ByteCharge> {
        let charge = self.bytes.try_charge(bytes as u64);
        if charge.is_none()
            && let Some(traffic) = &self.traffic
        {
            traffic.note_connection(ConnectionEnd::HeadsFull);
        }
        charge
    }
}

/// State of one connection, shared by its socket, its responses and the accept loop.
///
/// Written by the connection's own task, except for `Closing`, which the accept loop sets by a compare-and-swap. All
/// accesses are relaxed: nothing else is published through it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Phase, and its start in microseconds from `origin`.
    state: AtomicU64,
    origin: Instant,
    /// The idle phase as it began when the last response's body was dropped, or 0. The connection
    /// enters it once the buffered rest is flushed. Its start is before the client can have read
    /// the response: of two idle connections, the one whose response ended first is idle longest.
    response_over: AtomicU64,
    /// Wakes the connection's task to close it.
    waker: AtomicWaker,
}

impl Connection {
    /// State of a connection accepted now, by a server started at `origin`.
    pub(crate) fn new(origin: Instant) -> Arc<Self> {
        let connection = Self {
            state: AtomicU64::new(0),
            origin,
            response_over: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        };
        connection.enter(Phase::Fresh);
        Arc::new(connection)
    }

    fn pack(&self, phase: Phase) -> u64 {
        let micros = self.origin.elapsed().as_micros() as u64;
        micros << PHASE_BITS | phase as u64
    }

    fn phase(&self) -> (Phase, Instant) {
        let state = self.state.load(Relaxed);
        let phase = match state & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Fresh,
            1 => Phase::Head,
            2 => Phase::Busy,
            3 => Phase::Idle,
            _ => Phase::Closing,
        };
        (
            phase,
            self.origin + Duration::from_micros(state >> PHASE_BITS),
        )
    }

    /// Begins a phase, unless the connection was selected to be closed.
    fn enter(&self, phase: Phase) -> bool {
        self.enter_packed(self.pack(phase))
    }

    fn enter_packed(&self, next: u64) -> bool {
        let update = self.state.fetch_update(Relaxed, Relaxed, |state| {
            (state & ((1 << PHASE_BITS) - 1) != Phase::Closing as u64).then_some(next)
        });
        update.is_ok()
    }

    /// The TLS handshake ended: the deadline of the first head begins.
    pub(crate) fn handshake_ends(&self) {
        self.enter(Phase::Fresh);
    }

    /// A request's head is complete.
    pub(crate) fn request_begins(&self) {
        self.response_over.store(0, Relaxed);
        self.enter(Phase::Busy);
    }

    /// A response's body was dropped: all of it is buffered, or it was cancelled.
    pub(crate) fn response_ends(&self) {
        self.response_over.store(self.pack(Phase::Idle), Relaxed);
    }

    fn flushed(&self) {
        let idle = self.response_over.swap(0, Relaxed);
        if idle != 0 {
            self.enter_packed(idle);
        }
    }

    /// Returns when the connection's phase began, if it serves no request and has not done so for
    /// [`MIN_RECLAIM_IDLE`].
    pub(crate) fn reclaimable(&self) -> Option<Instant> {
        let (phase, since) = self.phase();
        let idle = matches!(phase, Phase::Fresh | Phase::Head | Phase::Idle);
        (idle && since.elapsed() >= MIN_RECLAIM_IDLE).then_some(since)
    }

    /// Selects the connection to be closed if it still serves no request. Returns whether it was selected.
    pub(crate) fn reclaim(&self) -> bool {
        let state = self.state.load(Relaxed);
        if self.reclaimable().is_none() {
            return false;
        }
        let closing = self.pack(Phase::Closing);
        let swap = self
            .state
            .compare_exchange(state, closing, Relaxed, Relaxed);
        if swap.is_ok() {
            self.waker.wake();
        }
        swap.is_ok()
    }

    /// Whether the connection is to be closed; wakes `cx` when it is.
    pub(crate) fn poll_closing(&self, cx: &Context<'_>) -> bool {
        self.waker.register(cx.waker());
        self.phase().0 == Phase::Closing
    }
}

/// Records the end of a response when dropped.
#[derive(Debug)]
pub(crate) struct ResponseGuard(pub(crate) Arc<Connection>);

/// A response body that reports its end to its connection.
#[derive(Debug)]
pub(crate) struct ConnectionBody<B> {
    pub(crate) body: B,
    pub(crate) _guard: ResponseGuard,
}

impl<B: http_body::Body + Unpin> http_body::Body for ConnectionBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.response_ends();
    }
}

/// A response to a head, written instead of reading the rest of it.
struct Refusal {
    response: Vec<u8>,
    written: usize,
}

/// A socket that enforces deadlines of request heads and counts the bytes of unfinished ones.
pub(crate) struct HeadGuard<S> {
    io: S,
    connection: Arc<Connection>,
    heads: Arc<HeadBytes>,
    /// Max time from the connection, or from a head's first byte, to the head's end.
    head_time: Duration,
    /// Max time between two requests.
    idle_time: Duration,
    head: Head,
    refusal: Option<Refusal>,
    /// Set once the connection's last response is sent, maybe before its whole request was read.
    unread: Arc<AtomicBool>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> HeadGuard<S> {
    pub(crate) fn new(
        io: S,
        connection: Arc<Connection>,
        heads: Arc<HeadBytes>,
        unread: Arc<AtomicBool>,
        limits: &Limits,
    ) -> Self {
        Self {
            io,
            connection,
            heads,
            head_time: limits.head,
            idle_time: limits.idle,
            head: Head::default(),
            refusal: None,
            unread,
            timer: None,
        }
    }

    /// Ready with the reason once the phase exceeds its deadline; otherwise wakes `cx` then.
    fn poll_deadline(
        &mut self,
        phase: Phase,
        since: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<io::Error> {
        let limit = match phase {
            Phase::Idle => self.idle_time,
            _ => self.head_time,
        };
        let deadline = since + limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // The timer moves only when it fires or is late, so progress costs no timer work.
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(timed_out());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    /// Counts bytes that were read outside of request bodies. Refuses the request if they do not fit.
    fn head_grows(&mut self, read: &[u8]) -> io::Result<()> {
        if self.head.bytes == 0 && !self.connection.enter(Phase::Head) {
            return Err(reclaimed());
        }
        if !self.head.grow(read, &self.heads) {
            let mut response = (self.heads.no_room)();
            if self.head.is_head_request {
                response.truncate(head_length(&response));
            }
            self.unread.store(true, Relaxed);
            self.refusal = Some(Refusal {
                response,
                written: 0,
            });
        }
        Ok(())
    }
}

impl<S: AsyncWrite + Unpin> HeadGuard<S> {
    /// Writes the response to a head that does not fit, and closes the connection.
    fn poll_refused(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(refusal) = &mut self.refusal else {
            return Poll::Pending;
        };
        let io = &mut self.io;
        let mut poll = || {
            while let Some(rest) = refusal.response.get(refusal.written..)
                && !rest.is_empty()
            {
                match ready!(Pin::new(&mut *io).poll_write(cx, rest))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => refusal.written += written,
                }
            }
            ready!(Pin::new(&mut *io).poll_flush(cx))?;
            Pin::new(&mut *io).poll_shutdown(cx)
        };
        let ended: io::Result<()> = ready!(poll());
        Poll::Ready(ended.err().unwrap_or_else(|| {
            let reason = "unfinished request heads take all memory they may";
            io::Error::new(io::ErrorKind::OutOfMemory, reason)
        }))
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no complete request head in time")
}

fn reclaimed() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "closed to let another connection in",
    )
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HeadGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (phase, since) = this.connection.phase();
        if phase == Phase::Busy || phase == Phase::Idle {
            this.head = Head::default();
        }
        if this.refusal.is_some() {
            return this.poll_refused(cx).map(Err);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        if this.unread.load(Relaxed) {
            // After the last response: further bytes are not a head.
            return read;
        }
        match (read, phase) {
            (read, Phase::Busy | Phase::Closing) => read,
            (Poll::Ready(Ok(())), _) => {
                let read = &buf.filled()[before..];
                if !read.is_empty() {
                    this.head_grows(read)?;
                }
                if this.refusal.is_some() {
                    // Nothing of it is parsed.
                    buf.set_filled(before);
                    return this.poll_refused(cx).map(Err);
                }
                // A head that arrives in small pieces must meet its deadline too.
                if phase == Phase::Head && since.elapsed() >= this.head_time {
                    return Poll::Ready(Err(timed_out()));
                }
                Poll::Ready(Ok(()))
            }
            (Poll::Pending, _) => {
                let error = ready!(this.poll_deadline(phase, since, cx));
                Poll::Ready(Err(error))
            }
            (failed, _) => failed,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // It is flushed only once its buffer is empty.
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.connection.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_connection_whose_response_ended_first_is_idle_longest() {
        let origin = Instant::now();
        let (first, second) = (Connection::new(origin), Connection::new(origin));
        for connection in [&first, &second] {
            connection.request_begins();
            advance(Duration::from_micros(10)).await;
            connection.response_ends();
        }
        // Their tasks learn that the bytes are sent in the other order.
        second.flushed();
        first.flushed();
        advance(MIN_RECLAIM_IDLE).await;
        assert!(first.reclaimable().unwrap() < second.reclaimable().unwrap());
    }
}
