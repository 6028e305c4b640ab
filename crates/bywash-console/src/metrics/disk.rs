//! Metrics of the disk tier.

use bywash::DiskStats;

use super::{Family, counters, gauges};

const COUNTERS: [Family<DiskStats>; 12] = [
    (
        "bywash_disk_hits_total",
        "Blocks read from the disk tier.",
        |s| s.hits,
    ),
    (
        "bywash_disk_hit_bytes_total",
        "Bytes of blocks read from the disk tier.",
        |s| s.hit_bytes,
    ),
    (
        "bywash_disk_mismatches_total",
        "Reads of the disk tier that found other bytes than were written; the origin returned the block.",
        |s| s.mismatches,
    ),
    (
        "bywash_disk_failed_reads_total",
        "Reads of the disk tier that failed; the origin returned the block.",
        |s| s.failed_reads,
    ),
    (
        "bywash_disk_slow_reads_total",
        "Reads of the disk tier that took too long; the origin returned the block.",
        |s| s.slow_reads,
    ),
    (
        "bywash_disk_written_blocks_total",
        "Blocks written to the disk tier.",
        |s| s.written_blocks,
    ),
    (
        "bywash_disk_written_block_bytes_total",
        "Bytes of blocks written to the disk tier.",
        |s| s.written_block_bytes,
    ),
    (
        "bywash_disk_written_bytes_total",
        "Bytes written to the disk tier: blocks, their summaries and padding.",
        |s| s.written_bytes,
    ),
    (
        "bywash_disk_recycled_segments_total",
        "Segments of the disk tier whose blocks made room for others.",
        |s| s.recycled_segments,
    ),
    (
        "bywash_disk_index_full_total",
        "Blocks not written because the index of the disk tier has no room.",
        |s| s.index_full,
    ),
    (
        "bywash_disk_queue_full_total",
        "Blocks not written because too many waited for the disk.",
        |s| s.queue_full,
    ),
    (
        "bywash_disk_failed_writes_total",
        "Blocks not written because the disk failed or declined them.",
        |s| s.failed_writes,
    ),
];

const GAUGES: [Family<DiskStats>; 6] = [
    (
        "bywash_disk_size_bytes",
        "Maximum bytes of the disk tier.",
        |s| s.size,
    ),
    (
        "bywash_disk_blocks",
        "Blocks that can be read from the disk tier.",
        |s| s.blocks,
    ),
    (
        "bywash_disk_versions",
        "Versions of objects with blocks on the disk tier.",
        |s| s.versions,
    ),
    (
        "bywash_disk_index_bytes",
        "Bytes of memory of the disk tier's index.",
        |s| s.index_bytes,
    ),
    (
        "bywash_disk_queued_blocks",
        "Blocks that wait to be written to the disk tier.",
        |s| s.queued_blocks,
    ),
    (
        "bywash_disk_queued_bytes",
        "Bytes of memory of the blocks among them that were evicted meanwhile.",
        |s| s.spilled_bytes,
    ),
];

/// Writes the metrics of the disk tier.
pub(super) fn write(text: &mut String, stats: &DiskStats) {
    counters(text, &COUNTERS, stats);
    gauges(text, &GAUGES, stats);
}
