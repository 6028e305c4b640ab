//! The messages of the local protocol.
//!
//! Each message is a frame: a head of 12 bytes ([`FrameHead`]) and a payload. The payload of [`Kind::Request`] is a [`Request`], of
//! [`Kind::Reply`] a [`Reply`], of [`Kind::Data`] bytes of an object as they are.

use std::fmt;

use crate::limits::MAX_MESSAGE_BYTES;
use crate::wire::{Input, Wire, WireError, wire_enums, wire_structs};

/// Version of the protocol. Server and client have the same, or the server refuses the client by its name.
pub const VERSION: u16 = 2;
/// First bytes of a hello, so that a client of another protocol is refused with its first message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"BYWL");
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 12;

/// Kind of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A [`Request`].
    Request,
    /// A [`Reply`].
    Reply,
    /// Bytes of an object.
    Data,
}

/// Head of a frame: length of the payload, number of the request, kind, three zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of the payload.
    pub len: u32,
    /// Number of the request that the frame belongs to, which the client chooses.
    pub request: u32,
    /// Kind of the payload.
    pub kind: Kind,
}

impl FrameHead {
    /// Bytes of the head.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let kind = match self.kind {
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::Data => 3,
        };
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&self.len.to_le_bytes());
        head[4..8].copy_from_slice(&self.request.to_le_bytes());
        head[8] = kind;
        head
    }

    /// Decodes and checks a head.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are no head, or announce more than [`MAX_MESSAGE_BYTES`].
    pub fn decode(head: [u8; HEAD_BYTES]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h, kind, zeros @ ..] = head;
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Data,
            _ => return Err(WireError::Variant),
        };
        let len = u32::from_le_bytes([a, b, c, d]);
        if zeros != [0; 3] || len as usize > MAX_MESSAGE_BYTES {
            return Err(WireError::Variant);
        }
        let request = u32::from_le_bytes([e, f, g, h]);
        Ok(Self { len, request, kind })
    }
}

/// Appends a frame whose payload is `message`.
pub fn put_frame(kind: Kind, request: u32, message: &impl Wire, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    message.put(out);
    let len = (out.len() - start - HEAD_BYTES) as u32;
    let head = FrameHead { len, request, kind };
    out[start..start + HEAD_BYTES].copy_from_slice(&head.encode());
}

/// Appends a frame of object data.
pub fn put_data(request: u32, data: &[u8], out: &mut Vec<u8>) {
    let head = FrameHead {
        len: data.len() as u32,
        request,
        kind: Kind::Data,
    };
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(data);
}

