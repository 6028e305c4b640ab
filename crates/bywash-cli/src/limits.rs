//! Limits on counts and sizes of things that endpoints can cause.

/// Bytes of an endpoint's response about buckets: 10,000 names and dates take a tenth of it.
pub(crate) const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// Highest number of connections that a server's settings may allow: a search for idle ones among them takes some milliseconds.
pub(crate) const MAX_CONNECTIONS_SET: usize = 100_000;
/// Characters of a message that are shown; an endpoint's own text can be of any length.
pub(crate) const MAX_MESSAGE_CHARS: usize = 8192;
/// Bytes of a plan in memory; one that is longer, of any number of names, is in a file.
pub(crate) const MAX_PLAN_BYTES: usize = 1 << 20;
/// Origins that local clients may attach to one server: each is a bucket with counters and tables of its own.
pub(crate) const MAX_ATTACHED_BUCKETS: usize = 1000;
/// Names that the listing of one source may leave out, each kept to keep its copies; past it, `sync --delete` deletes nothing.
pub(crate) const MAX_LEFT_OUT_NAMES: usize = 65_536;
/// Names left out that are logged and shown by name; further ones are counted.
pub(crate) const MAX_LEFT_OUT_SHOWN: u64 = 20;
