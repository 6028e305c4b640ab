//! The C interface of the local client, from which other languages start. `include/bywash.h` is made of it.
//!
//! Each function returns a [`BywashCode`]; the text of the calling thread's last error is [`bywash_last_error`].
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "callers hand over C strings and pointers; each block states what they promise, of all pointers of a call at once"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::{Duration, SystemTime};

use bywash_client::{
    Client, Error, ErrorCode, GetOptions, ListOptions, Metadata, PutOptions, Ranges, View,
    WriteCondition,
};

/// Result of a call, by what the caller can do.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BywashCode {
    /// The call succeeded.
    Ok = 0,
    /// There is no such object.
    NotFound = 1,
    /// There is no such bucket.
    NoSuchBucket = 2,
    /// A condition does not hold.
    Precondition = 3,
    /// The object has the ETag that the caller knows.
    NotModified = 4,
    /// There is an object already.
    AlreadyExists = 5,
    /// An argument is wrong.
    InvalidArgument = 6,
    /// The range is beyond the object's end.
    InvalidRange = 7,
    /// The store or the server refuses the request.
    PermissionDenied = 8,
    /// The store has no such operation.
    Unsupported = 9,
    /// No memory at the server in time: try again later.
    SlowDown = 10,
    /// The deadline passed.
    Deadline = 11,
    /// The store failed: try again later.
    Unavailable = 12,
    /// The object changed while it was read: try again.
    VersionChanged = 13,
    /// The bytes do not have the digest that was stated for them.
    Damaged = 14,
    /// The upload cannot be continued.
    UploadLost = 15,
    /// A limit of the server is exceeded.
    Limit = 16,
    /// Client and server are of different releases.
    Protocol = 17,
    /// There is no server, or the connection to it broke.
    Connection = 18,
    /// A file or socket of this machine failed.
    Io = 19,
    /// A fault of this library.
    Internal = 20,
}

impl From<ErrorCode> for BywashCode {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NotFound => Self::NotFound,
            ErrorCode::NoSuchBucket => Self::NoSuchBucket,
            ErrorCode::Precondition => Self::Precondition,
            ErrorCode::NotModified => Self::NotModified,
            ErrorCode::AlreadyExists => Self::AlreadyExists,
            ErrorCode::InvalidArgument => Self::InvalidArgument,
            ErrorCode::InvalidRange => Self::InvalidRange,
            ErrorCode::PermissionDenied => Self::PermissionDenied,
            ErrorCode::Unsupported => Self::Unsupported,
            ErrorCode::SlowDown => Self::SlowDown,
            ErrorCode::Deadline => Self::Deadline,
            ErrorCode::Unavailable => Self::Unavailable,
            ErrorCode::VersionChanged => Self::VersionChanged,
            ErrorCode::Damaged => Self::Damaged,
            ErrorCode::UploadLost => Self::UploadLost,
            ErrorCode::Limit => Self::Limit,
            ErrorCode::Protocol => Self::Protocol,
            ErrorCode::Connection => Self::Connection,
            ErrorCode::Io => Self::Io,
            _ => Self::Internal,
        }
    }
}

/// A client of this user's server.
#[derive(Debug)]
pub struct BywashClient(Client);

/// Ranges of one version of an object. Their bytes stay as they are until it is released.
#[derive(Debug)]
pub struct BywashObject {
    etag: CString,
    ranges: Ranges,
}

/// A range of an object: from `start` to before `end`, cut at the object's end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BywashRange {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// Bytes in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BywashSegment {
    /// The first byte. Read only.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// Metadata of an object.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BywashMetadata {
    /// Bytes.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// ETag without quotes, cut at 127 bytes; empty if there is none.
    pub etag: [c_char; 128],
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn c_string(text: &str) -> CString {
    // A zero inside would end the text there.
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Runs a call, and keeps the text of its error.
fn call(run: impl FnOnce() -> Result<(), Error>) -> BywashCode {
    let (code, message) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return BywashCode::Ok,
        Ok(Err(error)) => (error.code().into(), error.to_string()),
        Err(_) => (
            BywashCode::Internal,
            "a fault of the client library; see its message on standard error".to_owned(),
        ),
    };
    LAST_ERROR.with(|last| *last.borrow_mut() = c_string(&message));
    code
}

fn invalid(what: &str) -> Error {
    Error::invalid_argument(what)
}

/// Returns a text of the caller.
///
/// # Safety
/// `text` is null or a string that ends with a zero and lives for the call.
unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(invalid(&format!("{name} is a null pointer")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| invalid(&format!("{name} is not UTF-8")))
}

/// Returns a client of the caller.
///
/// # Safety
/// `client` is null or was returned by [`bywash_open`] and was not closed.
unsafe fn client<'a>(client: *const BywashClient) -> Result<&'a Client, Error> {
    // SAFETY: the caller's promise.
    let client = unsafe { client.as_ref() };
    client
        .map(|client| &client.0)
        .ok_or_else(|| invalid("the client is a null pointer"))
}