wire_enums! {
    /// Request of a client.
    pub enum Request {
        /// The first message of a connection.
        Hello(Hello) = 1,
        /// Names of the buckets. The reply is [`Reply::Buckets`].
        Buckets(()) = 2,
        /// Mounts an origin by its address. The reply is [`Reply::Attached`].
        Attach(Attach) = 3,
        /// One page of a listing. The reply is [`Reply::Page`].
        List(List) = 4,
        /// Metadata of an object. The reply is [`Reply::Head`].
        Head(Head) = 5,
        /// Bytes of objects. The replies are [`Reply::Leased`], [`Reply::Bytes`] or [`Reply::Failed`] for each object in order, then
        /// [`Reply::Done`].
        Get(Get) = 6,
        /// Begins a write. The reply is [`Reply::Writing`]; then frames of data follow, then [`Request::Finish`] or
        /// [`Request::Abort`].
        Put(Put) = 7,
        /// Continues an upload that another connection began. The reply is [`Reply::Writing`].
        Resume(Resume) = 8,
        /// State of the write in progress, for [`Request::Resume`]. The reply is [`Reply::Token`].
        Capture(()) = 9,
        /// Ends a write. The reply is [`Reply::Stored`].
        Finish(()) = 10,
        /// Discards a write. The reply is [`Reply::Done`].
        Abort(()) = 11,
        /// Copies an object. The reply is [`Reply::Done`].
        Copy(Copy) = 12,
        /// Deletes objects. The reply is [`Reply::Deleted`].
        Delete(Delete) = 13,
        /// Ends leases of this connection. Has no reply.
        Release(Release) = 14,
        /// State of the local door. The reply is [`Reply::Status`].
        Status(()) = 15,
        /// A signed address of an object. The reply is [`Reply::Signed`].
        Sign(Sign) = 16,
        /// Makes a bucket. The reply is [`Reply::Done`].
        MakeBucket(String) = 17,
        /// Removes an empty bucket. The reply is [`Reply::Done`].
        RemoveBucket(String) = 18,
    }

    /// Message of the server.
    pub enum Reply {
        /// Of [`Request::Hello`]. The descriptor of the shared memory is sent with it if there is
        /// any.
        Welcome(Welcome) = 1,
        /// Of [`Request::Buckets`].
        Buckets(Vec<BucketEntry>) = 2,
        /// Of [`Request::Attach`]: the bucket's name.
        Attached(String) = 3,
        /// Of [`Request::List`].
        Page(Page) = 4,
        /// Of [`Request::Head`].
        Head(ObjectHead) = 5,
        /// Of [`Request::Get`]: one object's bytes in shared memory.
        Leased(Leased) = 6,
        /// Of [`Request::Get`]: frames of data follow, the bytes of each range in order. A [`Reply::Failed`] ends them early.
        Bytes(Bytes) = 7,
        /// Of [`Request::Get`]: the object cannot be read.
        Failed(Failure) = 8,
        /// The request is executed.
        Done(()) = 9,
        /// Of [`Request::Put`] and [`Request::Resume`].
        Writing(Writing) = 10,
        /// Of [`Request::Finish`].
        Stored(Stored) = 11,
        /// Of [`Request::Capture`].
        Token(Token) = 12,
        /// Of [`Request::Delete`]: the keys that were not deleted.
        Deleted(Vec<Undeleted>) = 13,
        /// Of [`Request::Status`]: JSON.
        Status(String) = 14,
        /// The request failed.
        Error(Failure) = 15,
        /// Of [`Request::Sign`]: the address.
        Signed(String) = 16,
    }

    /// Bytes of an object.
    pub enum ByteRange {
        /// All bytes.
        Whole(()) = 1,
        /// From the first offset to before the second.
        Bounded(Bounds) = 2,
        /// From an offset to the end.
        From(u64) = 3,
        /// The last n bytes.
        Last(u64) = 4,
    }

    /// Condition of a write.
    pub enum WriteMode {
        /// Replaces any existing object.
        Overwrite(()) = 1,
        /// Fails if there is an object.
        Create(()) = 2,
        /// Fails unless the object has this ETag.
        IfMatch(String) = 3,
    }
}

