//! Connections that no call uses.
//!
//! No lock is ever waited for: in the child of a fork, a lock that another thread of the parent held stays locked. A slot that is
//! locked is passed by.

use std::sync::Mutex;

use crate::connection::Connection;
use crate::limits::MAX_IDLE_CONNECTIONS;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    slots: [Mutex<Option<Connection>>; MAX_IDLE_CONNECTIONS],
}

impl Pool {
    /// Returns a connection that the next call can use. Closes this process's copy of connections
    /// that a fork has shared.
    pub(crate) fn take(&self) -> Option<Connection> {
        for slot in &self.slots {
            let Ok(mut slot) = slot.try_lock() else {
                continue;
            };
            let taken = slot.take();
            drop(slot);
            if let Some(connection) = taken.filter(Connection::is_usable) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose call has ended, if there is a free slot.
    pub(crate) fn put(&self, connection: Connection) {
        for slot in &self.slots {
            if let Ok(mut slot) = slot.try_lock()
                && slot.is_none()
            {
                *slot = Some(connection);
                return;
            }
        }
    }
}
