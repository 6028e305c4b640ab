//! Memory for callers: charges outside the pool (listings, request XML, heads, tables), and write-at buffers of programs.

use bywash_mem::{Reservation, Share, WriteAtBuffer, WriteAtError, WriteAtOptions};

use super::Engine;
use crate::error::EngineError;

impl Engine {
    /// Charges `bytes` of memory outside the engine to its budget, for callers that are about to allocate them.
    /// Evicts blocks if that makes room, otherwise waits in the order of all requests, until the admission deadline.
    ///
    /// A caller that holds a charge must not wait for another: see [`Self::try_grow`].
    ///
    /// # Errors
    /// [`EngineError::SlowDown`] at the deadline; [`EngineError::InvalidSetting`] at once if the memory can never
    /// hold so much.
    pub async fn reserve(
        &self,
        share: Share,
        bytes: u64,
        operation: &'static str,
        object: &str,
    ) -> Result<Reservation, EngineError> {
        self.shared.reserve(share, bytes, operation, object).await
    }

    /// As [`Self::reserve`] without waiting; `None` if there is no room, or others wait for memory of this share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        self.shared.pool.try_reserve(share, bytes)
    }

    /// Adds `more` bytes to a charge without waiting; false if there is no room.
    #[must_use]
    pub fn try_grow(&self, charge: &mut Reservation, more: u64) -> bool {
        self.shared.pool.try_grow(charge, more)
    }

    /// A buffer in the engine's memory that any number of threads write at any offset and read as bytes arrive: for a program's
    /// own parallel downloads, whose size it may not know. It has memory for `min` bytes at once, and takes more with the
    /// bytes that are written, up to `options.limit`.
    ///
    /// Evicts blocks if that makes room, otherwise waits in the order of all requests, until the admission deadline. Later writes never
    /// wait for memory: one that finds none is [`WriteAtError::Memory`], and may be repeated. Dropping the future, or the last handle of the
    /// buffer, releases all of it.
    ///
    /// ```
    /// use bywash::{Engine, WriteAtOptions, io::AsyncTailReader};
    /// use tokio::io::AsyncReadExt as _;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::builder().memory(64 << 20).build()?;
    /// let options = WriteAtOptions { limit: 1 << 30, ..WriteAtOptions::default() };
    /// let buffer = engine.buffer(options, 1 << 20).await?;
    /// let second = tokio::spawn({
    ///     let buffer = buffer.clone();
    ///     async move { buffer.write_at(5, b" world") } // any task, any order
    /// });
    /// buffer.write_at(0, b"hello")?;
    /// second.await??;
    /// let size = buffer.commit()?; // nobody writes any more, and no byte is missing
    /// let mut text = String::new();
    /// AsyncTailReader::from(buffer.reader(0)).read_to_string(&mut text).await?;
    /// assert_eq!((text.as_str(), size), ("hello world", 11));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`EngineError::SlowDown`] at the deadline; [`EngineError::InvalidSetting`] at once if the memory can never hold `min` bytes,
    /// or for a frame length that the pool does not have.
    pub async fn buffer(
        &self,
        options: WriteAtOptions,
        min: u64,
    ) -> Result<WriteAtBuffer, EngineError> {
        let engine = &self.shared;
        let reserved = async {
            match WriteAtBuffer::reserved(engine.pool.budget(), options, min).await {
                Err(WriteAtError::Frames(error)) => Err(error),
                other => Ok(other),
            }
        };
        let made = engine.admitted(reserved, "buffer", "a program").await?;
        made.map_err(|error| EngineError::InvalidSetting {
            setting: "buffer",
            reason: error.to_string(),
        })
    }

    /// Maximum time that a request waits for memory.
    #[must_use]
    pub fn admission_deadline(&self) -> std::time::Duration {
        self.shared.admission_deadline
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reservation_waits_in_order_until_the_admission_deadline() {
        let engine = Engine::builder()
            .memory(16 << 20)
            .admission_deadline(Duration::from_secs(3))
            .build()
            .unwrap();
        let max = (16 << 20) / 4 * 3;
        let mut charge = engine
            .reserve(Share::Download, max, "list", "b")
            .await
            .unwrap();
        assert!(engine.try_reserve(Share::Download, 1).is_none());
        let refused = engine.reserve(Share::Download, 1 << 20, "list", "b").await;
        assert!(matches!(
            refused,
            Err(EngineError::SlowDown { waited_s: 3, .. })
        ));
        assert_eq!(engine.stats().budget.refused, 1);
        charge.shrink_to(max - (1 << 20));
        let next = engine.reserve(Share::Download, 1 << 20, "list", "b").await;
        drop((charge, next.unwrap()));
        assert_eq!(engine.budget().used(), 0);
        let never = engine.reserve(Share::Download, max + 1, "list", "b").await;
        assert!(matches!(never, Err(EngineError::InvalidSetting { .. })));
        assert_eq!(engine.stats().budget.refused, 1, "it can never be met");
    }

    #[tokio::test(start_paused = true)]
    async fn buffer_grows_with_what_is_written_and_waits_only_for_its_first_memory() {
        let memory = 16 << 20;
        let builder = Engine::builder().memory(memory);
        let deadline = Duration::from_secs(3);
        let engine = builder.admission_deadline(deadline).build().unwrap();
        let options = WriteAtOptions {
            limit: 64 << 20,
            ..WriteAtOptions::default()
        };
        let buffer = engine.buffer(options, 1 << 20).await.unwrap();
        let before = engine.budget().used();
        let piece = [7; 64 << 10];
        let mut written = 0;
        let full = loop {
            match buffer.write_at(written, &piece) {
                Ok(bytes) => written += bytes as u64,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, WriteAtError::Memory { .. }), "{full}");
        assert!(written > 8 << 20 && engine.budget().used() > before);
        let refused = engine.buffer(options, 1 << 20).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, EngineError::SlowDown { waited_s: 3, .. }));
        let never = engine.buffer(options, memory).await.unwrap_err();
        assert!(matches!(never, EngineError::InvalidSetting { .. }));
        let odd = WriteAtOptions {
            frame_len: Some(5),
            ..options
        };
        let odd = engine.buffer(odd, 1).await.unwrap_err();
        assert!(matches!(odd, EngineError::InvalidSetting { .. }));
        drop(buffer);
        assert_eq!(engine.budget().held(Share::Download), 0);
        drop(engine.buffer(options, 1 << 20).await.unwrap());
    }
}
