//! State of a connection: its phase with a deadline, and the bytes of unfinished request heads.

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

use crate::config::Limits;
use crate::limits::{MAX_FREE_HEAD_BYTES, MIN_RECLAIM_IDLE};

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

/// Bytes of all unfinished heads.
#[derive(Debug)]
pub(crate) struct HeadBytes {
    bytes: Arc<ByteLimit>,
    /// Counts rejected heads.
    traffic: Option<Arc<Traffic>>,
}

impl HeadBytes {
    pub(crate) fn new(limit: usize, engine: Engine, traffic: Option<Arc<Traffic>>) -> Arc<Self> {
        Arc::new(Self {
            bytes: ByteLimit::new(engine, limit as u64),
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
    /// Phase, and its start in milliseconds from `origin`.
    state: AtomicU64,
    origin: Instant,
    /// The last response's body was dropped. The connection becomes idle once the buffered rest is flushed.
    response_over: AtomicBool,
    /// Wakes the connection's task to close it.
    waker: AtomicWaker,
}

impl Connection {
    /// State of a connection accepted now, by a server started at `origin`.
    pub(crate) fn new(origin: Instant) -> Arc<Self> {
        let connection = Self {
            state: AtomicU64::new(0),
            origin,
            response_over: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        };
        connection.enter(Phase::Fresh);
        Arc::new(connection)
    }

    fn pack(&self, phase: Phase) -> u64 {
        let millis = self.origin.elapsed().as_millis() as u64;
        millis << PHASE_BITS | phase as u64
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
            self.origin + Duration::from_millis(state >> PHASE_BITS),
        )
    }

    /// Begins a phase, unless the connection was selected to be closed.
    fn enter(&self, phase: Phase) -> bool {
        let next = self.pack(phase);
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
        self.response_over.store(false, Relaxed);
        self.enter(Phase::Busy);
    }

    /// A response's body was dropped: all of it is buffered, or it was cancelled.
    pub(crate) fn response_ends(&self) {
        self.response_over.store(true, Relaxed);
    }

    fn flushed(&self) {
        if self.response_over.swap(false, Relaxed) {
            self.enter(Phase::Idle);
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

/// A socket that enforces deadlines of request heads and counts the bytes of unfinished ones.
#[derive(Debug)]
pub(crate) struct HeadGuard<S> {
    io: S,
    connection: Arc<Connection>,
    heads: Arc<HeadBytes>,
    /// Max time from the connection, or from a head's first byte, to the head's end.
    head_time: Duration,
    /// Max time between two requests.
    idle_time: Duration,
    /// Bytes of the unfinished head.
    head: usize,
    /// Charged bytes of it, and their charges.
    charged: usize,
    charges: Vec<ByteCharge>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> HeadGuard<S> {
    pub(crate) fn new(
        io: S,
        connection: Arc<Connection>,
        heads: Arc<HeadBytes>,
        limits: &Limits,
    ) -> Self {
        Self {
            io,
            connection,
            heads,
            head_time: limits.head,
            idle_time: limits.idle,
            head: 0,
            charged: 0,
            charges: Vec::new(),
            timer: None,
        }
    }

    /// Resets the head's state: the head is complete or was cancelled.
    fn head_ends(&mut self) {
        self.charged = 0;
        self.charges.clear();
        self.head = 0;
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

    /// Counts `read` bytes outside of request bodies.
    fn head_grows(&mut self, read: usize) -> io::Result<()> {
        if self.head == 0 && !self.connection.enter(Phase::Head) {
            return Err(reclaimed());
        }
        self.head += read;
        // The reader's buffer doubles, so a head may need twice its bytes.
        let wanted = 2 * self.head + MAX_FREE_HEAD_BYTES;
        if self.head > MAX_FREE_HEAD_BYTES && wanted > self.charged {
            let full = || {
                let reason = "unfinished request heads take all memory they may";
                io::Error::new(io::ErrorKind::OutOfMemory, reason)
            };
            let charge = self.heads.try_charge(wanted - self.charged);
            self.charges.push(charge.ok_or_else(full)?);
            self.charged = wanted;
        }
        Ok(())
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

impl<S: AsyncRead + Unpin> AsyncRead for HeadGuard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (phase, since) = this.connection.phase();
        if phase == Phase::Busy || phase == Phase::Idle {
            this.head_ends();
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match (read, phase) {
            (read, Phase::Busy | Phase::Closing) => read,
            (Poll::Ready(Ok(())), _) => {
                let read = buf.filled().len() - before;
                if read > 0 {
                    this.head_grows(read)?;
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
