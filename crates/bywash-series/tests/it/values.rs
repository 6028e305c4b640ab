//! Tests that reads return the value that was written last.

use super::*;

#[tokio::test]
async fn case_7_last_written_row_wins_in_memory_flushed_compacted_and_replayed() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let mut truth = Vec::new();
    for round in 0..6 {
        let points: Vec<_> = (0..100)
            .map(|n| {
                (
                    (n * 7 + round * 3) % 100 * HOUR / 8,
                    (round * 1000 + n) as f64,
                )
            })
            .collect();
        insert(&db, "a", "x", &points);
        truth.retain(|(at, _): &(i64, f64)| !points.iter().any(|point| point.0 == *at));
        truth.extend(points);
        if round % 2 == 0 {
            db.flush().await.unwrap();
        }
    }
    truth.sort_by_key(|point| point.0);
    let truth = expected(&truth);
    assert_eq!(
        all(&db, "a", "x").await,
        truth,
        "some flushed, some in memory"
    );
    drop(db);
    let db = database.open().await;
    assert_eq!(all(&db, "a", "x").await, truth, "after a crash");
    db.flush().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, truth, "flushed");
    database.set_clock(100 * HOUR);
    let before = db.stats().files;
    db.compact().await.unwrap();
    assert!(db.stats().files < before);
    assert_eq!(all(&db, "a", "x").await, truth, "compacted");
    insert(&db, "a", "x", &[(0, -5.0)]);
    db.close().await.unwrap();
    drop(db);
    let db = database.open().await;
    let all = all(&db, "a", "x").await;
    assert_eq!((all[0], &all[1..]), ((0, (-5f64).to_bits()), &truth[1..]));
}

#[tokio::test]
async fn case_9_extremes_of_time_across_files_and_retention() {
    let mut database = TestDatabase::new();
    database.retention = age(1);
    let db = database.open().await;
    let points = [
        (i64::MIN, 1.0),
        (i64::MIN + 1, 2.0),
        (-HOUR, 3.0),
        (-1, 4.0),
        (0, 5.0),
        (i64::MAX - 1, 6.0),
        (i64::MAX, 7.0),
    ];
    insert(&db, "a", "x", &points);
    db.flush().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, expected(&points));
    database.set_clock(0);
    db.compact().await.unwrap();
    assert_eq!(
        all(&db, "a", "x").await,
        expected(&points[2..]),
        "a row of the future expires nothing"
    );
    database.set_clock(i64::MAX);
    db.compact().await.unwrap();
    assert_eq!(
        all(&db, "a", "x").await,
        expected(&points[5..]),
        "a jump of the clock keeps what is young by it"
    );
    database.set_clock(i64::MIN);
    db.compact().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, expected(&points[5..]));
}

#[tokio::test]
async fn case_10_all_float_bits_survive_log_files_and_compaction() {
    for profile in [Profile::Portable, Profile::Compact] {
        let mut database = TestDatabase::new();
        database.profile = profile;
        let db = database.open().await;
        let kinds = [
            0x7ff8_0000_0000_0000, // NaN
            0x7ff0_0000_0000_0002, // Prometheus' stale marker, a signalling NaN
            0xfff8_dead_beef_0001, // a negative NaN with a payload
            0x8000_0000_0000_0000, // -0.0
            0,
            0x7ff0_0000_0000_0000, // infinities
            0xfff0_0000_0000_0000,
            1,                     // the smallest of all
            0x4340_0000_0000_0001, // above 2^53
            0x7fef_ffff_ffff_ffff, // the largest
        ];
        let points: Vec<_> = (0..20_000)
            .map(|n: i64| (n * HOUR / 900, f64::from_bits(kinds[n as usize % 10])))
            .collect();
        insert(&db, "a", "x", &points);
        drop(db);
        let db = database.open().await;
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, from the log"
        );
        db.flush().await.unwrap();
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, flushed"
        );
        database.set_clock(100 * HOUR);
        db.compact().await.unwrap();
        assert_eq!(db.stats().files, 1);
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, compacted"
        );
    }
}
