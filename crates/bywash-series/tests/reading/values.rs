//! Which value is read, and that it is the one that was written.

use super::*;

#[tokio::test]
async fn case_7_of_rows_alike_the_last_written_wins_in_memory_sealed_merged_and_after_a_start() {
    let world = World::new();
    let db = world.open().await;
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
        "some sealed, some in memory"
    );
    drop(db);
    let db = world.open().await;
    assert_eq!(all(&db, "a", "x").await, truth, "after a crash");
    db.flush().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, truth, "sealed");
    world.set_clock(100 * HOUR);
    let before = db.stats().files;
    db.tidy().await.unwrap();
    assert!(db.stats().files < before);
    assert_eq!(all(&db, "a", "x").await, truth, "merged");
    insert(&db, "a", "x", &[(0, -5.0)]);
    db.close().await.unwrap();
    drop(db);
    let db = world.open().await;
    let all = all(&db, "a", "x").await;
    assert_eq!((all[0], &all[1..]), ((0, (-5f64).to_bits()), &truth[1..]));
}

#[tokio::test]
async fn case_9_extremes_of_time_through_files_and_retention() {
    let mut world = World::new();
    world.retention = age(1);
    let db = world.open().await;
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
    world.set_clock(0);
    db.tidy().await.unwrap();
    assert_eq!(
        all(&db, "a", "x").await,
        expected(&points[2..]),
        "a row of the future expires nothing"
    );
    world.set_clock(i64::MAX);
    db.tidy().await.unwrap();
    assert_eq!(
        all(&db, "a", "x").await,
        expected(&points[5..]),
        "a jump of the clock keeps what is young by it"
    );
    world.set_clock(i64::MIN);
    db.tidy().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, expected(&points[5..]));
}

#[tokio::test]
async fn case_10_every_kind_of_bits_through_log_files_and_merges() {
    for profile in [Profile::Portable, Profile::Compact] {
        let mut world = World::new();
        world.profile = profile;
        let db = world.open().await;
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
        let db = world.open().await;
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, from the log"
        );
        db.flush().await.unwrap();
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, sealed"
        );
        world.set_clock(100 * HOUR);
        db.tidy().await.unwrap();
        assert_eq!(db.stats().files, 1);
        assert_eq!(
            all(&db, "a", "x").await,
            expected(&points),
            "{profile:?}, merged"
        );
    }
}