wire_structs! {
    /// First message of a client.
    pub struct Hello {
        /// [`MAGIC`].
        pub magic: u32,
        /// [`VERSION`] of the client.
        pub version: u16,
        /// Name of the program, for the operator.
        pub program: String,
    }

    /// First message of the server.
    pub struct Welcome {
        /// [`VERSION`] of the server.
        pub version: u16,
        /// Version of the program.
        pub program: String,
        /// Bytes of shared memory whose descriptor is sent with this message; 0 without one.
        pub memory: u64,
        /// URL of the S3 endpoint.
        pub s3: String,
        /// URL of the GCS endpoint; empty without one.
        pub gcs: String,
        /// Number of this start of the server, chosen at random.
        pub instance: u64,
    }

    /// Offsets in an object.
    pub struct Bounds {
        /// The first byte.
        pub start: u64,
        /// The byte after the last.
        pub end: u64,
    }

    /// A name and a value: a header, a metadata entry, an option.
    pub struct Pair {
        /// The name.
        pub name: String,
        /// The value.
        pub value: String,
    }

    /// Mounts an origin.
    pub struct Attach {
        /// Its address, as `s3://data/prefix`.
        pub address: String,
        /// Options of the origin, as in a `[[bucket]]` of the settings.
        pub options: Vec<Pair>,
    }

    /// A bucket of the server.
    pub struct BucketEntry {
        /// The name.
        pub name: String,
        /// Kind of its origin, as `s3` or `folder`.
        pub kind: String,
    }

    /// A page of a listing.
    pub struct List {
        /// The bucket.
        pub bucket: String,
        /// Keys begin with it.
        pub prefix: String,
        /// Keys are cut after the first delimiter behind the prefix; empty: not.
        pub delimiter: String,
        /// Token of the page before; empty: from the start.
        pub after: String,
        /// Maximum entries.
        pub limit: u32,
        /// Milliseconds after which the request fails.
        pub deadline_ms: u32,
    }

    /// An object.
    pub struct ObjectInfo {
        /// The key.
        pub key: String,
        /// Bytes.
        pub size: u64,
        /// Date of the last change, in seconds since 1970.
        pub modified_s: i64,
        /// Nanoseconds after `modified_s`.
        pub modified_ns: u32,
        /// ETag, if the origin has one.
        pub etag: Option<String>,
        /// Version or generation, if the origin has one.
        pub version: Option<String>,
        /// Whether the ETag is weak: equal ETags do not mean equal bytes.
        pub weak: bool,
    }

    /// Reply to [`List`].
    pub struct Page {
        /// Objects, by key.
        pub objects: Vec<ObjectInfo>,
        /// Keys cut after the delimiter.
        pub prefixes: Vec<String>,
        /// Token of the next page; empty: this was the last.
        pub next: String,
        /// Number of entries that the origin has and the page leaves out, because they have no key or cannot be read.
        pub left_out: u64,
    }

    /// Conditions of a read.
    pub struct Conditions {
        /// The object has this ETag.
        pub if_match: Option<String>,
        /// The object does not have this ETag.
        pub if_none_match: Option<String>,
        /// Reads this version.
        pub version: Option<String>,
    }

    /// Metadata of an object.
    pub struct Head {
        /// The bucket.
        pub bucket: String,
        /// The key.
        pub key: String,
        /// Conditions.
        pub conditions: Conditions,
        /// Milliseconds after which the request fails.
        pub deadline_ms: u32,
    }

    /// Reply to [`Head`].
    pub struct ObjectHead {
        /// The object.
        pub object: ObjectInfo,
        /// Content headers and metadata, these with the prefix `x-amz-meta-`.
        pub attributes: Vec<Pair>,
    }

    /// Reads bytes.
    pub struct Get {
        /// Objects with their ranges.
        pub objects: Vec<GetObject>,
        /// Objects with fewer bytes in all their ranges come as bytes. `u32::MAX`: all do.
        pub inline_bytes: u32,
        /// Milliseconds after which a request without a reply fails.
        pub deadline_ms: u32,
    }

    /// Ranges of one version of an object.
    pub struct GetObject {
        /// The bucket.
        pub bucket: String,
        /// The key.
        pub key: String,
        /// Conditions.
        pub conditions: Conditions,
        /// The ranges. With more than one each is [`ByteRange::Bounded`].
        pub ranges: Vec<ByteRange>,
    }

    /// Bytes in shared memory.
    pub struct Part {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub len: u64,
    }

    /// A range in shared memory.
    pub struct LeasedRange {
        /// First byte in the object.
        pub start: u64,
        /// Its bytes in order.
        pub parts: Vec<Part>,
    }

    /// An object's bytes in shared memory.
    pub struct Leased {
        /// Number of the lease at this connection.
        pub lease: u32,
        /// The version that was read. Its key is empty: the client knows it.
        pub object: ObjectInfo,
        /// Whether all blocks were in memory.
        pub hit: bool,
        /// The ranges, in the order of the request.
        pub ranges: Vec<LeasedRange>,
    }

    /// An object's bytes in frames of data.
    pub struct Bytes {
        /// The version that was read. Its key is empty: the client knows it.
        pub object: ObjectInfo,
        /// Whether all blocks were in memory.
        pub hit: bool,
        /// The ranges, in the order of the request.
        pub ranges: Vec<Bounds>,
    }

    /// Begins a write.
    pub struct Put {
        /// The bucket.
        pub bucket: String,
        /// The key.
        pub key: String,
        /// Condition, checked when the object becomes visible.
        pub mode: WriteMode,
        /// Content headers and metadata, these with the prefix `x-amz-meta-`.
        pub attributes: Vec<Pair>,
        /// Number of bytes to come, if known. Any other number fails.
        pub length: Option<u64>,
        /// Bytes of a chunk; 0: the server's.
        pub chunk: u64,
    }

    /// Continues a write.
    pub struct Resume {
        /// The bucket.
        pub bucket: String,
        /// Of [`Reply::Token`].
        pub token: Vec<u8>,
    }

    /// State of a write.
    pub struct Token {
        /// For [`Resume`], also at another server.
        pub token: Vec<u8>,
        /// Bytes that the store has: a continued write starts there.
        pub position: u64,
    }

    /// Reply to [`Put`].
    pub struct Writing {
        /// Offset of the next byte that the client sends.
        pub position: u64,
    }

    /// Result of a write.
    pub struct Stored {
        /// ETag, if the origin has one.
        pub etag: Option<String>,
        /// Version or generation, if the origin has one.
        pub version: Option<String>,
    }

    /// Copies an object within a bucket, or to another one of the server.
    pub struct Copy {
        /// Bucket of the source.
        pub from_bucket: String,
        /// Key of the source.
        pub from_key: String,
        /// ETag that the source has; `None`: any.
        pub from_etag: Option<String>,
        /// Bucket of the target.
        pub to_bucket: String,
        /// Key of the target.
        pub to_key: String,
        /// Condition of the target.
        pub mode: WriteMode,
        /// Milliseconds after which the request fails.
        pub deadline_ms: u32,
    }

    /// Deletes objects.
    pub struct Delete {
        /// The bucket.
        pub bucket: String,
        /// The keys.
        pub keys: Vec<String>,
        /// ETag that the object has, for one key; `None`: any.
        pub if_match: Option<String>,
        /// Milliseconds after which the request fails.
        pub deadline_ms: u32,
    }

    /// A key that was not deleted.
    pub struct Undeleted {
        /// The key.
        pub key: String,
        /// Why.
        pub failure: Failure,
    }

    /// Leases to end.
    pub struct Release {
        /// Numbers of leases of this connection.
        pub leases: Vec<u32>,
    }

    /// A signed address.
    pub struct Sign {
        /// The bucket.
        pub bucket: String,
        /// The key.
        pub key: String,
        /// Method of the request: GET, PUT, HEAD or DELETE.
        pub method: String,
        /// Seconds for which it is good.
        pub expires_s: u32,
    }

    /// Why a request failed.
    pub struct Failure {
        /// Action that the caller can take.
        pub code: ErrorCode,
        /// Object, operation and next step.
        pub message: String,
    }
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Kinds of failures, by the action that the caller can take.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its number in messages and in the C interface.
            #[must_use]
            pub fn number(self) -> u16 {
                match self {
                    $(Self::$name => $number,)*
                }
            }

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }

        impl Wire for ErrorCode {
            fn put(&self, out: &mut Vec<u8>) {
                self.number().put(out);
            }

            fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
                match u16::take(input)? {
                    $($number => Ok(Self::$name),)*
                    _ => Err(WireError::Variant),
                }
            }
        }
    };
}

