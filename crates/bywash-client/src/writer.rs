//! A write in pieces.

use std::io;

use crate::bucket::{Bucket, Written};
use crate::client::reply;
use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::message::{ErrorCode, Reply, Request};

/// An object being written from front to back. Nothing is visible until [`Self::finish`] succeeds.
/// Dropping it discards the written bytes, unless it was captured.
///
/// The server keeps at most one chunk in memory; the rest is at the store. A write waits while the store is slower.
#[derive(Debug)]
pub struct Writer {
    /// `None` after an error of the connection.
    connection: Option<Connection>,
    bucket: Bucket,
    position: u64,
}

/// State of a write, from which another process can continue it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedWrite {
    /// For [`Bucket::resume`]. It may contain a capability to write to the store: keep it private.
    pub token: Vec<u8>,
    /// Bytes that the store has. The continued write starts there.
    pub position: u64,
}

impl Writer {
    pub(crate) fn begin(bucket: &Bucket, request: Request) -> Result<Self> {
        let mut connection = bucket.client().connection()?;
        connection.start(bucket.client().deadline())?;
        connection.queue(&request);
        connection.flush()?;
        match reply(&mut connection) {
            Ok(Reply::Writing(writing)) => Ok(Self {
                connection: Some(connection),
                bucket: bucket.clone(),
                position: writing.position,
            }),
            Ok(_) => Err(unexpected()),
            Err(error) => Err(error),
        }
    }

    /// Offset of the next byte in the object.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// A code by the action that the caller can take. After any error the write cannot continue;
    /// [`Bucket::resume`] continues a captured one.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.on_connection(|connection| connection.send_data(bytes))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Returns the state of the write at the store, which stays there when this is dropped.
    ///
    /// # Errors
    /// As [`Self::write_all`]; [`ErrorCode::Unsupported`] for a store whose uploads cannot be continued.
    pub fn capture(&mut self) -> Result<CapturedWrite> {
        self.on_connection(|connection| {
            connection.queue(&Request::Capture(()));
            connection.flush()?;
            match reply(connection)? {
                Reply::Token(token) => Ok(CapturedWrite {
                    token: token.token,
                    position: token.position,
                }),
                _ => Err(unexpected()),
            }
        })
    }

    /// Makes the object visible.
    ///
    /// # Errors
    /// As [`Self::write_all`].
    pub fn finish(mut self) -> Result<Written> {
        let written = self.on_connection(|connection| {
            connection.queue(&Request::Finish(()));
            connection.flush()?;
            match reply(connection)? {
                Reply::Stored(stored) => Ok(stored.into()),
                _ => Err(unexpected()),
            }
        })?;
        self.close();
        Ok(written)
    }

    /// Discards the written bytes, also if the write was captured.
    ///
    /// # Errors
    /// As [`Self::write_all`].
    pub fn abort(mut self) -> Result<()> {
        self.on_connection(|connection| {
            connection.queue(&Request::Abort(()));
            connection.flush()?;
            match reply(connection)? {
                Reply::Done(()) => Ok(()),
                _ => Err(unexpected()),
            }
        })?;
        self.close();
        Ok(())
    }

    /// Gives the connection back, at the end of the write.
    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.stop();
            self.bucket.client().keep(connection);
        }
    }

    fn on_connection<T>(&mut self, call: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let Some(connection) = &mut self.connection else {
            return Err(Error::new(
                ErrorCode::Connection,
                "this write has failed before: begin again, or resume it if it was captured",
            ));
        };
        connection.extend(self.bucket.client().deadline());
        let result = call(connection);
        if result.is_err() {
            // The server ends a write whose connection closes.
            self.connection = None;
        }
        result
    }
}

/// As [`Writer::write_all`] and [`Bucket::writer`]; `flush` does nothing, because an object is visible whole or not.
impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write_all(self, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
