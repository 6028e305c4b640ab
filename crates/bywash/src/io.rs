//! A write-at buffer as tokio's [`AsyncRead`]: bytes as they arrive.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bywash_mem::TailReader;
use tokio::io::{AsyncRead, ReadBuf};

/// Reads a buffer from some offset on as its bytes arrive; made from [`bywash_mem::WriteAtBuffer::reader`].
///
/// Ends when the buffer is committed or frozen. Fails when the buffer fails, even with bytes left to read.
#[derive(Debug)]
pub struct AsyncTailReader(TailReader);

impl From<TailReader> for AsyncTailReader {
    fn from(reader: TailReader) -> Self {
        Self(reader)
    }
}

impl AsyncRead for AsyncTailReader {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use bywash_mem::{BlockPool, PoolConfig, WriteAtBuffer, WriteAtOptions};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn buffer(limit: u64) -> WriteAtBuffer {
        let pool: Arc<BlockPool> = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let options = WriteAtOptions {
            limit,
            frame_len: Some(4096),
            ..WriteAtOptions::default()
        };
        WriteAtBuffer::new(pool.budget(), options).unwrap()
    }

    #[tokio::test]
    async fn prefix_is_read_as_it_arrives_and_ends_with_the_buffer() {
        let buffer = buffer(100_000);
        let mut reader = AsyncTailReader::from(buffer.reader(1));
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
        let mut late = AsyncTailReader::from(buffer.reader(0));
        let mut all = Vec::new();
        late.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"abc");
    }

    #[tokio::test]
    async fn failed_buffer_fails_its_reader() {
        let buffer = buffer(100);
        let mut reader = AsyncTailReader::from(buffer.reader(0));
        buffer.write_at(0, b"a").unwrap();
        buffer.fail(Arc::new(io::Error::other("the origin is gone")));
        let error = reader.read_u8().await.unwrap_err();
        assert!(error.to_string().contains("the origin is gone"), "{error}");
    }
}