/// Writes a result for the caller.
///
/// # Safety
/// `target` is null or can be written to.
unsafe fn give<T>(target: *mut T, value: T, name: &str) -> Result<(), Error> {
    if target.is_null() {
        return Err(invalid(&format!("{name} is a null pointer")));
    }
    // SAFETY: the caller's promise.
    unsafe { target.write(value) };
    Ok(())
}

/// Text of this thread's last error: object, operation and next step. Valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn bywash_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

/// Connects to the server that listens at `socket`; NULL: at $BYWASH_LOCAL, or at this user's well-known socket. Calls of the client end
/// after `deadline_ms` milliseconds; 0: after a minute.
///
/// # Safety
/// `socket` is NULL or a string; `out` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_open(
    socket: *const c_char,
    deadline_ms: u32,
    out: *mut *mut BywashClient,
) -> BywashCode {
    call(|| {
        let mut opened = if socket.is_null() {
            Client::connect()?
        } else {
            // SAFETY: the caller's promise.
            Client::connect_to(unsafe { text(socket, "socket") }?)?
        };
        if deadline_ms > 0 {
            opened = opened.with_deadline(Duration::from_millis(deadline_ms.into()));
        }
        // SAFETY: the caller's promise.
        unsafe { give(out, Box::into_raw(Box::new(BywashClient(opened))), "out") }
    })
}

/// Frees a client. Objects that it has read stay valid. NULL is allowed.
///
/// # Safety
/// `client` comes from [`bywash_open`], and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_close(client: *mut BywashClient) {
    if !client.is_null() {
        // SAFETY: made by `Box::into_raw`, and closed once, as the caller promises.
        drop(unsafe { Box::from_raw(client) });
    }
}

/// Has the server mount the origin at `address`, as s3://data. Writes the bucket's name to `name`, which has room for `capacity` bytes.
///
/// # Safety
/// Pointers are valid; `name` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_attach(
    client: *const BywashClient,
    address: *const c_char,
    name: *mut c_char,
    capacity: usize,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, address) = unsafe { (self::client(client)?, text(address, "address")?) };
        let bucket = client.attach(address, &[])?;
        let found = c_string(bucket.name());
        let bytes = found.as_bytes_with_nul();
        if name.is_null() || bytes.len() > capacity {
            return Err(invalid(&format!(
                "name needs room for {} bytes",
                bytes.len()
            )));
        }
        // SAFETY: it fits, as just checked, and the caller can write there.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, bytes.len()) };
        Ok(())
    })
}

/// Reads an object's metadata.
///
/// # Safety
/// Pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_head(
    client: *const BywashClient,
    bucket: *const c_char,
    key: *const c_char,
    out: *mut BywashMetadata,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, bucket, key) = unsafe {
            (
                self::client(client)?,
                text(bucket, "bucket")?,
                text(key, "key")?,
            )
        };
        let found = client.bucket(bucket).head(key, &GetOptions::default())?;
        // SAFETY: the caller's promise.
        unsafe { give(out, metadata(&found), "out") }
    })
}

fn metadata(found: &Metadata) -> BywashMetadata {
    let mut etag = [0; 128];
    let known = found.etag.as_deref().unwrap_or_default().bytes();
    for (target, byte) in etag.iter_mut().zip(known.take(127)) {
        *target = byte as c_char;
    }
    let since = found.modified.duration_since(SystemTime::UNIX_EPOCH);
    let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    BywashMetadata {
        size: found.size,
        modified_ns: match since {
            Ok(after) => nanoseconds(after),
            Err(before) => -nanoseconds(before.duration()),
        },
        etag,
    }
}

/// Reads `count` ranges of one version of an object; without any, all of it.
///
/// # Safety
/// Pointers are valid; `ranges` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_get_ranges(
    client: *const BywashClient,
    bucket: *const c_char,
    key: *const c_char,
    ranges: *const BywashRange,
    count: usize,
    out: *mut *mut BywashObject,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, bucket, key) = unsafe {
            (
                self::client(client)?,
                text(bucket, "bucket")?,
                text(key, "key")?,
            )
        };
        let wanted = if ranges.is_null() || count == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(ranges, count) }
        };
        let bucket = client.bucket(bucket);
        let read = if wanted.is_empty() {
            let object = bucket.get(key)?;
            Ranges {
                metadata: object.metadata,
                hit: object.hit,
                ranges: vec![(object.range.start, object.bytes)],
            }
        } else {
            let wanted: Vec<_> = wanted.iter().map(|range| range.start..range.end).collect();
            bucket.get_ranges(key, &wanted, &GetOptions::default())?
        };
        let object = BywashObject {
            etag: c_string(read.metadata.etag.as_deref().unwrap_or_default()),
            ranges: read,
        };
        // SAFETY: the caller's promise.
        unsafe { give(out, Box::into_raw(Box::new(object)), "out") }
    })
}

