//! Requests whose replies an event loop waits for.

use std::os::fd::BorrowedFd;

use crate::client::Client;
use crate::connection::{Connection, Frame, unexpected};
use crate::error::{Error, Result};
use crate::message::{ErrorCode, Reply, Request};

/// A request whose reply has not arrived yet. Dropping it closes its connection; a change may be
/// executed or not.
#[derive(Debug)]
pub struct Pending<T> {
    client: Client,
    /// `None` at the end.
    connection: Option<Connection>,
    /// Replies that come before the last one.
    before: usize,
    decode: fn(Reply) -> Result<T>,
}

impl<T> Pending<T> {
    /// Sends the messages that `queue` puts on a connection, as far as the socket takes them.
    pub(crate) fn begin(
        client: &Client,
        before: usize,
        queue: impl FnOnce(&mut Connection),
        decode: fn(Reply) -> Result<T>,
    ) -> Result<Self> {
        let mut connection = client.connection()?;
        connection.start(client.deadline())?;
        queue(&mut connection);
        connection.try_flush()?;
        Ok(Self {
            client: client.clone(),
            connection: Some(connection),
            before,
            decode,
        })
    }

    /// Sends one request with one reply.
    pub(crate) fn of(
        client: &Client,
        request: &Request,
        decode: fn(Reply) -> Result<T>,
    ) -> Result<Self> {
        Self::begin(client, 0, |connection| connection.queue(request), decode)
    }

    /// Descriptor that becomes readable, or writable while [`Self::has_unsent`], when [`Self::poll`] has something to do.
    ///
    /// # Errors
    /// [`ErrorCode::Connection`] after the end.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let connection = self.connection.as_ref().ok_or_else(ended)?;
        Ok(connection.descriptor())
    }

    /// Whether a part of the request waits for the socket.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::has_unsent)
    }

    /// Takes the bytes that have arrived. Returns the result when it is there, once. Never waits.
    ///
    /// # Errors
    /// The error of the request.
    pub fn poll(&mut self) -> Result<Option<T>> {
        let mut connection = self.connection.take().ok_or_else(ended)?;
        match self.advance(&mut connection) {
            Ok(None) => {
                self.connection = Some(connection);
                Ok(None)
            }
            Ok(Some(reply)) => {
                self.client.end(connection);
                (self.decode)(reply).map(Some)
            }
            Err(error) => {
                connection.stop();
                Err(error)
            }
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The error of the request.
    pub fn wait(mut self) -> Result<T> {
        loop {
            if let Some(result) = self.poll()? {
                return Ok(result);
            }
            let connection = self.connection.as_ref().ok_or_else(ended)?;
            connection.wait_for_more()?;
        }
    }

    /// Takes the bytes that have arrived. Returns the last reply.
    fn advance(&mut self, connection: &mut Connection) -> Result<Option<Reply>> {
        // A server that refuses a write says so before it has taken all of it.
        let sent = connection.try_flush()?;
        loop {
            let reply = match connection.try_next()? {
                Some(Frame::Reply(reply)) => reply,
                Some(Frame::Data(_)) => return Err(unexpected()),
                None => return Ok(None),
            };
            if let Reply::Error(failure) = reply {
                return if sent && self.before == 0 {
                    Ok(Some(Reply::Error(failure)))
                } else {
                    // Of a write: the server closes the connection.
                    Err(failure.into())
                };
            }
            if self.before == 0 {
                return Ok(Some(reply));
            }
            self.before -= 1;
        }
    }
}

fn ended() -> Error {
    Error::new(
        ErrorCode::Connection,
        "this request has ended; send another",
    )
}

/// The error of a reply that is not one of the request's: the failure that it states, or that it is
/// unexpected.
pub(crate) fn other(reply: Reply) -> Error {
    match reply {
        Reply::Error(failure) => failure.into(),
        _ => unexpected(),
    }
}
