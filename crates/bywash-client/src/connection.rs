//! One connection: requests and replies in turn, and releases of leases between them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send,
    sockopt::socket_peercred,
};

use crate::error::{Error, Result};
use crate::limits::{MAX_DATA_BYTES, SPIN};
use crate::message::{
    ErrorCode, FrameHead, HEAD_BYTES, Hello, Kind, MAGIC, Release, Reply, Request, VERSION,
    Welcome, put_data, put_frame,
};
use crate::place::SocketPath;
use crate::sys::{Generation, Map, fork_generation};
use crate::wire::Wire;

/// Time that stands for a call without a deadline: a century.
const LONGEST_CALL: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Bytes read from the socket at once.
const READ_BYTES: usize = 256 << 10;

/// Part of a connection that its leases need, also while a call uses it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UnixStream,
    map: Option<Map>,
    /// Of the connection's start. After a fork two processes have it, so neither sends anything any
    /// more.
    generation: Generation,
    /// Whether a thread writes to the socket. Set by that thread alone; sequentially consistent, paired with [`Self::pending`]: a
    /// thread that adds a lease and finds it set leaves the lease to the thread that clears it, which looks at the list afterwards.
    sending: AtomicBool,
    /// Ended leases that the server does not know of.
    pending: Mutex<Vec<u32>>,
}

impl Link {
    pub(crate) fn map(&self) -> Option<&Map> {
        self.map.as_ref()
    }

    /// Whether no fork has shared this connection with another process.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Ends a lease: at the server now, or with the next request. After a fork it ends when all processes have closed the connection.
    pub(crate) fn release(&self, lease: u32) {
        // Before the lock: in a child another thread of the parent may hold it forever.
        if !self.is_own() {
            return;
        }
        self.pending().push(lease);
        self.send_releases();
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        // No code under this lock panics.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the right to write to the socket.
    fn start_sending(&self) -> bool {
        !self.sending.swap(true, SeqCst)
    }

    /// Gives the right to write back, and sends the leases left to this thread.
    fn stop_sending(&self) {
        self.sending.store(false, SeqCst);
        self.send_releases();
    }

    /// Sends the ended leases unless another thread writes, which then does.
    fn send_releases(&self) {
        while !self.pending().is_empty() && self.start_sending() {
            let leases = std::mem::take(&mut *self.pending());
            let sent = self.try_send_releases(&leases);
            if !sent {
                self.pending().extend(leases);
            }
            self.sending.store(false, SeqCst);
            if !sent {
                // The socket is full or closed. A full one is tried again with the next request.
                return;
            }
        }
    }

    fn try_send_releases(&self, leases: &[u32]) -> bool {
        if leases.is_empty() {
            return true;
        }
        let mut message = Vec::with_capacity(HEAD_BYTES + 8 + leases.len() * 4);
        put_release(leases, &mut message);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(&self.socket, &message, flags) {
            Ok(sent) if sent == message.len() => true,
            Ok(_) => {
                // A part of a message: nothing that makes sense can follow it.
                let _ = self.socket.shutdown(std::net::Shutdown::Both);
                true
            }
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }
}

fn put_release(leases: &[u32], out: &mut Vec<u8>) {
    let release = Request::Release(Release {
        leases: leases.to_vec(),
    });
    put_frame(Kind::Request, 0, &release, out);
}

/// A frame that was received.
#[derive(Debug)]
pub(crate) enum Frame {
    Reply(Reply),
    /// Length of data that is next in the input.
    Data(usize),
}

/// A connection that one thread uses.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Arc<Link>,
    input: Input,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    /// Number of the last request.
    request: u32,
    /// When the call in progress fails.
    deadline: Instant,
    timeout: Duration,
    welcome: Arc<Welcome>,
}

/// Received bytes.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were taken.
    taken: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let start = self.taken;
        self.taken += count;
        &self.bytes[start..start + count]
    }
}

