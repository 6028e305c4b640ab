//! Connections of other nodes without a request: the one that has been idle longest makes room for a new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Connections without a request, in the order in which they became idle.
#[derive(Debug, Default)]
pub(super) struct IdleConnections(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    order: BTreeMap<u64, Arc<Link>>,
}

/// The joint between a connection and one that takes its room.
#[derive(Debug, Default)]
struct Link {
    close: Notify,
    closed: Notify,
}

/// A connection that may be idle.
#[derive(Debug)]
pub(super) struct Connected {
    all: Arc<IdleConnections>,
    link: Arc<Link>,
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    /// Requests in progress.
    requests: usize,
    /// Its place in the order, while it is idle.
    place: Option<u64>,
    /// It is to close.
    ends: bool,
}

/// A request in progress. It ends when dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Connected>);

/// Reports the end of a connection when dropped: after all that it has taken is free.
#[derive(Debug)]
pub(super) struct Closing(Arc<Link>);

impl IdleConnections {
    /// Has the connection end that has been idle longest. Returns the wait for its end; `None` if there is no such connection.
    pub(super) fn close_longest(&self) -> Option<impl Future<Output = ()> + use<>> {
        let (_, link) = self.0.lock().order.pop_first()?;
        link.close.notify_one();
        Some(async move { link.closed.notified().await })
    }
}

impl Connected {
    /// A connection that has no room yet.
    pub(super) fn new(all: &Arc<IdleConnections>) -> Arc<Self> {
        Arc::new(Self {
            all: Arc::clone(all),
            link: Arc::default(),
            own: Mutex::default(),
        })
    }

    /// The connection has room from now on, and no request so far.
    pub(super) fn admit(&self) {
        self.note_idle(&mut self.own.lock());
    }

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        let mut own = self.own.lock();
        own.requests += 1;
        self.leave(&mut own);
        InProgress(Arc::clone(self))
    }

    /// Waits until the connection is to make room.
    pub(super) async fn to_close(&self) {
        self.link.close.notified().await;
        let mut own = self.own.lock();
        own.ends = true;
        self.leave(&mut own);
    }

    /// Handle that reports the end of the connection.
    pub(super) fn closing(&self) -> Closing {
        Closing(Arc::clone(&self.link))
    }

    fn note_idle(&self, own: &mut Own) {
        let mut all = self.all.0.lock();
        let place = all.next;
        all.next += 1;
        all.order.insert(place, Arc::clone(&self.link));
        own.place = Some(place);
    }

    fn leave(&self, own: &mut Own) {
        if let Some(place) = own.place.take() {
            self.all.0.lock().order.remove(&place);
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.leave(&mut self.own.lock());
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut own = self.0.own.lock();
        own.requests -= 1;
        if own.requests == 0 && !own.ends {
            self.0.note_idle(&mut own);
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed.notify_one();
    }
}
