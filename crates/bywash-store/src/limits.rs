//! Limits on counts and sizes that origins can cause.
//!
//! Each has a unit and a reason. Tuning values and time limits stay with the code they tune.

/// Parts of an upload, as in the S3 protocol.
pub const MAX_PARTS: u16 = 10_000;
/// Bytes of a part of an upload, as in the S3 protocol.
pub(crate) const MAX_PART_BYTES: u64 = 5 << 30;

/// Renamed files of folders, and files with other attributes, whose readers continue, about 200 bytes each. Readers of older ones end
/// with an error, as of a changed file.
pub(crate) const MAX_RESTAMPED_FILES: usize = 1024;
/// Maximum failures named in a change of the cache, or in a listing's omissions: a person reads them.
pub const MAX_FAILURES_NAMED: usize = 20;
/// Bytes kept of the text of an origin's last failure: an address and a reason.
pub(crate) const MAX_FAILURE_TEXT_BYTES: usize = 256;

/// Bytes of an origin's response without object data, unless the request expects more.
pub(crate) const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Bytes of an origin's page of parts: a thousand parts.
pub(crate) const MAX_PARTS_PAGE_BYTES: usize = 4 << 20;
/// Bytes of an origin's page of uploads: a thousand, with encoded keys of 1,024 bytes and long owner names.
pub(crate) const MAX_UPLOADS_PAGE_BYTES: usize = 8 << 20;
/// Bytes of an Azure blob's block list: 50,000 committed blocks, and as many uncommitted ones.
pub(crate) const MAX_BLOCK_LIST_BYTES: usize = 32 << 20;

/// Bytes of an origin's page of objects: five thousand of Azure's, with their metadata.
pub(crate) const MAX_LIST_PAGE_BYTES: usize = 16 << 20;
/// Headers of an origin's response by HTTP/1, the HTTP client's default: several times as many as any store sends. Their bytes
/// are at most 400 KiB.
#[cfg(test)]
pub(crate) const MAX_RESPONSE_HEADERS: usize = 100;
/// Bytes of the headers of an origin's response by HTTP/2.
pub(crate) const MAX_RESPONSE_HEADERS_BYTES: u32 = 64 << 10;

/// Redirects followed for one request: no more than browsers and other clients follow.
pub(crate) const MAX_REDIRECTS: usize = 10;
/// Maximum bytes of an object from a web server that does not send its length. It is read whole to be measured, into
/// memory outside the budget.
pub(crate) const MAX_MEASURED_BYTES: u64 = 1 << 20;
/// Maximum bytes of an object that is passed on whole when a web server ignores the range: the bytes have arrived
/// anyway.
pub(crate) const MAX_WHOLE_BYTES: u64 = 8 << 20;
/// Bodies of web servers parked at once by an origin. Each keeps a connection and its kernel buffers, but only one
/// piece of our memory.
pub(crate) const MAX_PARKED_BODIES: usize = 16;

/// Served folders that the process keeps open. Reopening one takes some microseconds; file descriptors are for
/// connections and files.
pub const MAX_OPEN_FOLDERS: usize = 256;
/// Files of folders that the process keeps open for reads that need them again, at most one per read. A server counts
/// them among each connection's files, and they are few compared with the 1,024 descriptors of other programs. Further reads
/// open the file by its key, and fail if the object is replaced before they have all of it.
pub(crate) const MAX_HELD_FILES: usize = 256;
/// Clients' ETags of files that the process remembers, 64 bytes each: the ETags of the pages of 65 listings. Further ones replace others,
/// and are read from their files again.
pub(crate) const MAX_KNOWN_ETAGS: usize = 64 << 10;
/// Bytes of the metadata of an object, names and values, within which a conditional write gets a mark: the limit of S3, the lowest of
/// all stores. A longer write is sent without a mark, once.
pub(crate) const MAX_MARKED_METADATA_BYTES: usize = 2048;
/// Bytes of one component of a file's path: the limit of Linux file systems.
pub(crate) const MAX_COMPONENT_BYTES: usize = 255;
/// Deletes of one stream in progress in a folder: enough to keep a disk busy, few enough to leave blocking threads
/// free.
pub(crate) const MAX_FOLDER_DELETES: usize = 8;
/// Folders checked for staged leftovers in one round of the sweep, every 10 s: some milliseconds. More folders take
/// turns.
pub(crate) const MAX_FOLDERS_SWEPT: usize = 64;
/// Staged leftovers removed from one folder in one round of the sweep; their names are in memory. The rest follow in
/// the next round.
pub(crate) const MAX_LEFTOVERS_SWEPT: usize = 1024;