/// Returns the number of segments of range `range`, and writes the first `capacity` of them to `out`. They are the range's bytes in
/// order, in the server's memory or received, and valid until the object is released.
///
/// # Safety
/// `object` comes from [`bywash_get_ranges`]; `out` has `capacity` elements, or is NULL with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_segments(
    object: *const BywashObject,
    range: usize,
    out: *mut BywashSegment,
    capacity: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(view) = (unsafe { view(object, range) }) else {
        return 0;
    };
    let segments = view.segments();
    let count = segments.len();
    for (index, segment) in segments.take(capacity).enumerate() {
        let segment = BywashSegment {
            data: segment.as_ptr(),
            len: segment.len(),
        };
        if !out.is_null() {
            // SAFETY: below `capacity`, as the caller promises.
            unsafe { out.add(index).write(segment) };
        }
    }
    count
}

/// # Safety
/// `object` is null or was returned by [`bywash_get_ranges`] and was not released.
unsafe fn view<'a>(object: *const BywashObject, range: usize) -> Option<&'a View> {
    // SAFETY: the caller's promise.
    let object = unsafe { object.as_ref() }?;
    object.ranges.ranges.get(range).map(|(_, view)| view)
}

/// ETag of the version that was read; empty if the origin has none. Valid until the object is released.
///
/// # Safety
/// `object` comes from [`bywash_get_ranges`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_etag(object: *const BywashObject) -> *const c_char {
    // SAFETY: the caller's promise.
    let object = unsafe { object.as_ref() };
    object.map_or(ptr::null(), |object| object.etag.as_ptr())
}

/// Frees an object, and ends its lease at the server. NULL is allowed.
///
/// # Safety
/// `object` comes from [`bywash_get_ranges`], and nothing uses its segments any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_release(object: *mut BywashObject) {
    if !object.is_null() {
        // SAFETY: made by `Box::into_raw`, and released once, as the caller promises.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// Called for each object of a listing with its key and metadata. Returns false to end the listing.
pub type BywashEntry = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_char,
        found: *const BywashMetadata,
    ) -> bool,
>;

/// Lists the objects whose keys begin with `prefix`, in the order of keys, page by page.
///
/// # Safety
/// Pointers are valid, and `entry` can be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_list(
    client: *const BywashClient,
    bucket: *const c_char,
    prefix: *const c_char,
    entry: BywashEntry,
    context: *mut c_void,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, bucket, prefix) = unsafe {
            (
                self::client(client)?,
                text(bucket, "bucket")?,
                text(prefix, "prefix")?,
            )
        };
        let entry = entry.ok_or_else(|| invalid("entry is a null pointer"))?;
        let bucket = client.bucket(bucket);
        let mut after = None::<String>;
        loop {
            let page = bucket.list_page(ListOptions {
                prefix,
                after: after.as_deref(),
                ..ListOptions::default()
            })?;
            for object in &page.objects {
                let key = c_string(&object.key);
                let found = metadata(object);
                // SAFETY: the caller's promise.
                if !unsafe { entry(context, key.as_ptr(), &raw const found) } {
                    return Ok(());
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    })
}

/// Writes an object of `len` bytes. With `if_match`, an ETag, only over that version; with `create_only`, only if there is none.
///
/// # Safety
/// Pointers are valid; `data` has `len` bytes; `if_match` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_put(
    client: *const BywashClient,
    bucket: *const c_char,
    key: *const c_char,
    data: *const u8,
    len: usize,
    if_match: *const c_char,
    create_only: bool,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, bucket, key) = unsafe {
            (
                self::client(client)?,
                text(bucket, "bucket")?,
                text(key, "key")?,
            )
        };
        let bytes = if len == 0 {
            &[]
        } else if data.is_null() {
            return Err(invalid("data is a null pointer"));
        } else {
            // SAFETY: the caller's promise.
            unsafe { std::slice::from_raw_parts(data, len) }
        };
        let condition = if create_only {
            WriteCondition::Create
        } else if if_match.is_null() {
            WriteCondition::None
        } else {
            // SAFETY: the caller's promise.
            WriteCondition::IfMatch(unsafe { text(if_match, "if_match") }?.to_owned())
        };
        let options = PutOptions {
            condition,
            ..PutOptions::default()
        };
        client.bucket(bucket).put(key, bytes, &options).map(drop)
    })
}

/// Deletes an object. One that is not there counts as deleted.
///
/// # Safety
/// Pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_delete(
    client: *const BywashClient,
    bucket: *const c_char,
    key: *const c_char,
) -> BywashCode {
    call(|| {
        // SAFETY: the caller's promise.
        let (client, bucket, key) = unsafe {
            (
                self::client(client)?,
                text(bucket, "bucket")?,
                text(key, "key")?,
            )
        };
        client.bucket(bucket).delete(key)
    })
}