impl Connection {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`ErrorCode::Connection`] if there is no server; [`ErrorCode::PermissionDenied`] if it is
    /// another user's.
    pub(crate) fn open(path: &Path, program: &str, timeout: Duration) -> Result<Self> {
        let generation = fork_generation();
        let socket = connect(path)?;
        check_peer(&socket, path)?;
        let link = Link {
            socket,
            map: None,
            generation,
            sending: AtomicBool::new(true),
            pending: Mutex::default(),
        };
        let mut connection = Self {
            link: Arc::new(link),
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            request: 0,
            deadline: Instant::now() + timeout,
            timeout,
            welcome: Arc::new(Welcome {
                version: 0,
                program: String::new(),
                memory: 0,
                s3: String::new(),
                gcs: String::new(),
                instance: 0,
            }),
        };
        connection.greet(program)?;
        connection.link.stop_sending();
        Ok(connection)
    }

    /// Exchanges the first messages, and maps the server's memory.
    fn greet(&mut self, program: &str) -> Result<()> {
        self.begin(self.timeout);
        self.queue(&Request::Hello(Hello {
            magic: MAGIC,
            version: VERSION,
            program: program.to_owned(),
        }));
        self.flush()?;
        let mut memory = None;
        while self.input.unread().len() < HEAD_BYTES {
            self.receive(Some(&mut memory))?;
        }
        let Frame::Reply(reply) = self.next()? else {
            return Err(unexpected());
        };
        let welcome = match reply {
            Reply::Welcome(welcome) => welcome,
            Reply::Error(failure) => return Err(failure.into()),
            _ => return Err(unexpected()),
        };
        // Without a map all bytes come by message: as where `ulimit -v` allows no map of this size.
        let map = memory.and_then(|memory| Map::new(memory, welcome.memory).ok());
        let link = Arc::get_mut(&mut self.link).expect("no lease is there before the first reply");
        link.map = map;
        self.welcome = Arc::new(welcome);
        Ok(())
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn welcome(&self) -> &Arc<Welcome> {
        &self.welcome
    }

    /// Descriptor of the socket, to wait for a reply.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.socket.as_fd()
    }

    /// Has the call in progress end within `timeout` from now.
    pub(crate) fn extend(&mut self, timeout: Duration) {
        self.timeout = timeout.min(LONGEST_CALL);
        self.deadline = Instant::now() + self.timeout;
    }

    fn begin(&mut self, timeout: Duration) {
        self.extend(timeout);
        // 0 is the number of messages without a reply.
        self.request = self.request.wrapping_add(1).max(1);
    }

    /// Begins a call: from now on this thread alone writes to the socket.
    ///
    /// # Errors
    /// [`ErrorCode::Connection`] if releases are being sent for longer than a moment, which takes a stopped thread.
    pub(crate) fn start(&mut self, timeout: Duration) -> Result<()> {
        self.begin(timeout);
        let mut spins = 0;
        while !self.link.start_sending() {
            // Another thread is inside `send` with `DONTWAIT`.
            std::thread::yield_now();
            spins += 1;
            if spins % 1024 == 0 && Instant::now() > self.deadline {
                return Err(self.late());
            }
        }
        let ended = std::mem::take(&mut *self.link.pending());
        if !ended.is_empty() {
            put_release(&ended, &mut self.output);
        }
        Ok(())
    }

    /// Ends a call: other threads may send releases.
    pub(crate) fn stop(&self) {
        self.link.stop_sending();
    }

    /// Whether bytes wait to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether another call can use this connection: no fork has shared it, and the server has not closed it.
    pub(crate) fn is_usable(&self) -> bool {
        let mut sockets = [PollFd::new(&self.link.socket, PollFlags::IN)];
        let quiet = poll(&mut sockets, Some(&Timespec::default()));
        self.link.is_own() && quiet == Ok(0) && self.input.unread().is_empty()
    }

    /// Queues a message for the next flush.
    pub(crate) fn queue(&mut self, request: &Request) {
        put_frame(Kind::Request, self.request, request, &mut self.output);
    }

    /// Sends the queued bytes.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while !self.try_flush()? {
            self.wait(PollFlags::OUT)?;
        }
        Ok(())
    }

    /// Sends as many of the queued bytes as the socket takes. Returns whether all is sent. Never
    /// waits.
    pub(crate) fn try_flush(&mut self) -> Result<bool> {
        while self.sent < self.output.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.link.socket, &self.output[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                // The server may have said why before it closed.
                Err(error) => return Err(self.refused(error.into())),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Sends bytes of an object after the queued bytes.
    pub(crate) fn send_data(&mut self, data: &[u8]) -> Result<()> {
        for data in data.chunks(MAX_DATA_BYTES) {
            self.queue_data(data);
            self.flush()?;
        }
        Ok(())
    }

    /// Queues a frame of object data for the next flush.
    pub(crate) fn queue_data(&mut self, data: &[u8]) {
        put_data(self.request, data, &mut self.output);
    }

    /// The last words of a server that closed the connection, or the error of the system.
    fn refused(&mut self, error: io::Error) -> Error {
        loop {
            match self.next() {
                Ok(Frame::Reply(Reply::Error(failure))) => return failure.into(),
                Ok(_) => {}
                Err(_) => return broken(error),
            }
        }
    }

    /// Waits for the next frame. The bytes of [`Frame::Data`] must be taken before the next call.
    pub(crate) fn next(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.try_next()? {
                return Ok(frame);
            }
            self.wait(PollFlags::IN)?;
        }
    }

    /// Returns the next frame if it has arrived. Never waits.
    pub(crate) fn try_next(&mut self) -> Result<Option<Frame>> {
        if let Some(frame) = self.buffered()? {
            return Ok(Some(frame));
        }
        if !self.receive_now(None)? {
            return Ok(None);
        }
        self.buffered()
    }

    /// Waits until queued bytes can be sent, or else until something arrives; at most until the
    /// deadline.
    pub(crate) fn wait_for_more(&self) -> Result<()> {
        let flags = if self.has_unsent() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        self.wait(flags)
    }

    /// Decodes the next frame of the input; of data as soon as its head is there.
    fn buffered(&mut self) -> Result<Option<Frame>> {
        let Some(head) = self.input.unread().first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let head = FrameHead::decode(*head)?;
        let len = head.len as usize;
        if head.request != self.request && head.request != 0 {
            return Err(unexpected());
        }
        if head.kind == Kind::Data {
            self.input.take(HEAD_BYTES);
            return Ok(Some(Frame::Data(len)));
        }
        if self.input.unread().len() < HEAD_BYTES + len {
            return Ok(None);
        }
        let payload = &self.input.take(HEAD_BYTES + len)[HEAD_BYTES..];
        let reply = Reply::decode(payload)?;
        Ok(Some(Frame::Reply(reply)))
    }

    /// Reads bytes of [`Frame::Data`] that have arrived into `target`. Returns how many; 0 if none has. Never waits.
    pub(crate) fn try_read_data(&mut self, target: &mut [u8]) -> Result<usize> {
        let buffered = self.input.unread().len().min(target.len());
        if buffered > 0 {
            target[..buffered].copy_from_slice(self.input.take(buffered));
            return Ok(buffered);
        }
        // The rest is received in its destination, without a copy here.
        match rustix::net::recv(&self.link.socket, target, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(closed()),
            Ok((count, _)) => Ok(count),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(broken(error.into())),
        }
    }

    fn receive(&mut self, memory: Option<&mut Option<OwnedFd>>) -> Result<()> {
        self.wait(PollFlags::IN)?;
        self.receive_now(memory)?;
        Ok(())
    }

    /// Reads the bytes that have arrived. Returns whether any had.
    fn receive_now(&mut self, memory: Option<&mut Option<OwnedFd>>) -> Result<bool> {
        let input = &mut self.input;
        if input.taken == input.bytes.len() {
            input.bytes.clear();
        } else {
            input.bytes.drain(..input.taken);
        }
        input.taken = 0;
        let filled = input.bytes.len();
        // Long replies are read in few calls; most are short.
        let room = if filled == 0 { 4096 } else { READ_BYTES };
        input.bytes.resize(filled + room, 0);
        let target = &mut input.bytes[filled..];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [io::IoSliceMut::new(target)];
        let received = loop {
            match recvmsg(&self.link.socket, parts, &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received,
            }
        };
        let count = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => {
                self.input.bytes.truncate(filled);
                return Ok(false);
            }
            Err(error) => {
                self.input.bytes.truncate(filled);
                return Err(broken(error.into()));
            }
        };
        self.input.bytes.truncate(filled + count);
        if let Some(memory) = memory {
            let descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            *memory = descriptors.flatten().last().or(memory.take());
        }
        if count == 0 {
            return Err(closed());
        }
        Ok(true)
    }

    /// Waits until the socket is ready, or the deadline. Polls without a pause at first: a warm
    /// read is answered sooner than a sleeping core wakes.
    fn wait(&self, flags: PollFlags) -> Result<()> {
        let ready = |timeout: Option<&Timespec>| {
            poll(&mut [PollFd::new(&self.link.socket, flags)], timeout)
        };
        let start = Instant::now();
        while start.elapsed() < SPIN {
            // A server that waits for this core runs.
            std::thread::yield_now();
            if ready(Some(&Timespec::default())) == Ok(1) {
                return Ok(());
            }
        }
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late());
            }
            match ready(Timespec::try_from(left).ok().as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(broken(error.into())),
            }
        }
    }

    fn late(&self) -> Error {
        let message = format!(
            "the server did not reply within {} s; it is stopped or overloaded: see `bywash local status`, or give a longer deadline",
            self.timeout.as_secs_f64()
        );
        Error::new(ErrorCode::Deadline, message)
    }
}

