//! Every limit on counts, sizes and durations that a writer or a reader of series can cause: its unit, and the reason for its value.

/// Max bytes of a source's or a metric's name.
pub const MAX_NAME: usize = 64 << 10;
/// Max bytes of a frame of the log. Larger lengths are damage.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
/// Max bytes of frames that wait in memory for one log write, while a batch grows or another write is on its way. A batch of 16 MiB of
/// lines then takes a handful of writes.
pub(crate) const MAX_PENDING_LOG_BYTES: u64 = 4 << 20;
/// Max points of a query that names no other number: 256 MiB of them.
pub(crate) const MAX_POINTS: usize = 16 << 20;
/// Max tasks of one query: each holds decoded pages of up to 64 files, 32 MiB that are not charged.
pub(crate) const MAX_QUERY_TASKS: usize = 4;
/// Max threads that replay the log: more would wait for its one reader.
pub(crate) const MAX_REPLAY_WRITERS: usize = 8;