error_codes! {
    /// There is no such object.
    NotFound = 1,
    /// There is no such bucket.
    NoSuchBucket = 2,
    /// A condition of the request does not hold.
    Precondition = 3,
    /// The object has the ETag that the caller knows.
    NotModified = 4,
    /// There is such an object, or bucket, already.
    AlreadyExists = 5,
    /// The request is wrong in itself.
    InvalidArgument = 6,
    /// The range is beyond the object's end.
    InvalidRange = 7,
    /// The store refuses the server's credentials, or the server refuses the client.
    PermissionDenied = 8,
    /// The store, or the bucket, has no such operation.
    Unsupported = 9,
    /// No memory in time: try again later.
    SlowDown = 10,
    /// The deadline passed.
    Deadline = 11,
    /// The store failed: try again later.
    Unavailable = 12,
    /// The object changed while it was read, twice: try again.
    VersionChanged = 13,
    /// The bytes do not have the digest that was stated for them.
    Damaged = 14,
    /// The upload cannot be continued: begin again.
    UploadLost = 15,
    /// A number of the client's limits is exceeded: leases, connections, objects of one request.
    Limit = 16,
    /// Server and client speak different versions of the protocol.
    Protocol = 17,
    /// There is no server, or the connection to it broke. Of the client alone.
    Connection = 18,
    /// A file or socket of the client's machine failed. Of the client alone.
    Io = 19,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
