//! All limits on counts, sizes and durations that readers and writers of series can reach, with unit and reason.

/// Max bytes of the name of a source or metric.
pub const MAX_NAME: usize = 64 << 10;
/// Max bytes of a log frame. A greater length is damage.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
/// Max bytes of frames pending in memory, while a batch grows or another log write is in progress. A batch of 16 MiB
/// then takes a handful of writes.
pub(crate) const MAX_PENDING_LOG_BYTES: u64 = 4 << 20;
/// Max points of a query without a limit of its own: 256 MiB.
pub(crate) const MAX_POINTS: usize = 16 << 20;
/// Max damaged files that a read leaves out: for each it begins again.
pub(crate) const MAX_LEFT_OUT: usize = 16;
/// Max tasks of one query. Each holds decoded pages of up to 64 files.
pub(crate) const MAX_QUERY_TASKS: usize = 4;
/// Max threads of a replay. More would wait for its one reader.
pub(crate) const MAX_REPLAY_WRITERS: usize = 8;
