//! The client: calls over connections that it opens when it needs them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::bucket::Bucket;
use crate::connection::{Connection, Frame, unexpected};
use crate::error::{Error, Result};
use crate::limits::DEFAULT_DEADLINE;
use crate::message::{Attach, BucketEntry, ErrorCode, Pair, Reply, Request, Welcome};
use crate::place::default_socket;
use crate::pool::Pool;
use crate::sys::count_forks;

/// A client of the server of this user. Cheap to clone; any number of threads can use it at once.
///
/// It has neither a thread nor a runtime. It opens connections when calls need them and keeps a few. In the child of a fork it opens
/// new ones; views of the parent stay valid in both. It needs no close: a connection ends with its last call and view.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    program: String,
    connections: Pool,
    /// The start of the server that all connections must be to; `None`: any.
    instance: Option<OnceLock<u64>>,
}

/// A server's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// Version of the program.
    pub version: String,
    /// URL of the S3 endpoint.
    pub s3: String,
    /// URL of the GCS endpoint, if there is one.
    pub gcs: Option<String>,
    /// Whether this client maps the server's memory. Without, all bytes are copied.
    pub shares_memory: bool,
}

impl Client {
    /// Connects to the server at `$BYWASH_LOCAL`, or at this user's well-known socket.
    ///
    /// # Errors
    /// [`ErrorCode::Connection`] if none listens there, [`ErrorCode::Protocol`] if it speaks another version.
    pub fn connect() -> Result<Self> {
        Self::connect_to(default_socket())
    }

