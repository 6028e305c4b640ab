//! Tests of iterators over one series.

use super::*;

#[tokio::test]
async fn case_8_iterator_keeps_its_snapshot_across_flush_compaction_and_retention() {
    let mut database = TestDatabase::new();
    database.retention = age(1);
    let db = database.open().await;
    let points: Vec<_> = (0..48).map(|n| (n * HOUR / 2, n as f64)).collect();
    for part in points.chunks(8) {
        insert(&db, "a", "x", part);
        db.flush().await.unwrap();
    }
    insert(&db, "a", "x", &[(23 * HOUR, -1.0), (24 * HOUR, 48.0)]);
    let mut truth = expected(&points);
    truth[46].1 = (-1.0f64).to_bits();
    truth.push((24 * HOUR, 48f64.to_bits()));

    let mut before = db.iterator("a", "x");
    assert_eq!(before.next().await.unwrap().map(bits), Some(truth[0]));
    insert(&db, "a", "x", &[(1, 7.0), (25 * HOUR, 7.0), (0, 7.0)]);
    db.flush().await.unwrap();
    assert_eq!(rest(&mut before).await, truth[1..], "after a flush");
    database.set_clock(24 * HOUR);
    db.compact().await.unwrap();
    before.reset();
    assert_eq!(rest(&mut before).await, truth, "after compactions");
    database.set_clock(1000 * HOUR);
    db.compact().await.unwrap();
    assert_eq!(all(&db, "a", "x").await, []);
    before.reset();
    assert_eq!(rest(&mut before).await, truth, "after retention");
    drop(before);
    db.compact().await.unwrap();
    assert_eq!(db.stats().files, 0);
}

#[tokio::test]
async fn case_8_seek_finds_first_last_and_absent_points_and_a_failed_seek_keeps_the_iterator_usable()
 {
    let database = TestDatabase::new();
    let db = database.open().await;
    insert(&db, "a", "x", &[(10, 1.0), (20, 2.0), (5 * HOUR, 3.0)]);
    db.flush().await.unwrap();
    insert(&db, "a", "x", &[(15, 1.5), (30 * HOUR, 4.0)]);
    let mut iterator = db.iterator("a", "x");
    for (to, first) in [
        (i64::MIN, Some(10)),
        (10, Some(10)),
        (11, Some(15)),
        (16, Some(20)),
        (21, Some(5 * HOUR)),
        (30 * HOUR, Some(30 * HOUR)),
        (30 * HOUR + 1, None),
        (i64::MAX, None),
        (15, Some(15)),
    ] {
        assert_eq!(iterator.seek(to).await.unwrap(), first.is_some(), "{to}");
        assert_eq!(
            iterator.next().await.unwrap().map(|p| p.timestamp),
            first,
            "{to}"
        );
    }
    assert_eq!(
        iterator.next().await.unwrap().map(|p| p.timestamp),
        Some(20)
    );
    iterator.reset();
    assert_eq!(rest(&mut iterator).await.len(), 5);
    assert!(iterator.next().await.unwrap().is_none());
    assert!(db.iterator("a", "y").next().await.unwrap().is_none());
    assert!(!db.iterator("b", "x").seek(0).await.unwrap());
}

#[tokio::test]
async fn catena_4_iterator_across_flushes_and_late_inserts_with_duplicates_and_nan() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let nan = f64::from_bits(0x7ff8_0000_0000_0002);
    insert(
        &db,
        "a",
        "x",
        &[(1, 1.0), (2, nan), (3, 3.0), (2, nan), (2, 2.5)],
    );
    insert(&db, "a", "x", &[(4, nan)]);
    let writer = {
        let db = db.clone();
        tokio::task::spawn_blocking(move || {
            for n in 0..20_000 {
                insert(&db, "a", "x", &[(10 + n % 500, n as f64)]);
            }
        })
    };
    let mut unclosed = Vec::new();
    for _ in 0..20 {
        let mut iterator = db.iterator("a", "x");
        let points = rest(&mut iterator).await;
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(
            points[..4],
            expected(&[(1, 1.0), (2, 2.5), (3, 3.0), (4, nan)])
        );
        db.flush().await.unwrap();
        iterator.reset();
        assert_eq!(rest(&mut iterator).await, points);
        unclosed.push(iterator);
    }
    writer.await.unwrap();
    let last: Vec<_> = (0..500).map(|n| (10 + n, (19_500 + n) as f64)).collect();
    assert_eq!(all(&db, "a", "x").await[4..], expected(&last));
    db.close().await.unwrap();
    assert_eq!(rest(&mut unclosed[0]).await, []);
}

/// Readers of a series during repeated flushes: never fewer rows than were acknowledged before, and no duplicates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_8_no_row_is_missing_or_duplicated_while_rows_move_to_files() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let written = Arc::new(AtomicI64::new(0));
    let writer = {
        let (db, written) = (db.clone(), Arc::clone(&written));
        tokio::task::spawn_blocking(move || {
            for n in 0..3000 {
                insert(&db, "a", "x", &[(n, n as f64)]);
                // Release: the reader's load sees the row written.
                written.store(n + 1, Ordering::Release);
            }
        })
    };
    let sealer = {
        let db = db.clone();
        tokio::spawn(async move {
            for _ in 0..30 {
                db.flush().await.unwrap();
                db.compact().await.unwrap();
            }
        })
    };
    while !(writer.is_finished() && sealer.is_finished()) {
        let least = written.load(Ordering::Acquire);
        let points = all(&db, "a", "x").await;
        assert!(points.len() as i64 >= least);
        let dense = (0..)
            .zip(&points)
            .all(|(n, point)| *point == (n, (n as f64).to_bits()));
        assert!(
            dense,
            "a row is missing or duplicated among {}",
            points.len()
        );
    }
    writer.await.unwrap();
    sealer.await.unwrap();
    assert_eq!(all(&db, "a", "x").await.len(), 3000);
}
