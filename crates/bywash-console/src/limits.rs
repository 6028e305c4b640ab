//! Every limit on counts, sizes and durations that a client can cause: its unit, and the reason for its value.

use std::time::Duration;

/// Max open connections of the admin address: browsers keep six each, collectors one. Beyond it a new one waits in the listener's
/// backlog until a connection has been idle for a second; the one that is idle longest is closed for it.
pub const MAX_ADMIN_CONNECTIONS: usize = 128;
/// Max open connections of the metrics address: a Prometheus keeps one, so this is for some pairs
/// of Prometheus servers, and for people. Half at most are of one client address. Beyond it a new
/// one waits as at the admin address.
pub const MAX_METRICS_CONNECTIONS: usize = 16;
/// Max bytes of the body of a login or of a change of the cache: a pair of keys, or a bucket with a prefix, take 2 KiB.
pub(crate) const MAX_SMALL_BODY_BYTES: usize = 16 << 10;
/// Max time until such a body is complete: clients send it with its head.
pub(crate) const MAX_SMALL_BODY_TIME: Duration = Duration::from_secs(10);

/// Max bytes of a request's lines, unpacked: common collectors send a tenth of it. Packed and unpacked bytes are
/// charged to the budget.
pub(crate) const MAX_WRITE_BYTES: usize = 16 << 20;
/// Max requests whose lines are parsed at once, after their bodies are complete. More wait.
pub(crate) const MAX_WRITES_AT_ONCE: usize = 4;
/// Max wait of such a request for the memory of one new name: some sweeps of names. During the wait
/// it keeps one of the turns, which requests without new names need.
pub(crate) const MAX_NAME_WAIT: Duration = Duration::from_secs(2);
/// Max time until a request's body is complete.
pub(crate) const MAX_WRITE_TIME: Duration = Duration::from_secs(30);
/// Max bytes of a line: a thousand fields of some length.
pub(crate) const MAX_LINE_BYTES: usize = 64 << 10;
/// Max lines of a string. Strings are not stored: this only has to find the end of valid ones.
pub(crate) const MAX_STRING_LINES: usize = 64;
/// Max refused lines in a response; more are only counted.
pub(crate) const MAX_REFUSALS_NAMED: usize = 100;
/// Max tags of a line. Each set of tags is a series of its own.
pub(crate) const MAX_TAGS: usize = 64;
/// Max fields of a line.
pub(crate) const MAX_FIELDS: usize = 1024;
/// Max bytes of a measurement with its tags: the name of a source, part of every link to it.
pub(crate) const MAX_SOURCE_BYTES: usize = 4096;
/// Max bytes of a field's name.
pub(crate) const MAX_FIELD_BYTES: usize = 1024;
/// Max rows of one response: some 100 MB of text.
pub(crate) const MAX_ROWS: usize = 1 << 20;
/// Max seconds of a range of the page: more than a year, to compare with the same week of the year before.
pub(crate) const MAX_RANGE_S: i64 = 400 * 24 * 60 * 60;
/// Max objects of one page of cached objects: with keys of 1,024 bytes some megabytes, which are charged once the page is
/// collected.
pub(crate) const MAX_CACHED_OBJECTS: usize = 1000;
/// Max buckets with labels of their own in `/metrics` and `/stats`, first by name; the others are counted together. A collector keeps
/// some thirty series of each.
pub(crate) const MAX_LABELLED_BUCKETS: usize = 1000;
/// Max time between two renderings of `/metrics` or of `/stats`: collectors read them every some seconds.
pub(crate) const MAX_REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Max requests for names, points or cached objects served at once: the data that they read is
/// charged once it is counted. More wait.
pub(crate) const MAX_READS_AT_ONCE: usize = 4;
