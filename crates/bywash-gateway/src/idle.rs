//! Stall detection, and a socket that is closed when its peer stalls.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::connection::Connection;
use crate::limits::MAX_LINGER;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Measures how long an operation has been pending without progress.
///
/// The timer is armed once and moves only when it fires, so progress costs no timer work.
#[derive(Debug)]
pub(crate) struct IdleClock {
    limit: Duration,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleClock {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: None,
            timer: None,
        }
    }

    /// Records progress: the time restarts with the next pending poll.
    pub(crate) fn progress(&mut self) {
        self.since = None;
    }

    /// Called when a poll is pending. Ready after the limit without progress; otherwise wakes `cx` then.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let deadline = since + self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// A socket whose writes fail once the peer has read nothing for a limit, and whose reads end when its connection is
/// to be closed.
#[derive(Debug)]
pub(crate) struct StallGuard<S> {
    socket: S,
    clock: IdleClock,
    /// Set when a response is sent before the whole request was read.
    unread: Arc<AtomicBool>,
    linger: Option<Pin<Box<Sleep>>>,
    connection: Arc<Connection>,
}

impl<S> StallGuard<S> {
    pub(crate) fn new(
        socket: S,
        limit: Duration,
        unread: Arc<AtomicBool>,
        connection: Arc<Connection>,
    ) -> Self {
        Self {
            socket,
            connection,
            clock: IdleClock::new(limit),
            unread,
            linger: None,
        }
    }

    fn watch<T>(
        clock: &mut IdleClock,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            clock.progress();
            return written;
        }
        clock.poll_expired(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client takes no data",
            ))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection.poll_closing(cx) {
            // Report an end of input, as if the client had left.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, buf);
        Self::watch(&mut this.clock, cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        Self::watch(&mut this.clock, cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
        }
        if !this.unread.load(Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let linger = this
            .linger
            .get_or_insert_with(|| Box::pin(sleep(MAX_LINGER)));
        let mut discarded = [MaybeUninit::uninit(); 16 * 1024];
        while linger.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::uninit(&mut discarded);
            let read = ready!(Pin::new(&mut this.socket).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}
