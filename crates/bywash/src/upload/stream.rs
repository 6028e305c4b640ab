//! An upload as one of tokio's streams.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use object_store::Result;
use tokio::io::AsyncWrite;

use super::Upload;

type Work = Pin<Box<dyn Future<Output = (Box<Upload>, Result<()>)> + Send>>;

enum State {
    Idle(Box<Upload>),
    /// It sends a chunk, or waits for memory.
    Busy(Work),
    /// A future of it panicked.
    Gone,
}

/// Writes bytes into an [`Upload`]. Each is copied once, into the chunk it waits in.
///
/// Neither a flush nor a shutdown finishes the upload, as a program that fails shuts its streams down too: take it back with
/// [`Self::into_upload`] and finish it. Dropping this drops the upload. A write that failed has taken nothing and may be tried
/// again. Cancel by not polling: what a write returned as taken is taken, no more.
pub struct UploadWriter {
    state: State,
}

impl fmt::Debug for UploadWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("UploadWriter");
        match &self.state {
            State::Idle(upload) => debug.field("upload", upload),
            State::Busy(_) => debug.field("busy", &true),
            State::Gone => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}

impl Upload {
    /// This upload as a stream to write to.
    #[must_use]
    pub fn into_writer(self) -> UploadWriter {
        UploadWriter {
            state: State::Idle(Box::new(self)),
        }
    }
}

impl UploadWriter {
    /// The upload with all bytes that were taken, once nothing is under way. A failure under way is met again by what is done
    /// next with the upload.
    ///
    /// # Panics
    /// If a write panicked before.
    pub async fn into_upload(self) -> Upload {
        match self.state {
            State::Idle(upload) => *upload,
            State::Busy(work) => *work.await.0,
            State::Gone => panic!("a write to this upload panicked"),
        }
    }

    /// Waits until nothing is under way.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&mut Box<Upload>>> {
        if let State::Busy(work) = &mut self.state {
            let (upload, result) = ready!(work.as_mut().poll(context));
            self.state = State::Idle(upload);
            result.map_err(io::Error::other)?;
        }
        Poll::Ready(match &mut self.state {
            State::Idle(upload) => Ok(upload),
            State::Busy(_) | State::Gone => {
                Err(io::Error::other("a write to this upload panicked"))
            }
        })
    }
}

impl AsyncWrite for UploadWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let upload = ready!(self.poll_idle(context))?;
            if bytes.is_empty() {
                return Poll::Ready(Ok(0));
            }
            if let Some(copied) = upload.copy_now(bytes).map_err(io::Error::other)? {
                return Poll::Ready(Ok(copied));
            }
            if let State::Idle(mut upload) = std::mem::replace(&mut self.state, State::Gone) {
                self.state = State::Busy(Box::pin(async move {
                    let result = upload.make_room().await;
                    (upload, result)
                }));
            }
        }
    }

    /// Waits for what is under way; bytes of a chunk that is not full stay here.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_idle(context).map_ok(|_| ())
    }

    /// As a flush. It does not finish the upload.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