fn closed() -> Error {
    broken(io::ErrorKind::UnexpectedEof.into())
}

fn connect(path: &Path) -> Result<UnixStream> {
    let absent = |error: io::Error| {
        let message = format!(
            "no server listens at {}; start one: bywash serve",
            path.display()
        );
        Error::connection(message, error)
    };
    let address = SocketPath::new(path).map_err(absent)?;
    UnixStream::connect(address.as_path()).map_err(absent)
}

/// Refuses a server of another user: whoever can write to the folder could listen there.
fn check_peer(socket: &UnixStream, path: &Path) -> Result<()> {
    let peer = socket_peercred(socket).map_err(|error| broken(error.into()))?;
    let own = rustix::process::geteuid();
    if peer.uid == own || peer.uid.is_root() || own.is_root() {
        return Ok(());
    }
    let message = format!(
        "the server at {} runs as user {}; a local client uses only a server of its own user",
        path.display(),
        peer.uid.as_raw()
    );
    Err(Error::new(ErrorCode::PermissionDenied, message))
}

pub(crate) fn broken(error: io::Error) -> Error {
    Error::connection("the connection to the server broke", error)
}

pub(crate) fn unexpected() -> Error {
    let message = "the server sent another reply than the request has; install the same release of client and server";
    Error::new(ErrorCode::Protocol, message)
}
