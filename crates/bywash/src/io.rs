//! A write-at buffer as tokio's streams: its written prefix as an [`AsyncRead`], and a cursor as a file.

use std::fmt;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bywash_mem::{PrefixReader, Shard, WriteAtBuffer, WriteAtCursor, WriteAtError};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// Reads a buffer from some offset on as its bytes arrive; made of [`WriteAtBuffer::follow`].
///
/// It ends when the buffer is committed or frozen, and fails when that fails, even if bytes are left unread.
#[derive(Debug)]
pub struct AsyncPrefixReader(PrefixReader);

impl From<PrefixReader> for AsyncPrefixReader {
    fn from(reader: PrefixReader) -> Self {
        Self(reader)
    }
}

impl AsyncRead for AsyncPrefixReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = into.remaining();
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        let bytes = ready!(self.get_mut().0.poll_next(cx, room))?;
        into.put_slice(bytes.as_deref().unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<Option<Shard>, WriteAtError>> + Send>>;

/// A position in a buffer to read, write and seek as in a file; made of [`WriteAtBuffer::cursor`].
///
/// Reads answer what is written and never wait: 0 bytes at the end. A write where another has claimed waits, as a task,
/// until that claim ends, whatever the buffer's [`bywash_mem::Overlap`]; bytes already written are kept. Flushing and
/// shutting down do nothing: whether the buffer is complete is for its owner to say.
pub struct AsyncCursor {
    cursor: WriteAtCursor,
    /// Ends when nobody else writes at the position any more.
    waiting: Option<Waiting>,
}

impl From<WriteAtCursor> for AsyncCursor {
    fn from(cursor: WriteAtCursor) -> Self {
        Self {
            cursor,
            waiting: None,
        }
    }
}

impl AsyncCursor {
    /// The buffer it is in.
    #[must_use]
    pub fn buffer(&self) -> &WriteAtBuffer {
        self.cursor.buffer()
    }

    /// Where the next byte is read or written.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.cursor.position()
    }

    /// How many of `bytes` are in the buffer now; nothing while another writes at the position.
    fn write_some(&self, bytes: &[u8]) -> Result<Option<usize>, WriteAtError> {
        let at = self.position();
        let len = bytes.len() as u64;
        let end = at.checked_add(len).ok_or_else(|| WriteAtError::Offset {
            offset: at,
            len,
            limit: self.buffer().limit(),
        })?;
        match self.buffer().claim(at..end) {
            Ok(None) => return Ok(Some(bytes.len())),
            Ok(Some(mut shard)) if shard.range().start == at => {
                return Ok(Some(shard.write(bytes)));
            }
            // Free further on, or nowhere.
            Ok(Some(_)) | Err(WriteAtError::InFlight { .. }) => {}
            Err(error) => return Err(error),
        }
        let written = self.buffer().written();
        let here = written.iter().find(|range| range.contains(&at));
        Ok(here.map(|range| (range.end - at).min(len) as usize))
    }
}

impl AsyncRead for AsyncCursor {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n = self.get_mut().cursor.read(into.initialize_unfilled())?;
        into.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsyncCursor {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(waiting) = &mut this.waiting {
                let claimed = ready!(waiting.as_mut().poll(cx));
                this.waiting = None;
                // Given back at once: the write claims for itself.
                drop(claimed?);
            }
            if let Some(n) = this.write_some(bytes)? {
                this.cursor.seek(SeekFrom::Current(n as i64))?;
                return Poll::Ready(Ok(n));
            }
            let (buffer, at) = (this.buffer().clone(), this.position());
            this.waiting = Some(Box::pin(async move {
                buffer.claim_async(at..at.saturating_add(1)).await
            }));
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for AsyncCursor {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        this.waiting = None;
        this.cursor.seek(to).map(|_| ())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position()))
    }
}