    /// Connects to the server that listens at `socket`.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_to(socket: impl AsRef<Path>) -> Result<Self> {
        Self::begin(socket.as_ref(), DEFAULT_DEADLINE, None)
    }

    /// As [`Self::connect_to`] within `deadline`, which all calls have too, and to this start of the server alone: when another one listens
    /// at the socket, calls fail with [`ErrorCode::Connection`].
    ///
    /// # Errors
    /// As [`Self::connect`]; [`ErrorCode::Deadline`].
    pub fn connect_once(socket: impl AsRef<Path>, deadline: Duration) -> Result<Self> {
        Self::begin(socket.as_ref(), deadline, Some(OnceLock::new()))
    }

    fn begin(socket: &Path, deadline: Duration, instance: Option<OnceLock<u64>>) -> Result<Self> {
        count_forks();
        let program = std::env::args_os().next();
        let program = program.as_deref().map(Path::new).and_then(Path::file_name);
        let client = Self {
            shared: Arc::new(Shared {
                socket: socket.to_owned(),
                program: program
                    .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                connections: Pool::default(),
                instance,
            }),
            deadline,
        };
        let connection = client.open()?;
        client.keep(connection);
        Ok(client)
    }

    /// The same client with another deadline of its calls, 60 s by default. A call that exceeds it
    /// fails with [`ErrorCode::Deadline`], and its connection is closed.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The socket of the server.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Bucket `name` of the server. Sends nothing.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Bucket {
        Bucket::new(self.clone(), name)
    }

    /// Has the server mount the origin at `address`, as `s3://data` or `file:///srv/photos`, with its own credentials or with `options`
    /// by the names of a `[[bucket]]` in its settings. An origin that is mounted already is used as it is.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] if the address is invalid.
    pub fn attach(&self, address: &str, options: &[(&str, &str)]) -> Result<Bucket> {
        let options = options.iter().map(|(name, value)| Pair {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        });
        let request = Request::Attach(Attach {
            address: address.to_owned(),
            options: options.collect(),
        });
        match self.call(&request)? {
            Reply::Attached(name) => Ok(self.bucket(&name)),
            _ => Err(unexpected()),
        }
    }

    /// Returns the server's buckets with the kinds of their origins, by name.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn buckets(&self) -> Result<Vec<(String, String)>> {
        match self.read(&Request::Buckets(()))? {
            Reply::Buckets(buckets) => {
                let entry = |BucketEntry { name, kind }| (name, kind);
                Ok(buckets.into_iter().map(entry).collect())
            }
            _ => Err(unexpected()),
        }
    }

    /// Makes a bucket: a folder of the server's.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`], [`ErrorCode::InvalidArgument`] for a name that is not one of S3, [`ErrorCode::Unsupported`] at a server
    /// with a fixed set of buckets.
    pub fn make_bucket(&self, name: &str) -> Result<Bucket> {
        match self.call(&Request::MakeBucket(name.to_owned()))? {
            Reply::Done(()) => Ok(self.bucket(name)),
            _ => Err(unexpected()),
        }
    }

    /// Removes an empty bucket.
    ///
    /// # Errors
    /// [`ErrorCode::Precondition`] if it has objects, [`ErrorCode::Unsupported`] for one that was mounted.
    pub fn remove_bucket(&self, name: &str) -> Result<()> {
        match self.call(&Request::RemoveBucket(name.to_owned()))? {
            Reply::Done(()) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Returns the state of the local door as JSON: clients, leases, counters.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn status(&self) -> Result<String> {
        match self.read(&Request::Status(()))? {
            Reply::Status(json) => Ok(json),
            _ => Err(unexpected()),
        }
    }

    /// Returns the server's description of itself.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn server(&self) -> Result<ServerInfo> {
        let connection = self.connection()?;
        let Welcome {
            program, s3, gcs, ..
        } = (**connection.welcome()).clone();
        let info = ServerInfo {
            version: program,
            s3,
            gcs: Some(gcs).filter(|gcs| !gcs.is_empty()),
            shares_memory: connection.link().map().is_some(),
        };
        self.keep(connection);
        Ok(info)
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The deadline as messages have it.
    pub(crate) fn deadline_ms(&self) -> u32 {
        u32::try_from(self.deadline.as_millis()).unwrap_or(u32::MAX)
    }

    fn open(&self) -> Result<Connection> {
        let shared = &self.shared;
        let connection = Connection::open(&shared.socket, &shared.program, self.deadline)?;
        let now = connection.welcome().instance;
        match &shared.instance {
            Some(first) if *first.get_or_init(|| now) != now => {
                let message = format!(
                    "another server listens at {} than at first; connect again",
                    shared.socket.display()
                );
                Err(Error::new(ErrorCode::Connection, message))
            }
            _ => Ok(connection),
        }
    }

    /// Returns a connection that this thread alone uses.
    pub(crate) fn connection(&self) -> Result<Connection> {
        match self.shared.connections.take() {
            Some(connection) => Ok(connection),
            None => self.open(),
        }
    }

    /// Ends a call on a connection, which later calls use.
    pub(crate) fn end(&self, connection: Connection) {
        connection.stop();
        self.keep(connection);
    }

    /// Keeps a connection for later calls.
    pub(crate) fn keep(&self, connection: Connection) {
        self.shared.connections.put(connection);
    }

    /// Runs a call on a connection, which is kept for the next call if this one succeeds. After a failed write the server closes it.
    pub(crate) fn on_connection<T>(
        &self,
        call: impl FnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut connection = self.connection()?;
        connection.start(self.deadline)?;
        let result = call(&mut connection);
        connection.stop();
        if result.is_ok() {
            self.keep(connection);
        }
        result
    }

    /// Sends one request and returns its reply.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply> {
        let frame = self.on_connection(|connection| {
            connection.queue(request);
            connection.flush()?;
            connection.next()
        })?;
        reply_of(frame)
    }

    /// As [`Self::call`] for a request that changes nothing: sent again, once, if the server has closed the connection.
    pub(crate) fn read(&self, request: &Request) -> Result<Reply> {
        self.again_if_broken(|| self.call(request))
    }

    /// Runs a call that changes nothing, and again, once, if the connection broke: the server was started again.
    pub(crate) fn again_if_broken<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        match call() {
            Err(error) if error.code() == ErrorCode::Connection => call(),
            result => result,
        }
    }
}

/// Waits for a reply without data.
pub(crate) fn reply(connection: &mut Connection) -> Result<Reply> {
    reply_of(connection.next()?)
}

fn reply_of(frame: Frame) -> Result<Reply> {
    match frame {
        Frame::Reply(Reply::Error(failure)) => Err(failure.into()),
        Frame::Reply(reply) => Ok(reply),
        Frame::Data(_) => Err(unexpected()),
    }
}
