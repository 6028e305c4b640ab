//! An upload as a tokio `AsyncWrite`.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use object_store::Result;
use tokio::io::AsyncWrite;

use super::Upload;

type Work = Pin<Box<dyn Future<Output = (Box<Upload>, Result<()>)> + Send>>;

enum WriterState {
    Idle(Box<Upload>),
    /// Sending a chunk, or waiting for memory.
    Busy(Work),
    /// One of its futures panicked.
    Gone,
}

/// Writes bytes into an [`Upload`]. Each is copied once, into the buffer of its chunk.
///
/// Neither flush nor shutdown finishes the upload, because a failing program shuts its streams down too. Take the
/// upload back with [`Self::into_upload`] and finish it. Dropping this drops the upload. A failed write has accepted
/// nothing and may be repeated. To cancel, stop polling: exactly the bytes that writes returned as accepted are.
pub struct UploadWriter {
    state: WriterState,
}

impl fmt::Debug for UploadWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("UploadWriter");
        match &self.state {
            WriterState::Idle(upload) => debug.field("upload", upload),
            WriterState::Busy(_) => debug.field("busy", &true),
            WriterState::Gone => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}

impl Upload {
    /// Converts the upload into a stream to write to.
    #[must_use]
    pub fn into_writer(self) -> UploadWriter {
        UploadWriter {
            state: WriterState::Idle(Box::new(self)),
        }
    }
}

impl UploadWriter {
    /// Waits for the write in progress and returns the upload with all accepted bytes. An error of that write is
    /// returned again by the next operation on the upload.
    ///
    /// # Panics
    /// If a write panicked before.
    pub async fn into_upload(self) -> Upload {
        match self.state {
            WriterState::Idle(upload) => *upload,
            WriterState::Busy(work) => *work.await.0,
            WriterState::Gone => panic!("a write to this upload panicked"),
        }
    }

    /// Waits for the write in progress.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&mut Box<Upload>>> {
        if let WriterState::Busy(work) = &mut self.state {
            let (upload, result) = ready!(work.as_mut().poll(context));
            self.state = WriterState::Idle(upload);
            result.map_err(io::Error::other)?;
        }
        Poll::Ready(match &mut self.state {
            WriterState::Idle(upload) => Ok(upload),
            WriterState::Busy(_) | WriterState::Gone => {
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
            if let WriterState::Idle(mut upload) =
                std::mem::replace(&mut self.state, WriterState::Gone)
            {
                self.state = WriterState::Busy(Box::pin(async move {
                    let result = upload.make_room().await;
                    (upload, result)
                }));
            }
        }
    }

    /// Waits for the write in progress; bytes of a partial chunk stay in the buffer.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_idle(context).map_ok(|_| ())
    }

    /// As a flush. Does not finish the upload.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}
