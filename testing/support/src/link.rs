//! A TCP link between two processes, which a test cuts, silences and delays: a partition without network namespaces.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// Bytes of a piece, of which one is delayed at a time.
const PIECE_BYTES: usize = 256 << 10;

/// What a link does with connections and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Passes them on.
    Open,
    /// Passes each piece on after this time, in both directions.
    Delayed(Duration),
    /// Passes each piece on after a drawn time of at most this one, so that a later request may be served first.
    Jittered(Duration),
    /// Accepts connections and bytes, and passes nothing on until the state changes.
    Silent,
    /// Closes all connections, and each new one.
    Cut,
}

/// An address that leads to another one. Dropping it closes its port and connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    state: watch::Sender<LinkState>,
    accepted: Arc<AtomicU64>,
    accept: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl Link {
    /// Opens a link to `target` on a free port, on the current runtime.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (target, leads_to) = watch::channel(target);
        let (state, is) = watch::channel(LinkState::Open);
        let accepted = Arc::new(AtomicU64::new(0));
        let accept = tokio::spawn(accept(listener, leads_to, is, Arc::clone(&accepted)));
        Ok(Self {
            address,
            target,
            state,
            accepted,
            accept,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leads connections from now on to another address.
    pub fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        // Relaxed: a plain counter.
        self.accepted.load(Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    target: watch::Receiver<SocketAddr>,
    state: watch::Receiver<LinkState>,
    accepted: Arc<AtomicU64>,
) {
    // Dropped with this task, which closes the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((near, _)) = listener.accept() => {
                // Relaxed: a plain counter.
                accepted.fetch_add(1, Relaxed);
                connections.spawn(carry(near, target.clone(), state.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection until both ends have closed it, or the link is cut.
async fn carry(
    near: TcpStream,
    target: watch::Receiver<SocketAddr>,
    state: watch::Receiver<LinkState>,
) {
    let mut first = state.clone();
    if !passes(&mut first).await {
        return;
    }
    let target = *target.borrow();
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    let mut cut = state.clone();
    let both = async {
        tokio::join!(
            copy(near_read, far_write, state.clone()),
            copy(far_read, near_write, state)
        )
    };
    tokio::select! {
        _ = both => {}
        _ = cut.wait_for(|state| *state == LinkState::Cut) => {}
    }
}

/// Copies one direction to its end. A failure closes it, as a reset would.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<LinkState>,
) -> io::Result<()> {
    let mut piece = Vec::new();
    loop {
        piece.clear();
        piece.reserve(PIECE_BYTES);
        let count = from.read_buf(&mut piece).await?;
        if !passes(&mut state).await {
            return Ok(());
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece).await?;
    }
}

/// Waits until the link passes a piece on. Returns `false` if it is cut.
async fn passes(state: &mut watch::Receiver<LinkState>) -> bool {
    loop {
        let now = *state.borrow_and_update();
        match now {
            LinkState::Open => return true,
            LinkState::Delayed(delay) => {
                sleep(delay).await;
                return true;
            }
            LinkState::Jittered(max) => {
                sleep(max.mul_f64(rand::random::<f64>())).await;
                return true;
            }
            LinkState::Cut => return false,
            LinkState::Silent => {
                if state.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link to a server that sends each byte back, and a connection through it.
    async fn echo() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let link = Link::start(listener.local_addr().unwrap()).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = socket.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let socket = TcpStream::connect(link.address()).await.unwrap();
        (link, socket)
    }

    async fn exchange(socket: &mut TcpStream) -> io::Result<u8> {
        socket.write_all(b"a").await?;
        socket.read_u8().await
    }

    #[tokio::test]
    async fn open_link_passes_bytes_and_the_end_of_a_stream() {
        let (link, mut socket) = echo().await;
        assert_eq!(exchange(&mut socket).await.unwrap(), b'a');
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        assert_eq!(socket.read_to_end(&mut rest).await.unwrap(), 0);
        assert_eq!(link.accepted(), 1);
    }

    #[tokio::test]
    async fn silent_link_holds_bytes_until_it_is_open() {
        let (link, mut socket) = echo().await;
        assert_eq!(exchange(&mut socket).await.unwrap(), b'a');
        link.set(LinkState::Silent);
        socket.write_all(b"b").await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(50), socket.read_u8());
        assert!(silent.await.is_err());
        link.set(LinkState::Open);
        assert_eq!(socket.read_u8().await.unwrap(), b'b');
    }

    #[tokio::test]
    async fn jittered_link_passes_bytes_on_after_different_times() {
        let (link, mut socket) = echo().await;
        link.set(LinkState::Jittered(Duration::from_millis(20)));
        let mut times = Vec::new();
        for _ in 0..8 {
            let begun = tokio::time::Instant::now();
            assert_eq!(exchange(&mut socket).await.unwrap(), b'a');
            times.push(begun.elapsed());
        }
        let (shortest, longest) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*longest > *shortest + Duration::from_millis(5), "{times:?}");
    }

    #[tokio::test]
    async fn cut_link_closes_connections_and_refuses_new_ones() {
        let (link, mut socket) = echo().await;
        assert_eq!(exchange(&mut socket).await.unwrap(), b'a');
        link.set(LinkState::Cut);
        assert!(exchange(&mut socket).await.is_err());
        let mut second = TcpStream::connect(link.address()).await.unwrap();
        assert!(exchange(&mut second).await.is_err());
        link.set(LinkState::Open);
        let mut third = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(exchange(&mut third).await.unwrap(), b'a');
    }

    #[tokio::test]
    async fn delayed_link_delays_each_direction_and_another_target_gets_new_connections() {
        let (link, mut socket) = echo().await;
        let delay = Duration::from_millis(20);
        link.set(LinkState::Delayed(delay));
        let begun = tokio::time::Instant::now();
        assert_eq!(exchange(&mut socket).await.unwrap(), b'a');
        assert!(begun.elapsed() >= 2 * delay);
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        link.lead_to(other.local_addr().unwrap());
        let _second = TcpStream::connect(link.address()).await.unwrap();
        other.accept().await.unwrap();
    }
}
