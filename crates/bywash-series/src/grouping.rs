//! Rows of a batch grouped by series.
//!
//! A writer takes the lock of a series once for all its neighbouring rows, and a series that another core wrote last costs
//! the transfer of its cache lines once. So rows of a batch that has several of one series are brought together first.

use crate::catalog::SeriesHandle;

type HandledRow = (SeriesHandle, i64, f64);

/// Min rows of a batch that is worth the grouping.
const MIN_ROWS: usize = 32;
/// Max rows grouped at once: their positions fit in `u16`, and the rows in a second-level cache.
pub(crate) const GROUPED_ROWS: usize = 4096;
/// Buckets, a power of two: as many counters as fit in a quarter of a first-level cache.
const BUCKETS: usize = 4096;

/// Buffers of [`group_by_series`], reused between batches.
#[derive(Debug)]
pub(crate) struct Grouping {
    rows: Vec<HandledRow>,
    /// Rows of each bucket, then the position of the bucket's next row.
    buckets: Vec<u16>,
}

impl Grouping {
    pub(crate) const fn new() -> Self {
        Self {
            rows: Vec::new(),
            buckets: Vec::new(),
        }
    }
}

/// Rows, adjacent for each series as far as that saves locks. Rows of one series keep their order.
pub(crate) fn group_by_series<'a>(
    rows: &'a [HandledRow],
    grouping: &'a mut Grouping,
) -> &'a [HandledRow] {
    debug_assert!(rows.len() <= GROUPED_ROWS, "cut before");
    if rows.len() < MIN_ROWS {
        return rows;
    }
    let buckets = (2 * rows.len()).next_power_of_two().min(BUCKETS);
    let counts = &mut grouping.buckets;
    counts.clear();
    counts.resize(buckets, 0);
    let bucket = |row: &HandledRow| row.0.0 as usize & (buckets - 1);
    let (mut distinct, mut runs) = (0, 0);
    for run in rows.chunk_by(|a, b| a.0 == b.0) {
        let count = &mut counts[bucket(&run[0])];
        distinct += usize::from(*count == 0);
        *count += run.len() as u16;
        runs += 1;
    }
    // Each run less saves a lock and the transfer of its series; each row costs a copy.
    if (runs - distinct) * 4 < rows.len() {
        return rows;
    }
    let mut next = 0;
    for count in counts.iter_mut() {
        next += std::mem::replace(count, next);
    }
    grouping.rows.clear();
    grouping.rows.resize(rows.len(), rows[0]);
    for row in rows {
        let at = &mut counts[bucket(row)];
        grouping.rows[usize::from(*at)] = *row;
        *at += 1;
    }
    &grouping.rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn grouped_rows_are_the_same_and_in_order_within_a_series(
            ids in prop::collection::vec(0_u32..200, 0..=GROUPED_ROWS),
            spread in prop::sample::select(vec![1_u32, 37, 4096]),
        ) {
            let rows: Vec<HandledRow> = (0..)
                .zip(&ids)
                .map(|(at, id)| (SeriesHandle(id * spread, 0), at, at as f64))
                .collect();
            let mut grouping = Grouping::new();
            let mut grouped = group_by_series(&rows, &mut grouping).to_vec();
            // A stable sort by series keeps the order within each.
            grouped.sort_by_key(|row| row.0);
            let mut sorted = rows.clone();
            sorted.sort_by_key(|row| row.0);
            prop_assert_eq!(grouped, sorted);
        }
    }

    #[test]
    fn rows_of_few_series_become_one_run_each() {
        let rows: Vec<HandledRow> = (0..1000)
            .map(|at| (SeriesHandle(at as u32 % 100, 0), at, 0.0))
            .collect();
        let mut grouping = Grouping::new();
        let grouped = group_by_series(&rows, &mut grouping);
        assert_eq!(grouped.chunk_by(|a, b| a.0 == b.0).count(), 100);
    }

    #[test]
    fn rows_of_distinct_series_stay_where_they_are() {
        let rows: Vec<HandledRow> = (0..1000)
            .map(|at| (SeriesHandle(at * 7 % 1000, 0), i64::from(at), 0.0))
            .collect();
        let mut grouping = Grouping::new();
        let grouped = group_by_series(&rows, &mut grouping);
        assert!(std::ptr::eq(grouped, &rows[..]));
    }
}