impl fmt::Debug for AsyncCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCursor")
            .field("cursor", &self.cursor)
            .field("waits", &self.waiting.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use bywash_mem::{BlockPool, PoolConfig, WriteAtOptions};
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    use super::*;

    fn buffer(limit: u64) -> WriteAtBuffer {
        let pool: Arc<BlockPool> = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let options = WriteAtOptions {
            limit,
            frame_len: Some(4096),
            ..WriteAtOptions::default()
        };
        WriteAtBuffer::new(&pool, options).unwrap()
    }

    #[tokio::test]
    async fn a_cursor_reads_writes_and_seeks_as_a_file() {
        let buffer = buffer(100_000);
        let mut cursor = AsyncCursor::from(buffer.cursor());
        let text: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        cursor.seek(SeekFrom::Start(2)).await.unwrap();
        cursor.write_all(&text[2..]).await.unwrap();
        cursor.rewind().await.unwrap();
        cursor.write_all(b"").await.unwrap();
        cursor.write_all(&text[..2]).await.unwrap();
        assert_eq!(cursor.position(), 2);
        let mut tail = Vec::new();
        cursor.seek(SeekFrom::End(-100)).await.unwrap();
        cursor.read_to_end(&mut tail).await.unwrap();
        assert_eq!(tail, text[9_900..]);
        assert!(cursor.seek(SeekFrom::Current(-10_001)).await.is_err());
        assert_eq!(cursor.position(), 10_000, "a failed seek moves nothing");
        assert_eq!(&buffer.freeze(10_000).unwrap().into_contiguous()[..], text);
        let error = cursor.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn positions_past_the_limit_are_errors() {
        let buffer = buffer(8);
        let mut cursor = AsyncCursor::from(buffer.cursor());
        for at in [6, u64::MAX] {
            cursor.seek(SeekFrom::Start(at)).await.unwrap();
            let error = cursor.write(b"abc").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{at}");
        }
        assert_eq!(buffer.size(), 0);
    }

    #[tokio::test]
    async fn a_write_over_a_claim_waits_for_its_end_and_fills_what_it_left() {
        let buffer = buffer(100);
        buffer.write_at(0, b"ab").unwrap();
        let mut shard = buffer.claim(2..6).unwrap().unwrap();
        let mut cursor = AsyncCursor::from(buffer.cursor());
        let mut write = std::pin::pin!(cursor.write_all(b"ABCDEFGH"));
        assert!(futures::poll!(&mut write).is_pending());
        shard.write(b"cd");
        assert!(futures::poll!(&mut write).is_pending());
        drop(shard);
        write.await.unwrap();
        let bytes = buffer.freeze(8).unwrap().into_contiguous();
        assert_eq!(&bytes[..], b"abcdEFGH", "written bytes are kept");
    }

    #[tokio::test]
    async fn the_prefix_is_read_as_it_comes_and_ends_with_the_buffer() {
        let buffer = buffer(100_000);
        let mut reader = AsyncPrefixReader::from(buffer.follow(1));
        let mut into = [0; 16];
        buffer.write_at(2, b"c").unwrap();
        {
            let mut read = std::pin::pin!(reader.read(&mut into));
            assert!(futures::poll!(&mut read).is_pending(), "byte 1 is missing");
            buffer.write_at(0, b"ab").unwrap();
            assert_eq!(read.await.unwrap(), 2);
        }
        assert_eq!(&into[..2], b"bc");
        buffer.commit().unwrap();
        assert_eq!(reader.read(&mut into).await.unwrap(), 0);
        let mut late = AsyncPrefixReader::from(buffer.follow(0));
        let mut all = Vec::new();
        late.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"abc");
    }

    #[tokio::test]
    async fn a_failed_buffer_fails_its_reader() {
        let buffer = buffer(100);
        let mut reader = AsyncPrefixReader::from(buffer.follow(0));
        buffer.write_at(0, b"a").unwrap();
        buffer.fail(Arc::new(io::Error::other("the origin is gone")));
        let error = reader.read_u8().await.unwrap_err();
        assert!(error.to_string().contains("the origin is gone"), "{error}");
    }
}
