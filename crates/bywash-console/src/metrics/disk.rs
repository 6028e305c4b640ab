//! Metrics of the disk tier.

use bywash::DiskStats;

use super::{Family, counters, gauges, head, sample};

const COUNTERS: [Family<DiskStats>; 18] = [
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
        "Reads of the disk tier with a checksum mismatch; the origin returned the block.",
        |s| s.mismatches,
    ),
    (
        "bywash_disk_failed_reads_total",
        "Reads of the disk tier that failed; the origin returned the block.",
        |s| s.failed_reads,
    ),
    (
        "bywash_disk_slow_reads_total",
        "Reads of the disk tier that took too long, or were not tried because those before did; the origin returned the block.",
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
        "Segments of the disk tier whose blocks were dropped to make room.",
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
        "Writes to the disk tier that failed.",
        |s| s.failed_writes,
    ),
    (
        "bywash_disk_declined_large_total",
        "Blocks not written because they are larger than a segment of the disk tier takes.",
        |s| s.declined_large,
    ),
    (
        "bywash_disk_declined_state_total",
        "Blocks not written because the disk tier was read-only or off.",
        |s| s.declined_state,
    ),
    (
        "bywash_disk_declined_segments_total",
        "Blocks not written because each segment of the disk tier was being read or written.",
        |s| s.declined_segments,
    ),
    (
        "bywash_disk_declined_rate_total",
        "Blocks not written because of the limit of bytes a day.",
        |s| s.declined_rate,
    ),
    (
        "bywash_disk_declined_new_total",
        "Blocks not written to a full disk tier because they were not read before.",
        |s| s.declined_new,
    ),
    (
        "bywash_disk_reinserted_blocks_total",
        "Blocks of the disk tier written again, as they were read since, when their segment made room.",
        |s| s.reinserted_blocks,
    ),
];

const GAUGES: [Family<DiskStats>; 7] = [
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
    (
        "bywash_disk_unread_segments",
        "Segments of the disk tier that the last start could not read.",
        |s| s.unread_segments,
    ),
];

/// Writes the metrics of the disk tier.
pub(super) fn write(text: &mut String, stats: &DiskStats) {
    const STATE: &str = "bywash_disk_state";
    head(
        text,
        STATE,
        "gauge",
        "1 for the state of the disk tier, 0 for the others.",
    );
    for state in ["on", "read-only", "off"] {
        let current = u64::from(stats.state == state);
        sample(text, STATE, &[("state", state)], current);
    }
    counters(text, &COUNTERS, stats);
    gauges(text, &GAUGES, stats);
}
