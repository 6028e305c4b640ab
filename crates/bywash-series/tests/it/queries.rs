//! Tests of steps and of names.

use bywash_series::{Aggregate, Pattern, Selector, SeriesError, SeriesPoints};

use super::*;

async fn steps(
    db: &SeriesDb,
    range: RangeInclusive<i64>,
    step: i64,
    aggregate: Aggregate,
) -> Vec<(i64, u64)> {
    let answer = db
        .query(&Selector::series("a", "x"), range, Some(step), aggregate)
        .await
        .unwrap();
    answer
        .iter()
        .flat_map(|series| series.points.iter().copied())
        .map(bits)
        .collect()
}

#[tokio::test]
async fn aggregates_by_step_agree_in_memory_and_in_files() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let nan = f64::from_bits(0x7ff8_0000_0000_0003);
    insert(
        &db,
        "a",
        "x",
        &[
            (0, 4.0),
            (1, 2.0),
            (9, 3.0),
            (10, nan),
            (11, nan),
            (30, -0.0),
            (31, nan),
        ],
    );
    for flushed in [false, true] {
        for (aggregate, truth) in [
            (Aggregate::Min, [2.0, f64::NAN, -0.0]),
            (Aggregate::Max, [4.0, f64::NAN, -0.0]),
            (Aggregate::Sum, [9.0, f64::NAN, 0.0]),
            (Aggregate::Count, [3.0, 2.0, 2.0]),
            (Aggregate::First, [4.0, nan, -0.0]),
            (Aggregate::Last, [3.0, nan, nan]),
            (Aggregate::Avg, [3.0, f64::NAN, 0.0]),
        ] {
            let found = steps(&db, 0..=31, 10, aggregate).await;
            let truth: Vec<_> = [0, 10, 30].into_iter().zip(truth).collect();
            assert_eq!(found, expected(&truth), "{aggregate:?}, flushed: {flushed}");
        }
        // Both ends are included.
        assert_eq!(
            steps(&db, 1..=9, 100, Aggregate::Count).await,
            expected(&[(1, 2.0)])
        );
        assert_eq!(steps(&db, 12..=29, 5, Aggregate::Count).await, []);
        db.flush().await.unwrap();
    }
}

#[tokio::test]
async fn case_9_steps_at_both_ends_of_time() {
    let database = TestDatabase::new();
    let db = database.open().await;
    insert(
        &db,
        "a",
        "x",
        &[(i64::MIN, 1.0), (-1, 2.0), (0, 3.0), (i64::MAX, 4.0)],
    );
    for _ in 0..2 {
        let whole = steps(&db, ALL, i64::MAX, Aggregate::Sum).await;
        assert_eq!(
            whole,
            expected(&[(i64::MIN, 1.0), (-1, 5.0), (i64::MAX - 1, 4.0)])
        );
        let end = steps(&db, i64::MAX..=i64::MAX, 1, Aggregate::Last).await;
        assert_eq!(end, expected(&[(i64::MAX, 4.0)]));
        db.flush().await.unwrap();
    }
}

#[tokio::test]
async fn result_above_the_limit_fails() {
    let database = TestDatabase::new();
    let db = database.open().await;
    insert(&db, "a", "x", &[(1, 1.0), (2, 2.0)]);
    insert(&db, "a", "y", &[(1, 1.0), (20, 2.0)]);
    for _ in 0..2 {
        for step in [None, Some(1)] {
            let every = Selector::all();
            let query = |max| db.query_limited(max, &every, ALL, step, Aggregate::Sum);
            assert_eq!(query(4).await.unwrap().len(), 2);
            for max in 0..4 {
                // Fewer points than series are refused before any is read.
                let limit = match query(max).await {
                    Err(SeriesError::TooManySelected { max: limit }) if max < 2 => limit,
                    Err(SeriesError::TooManyPoints { max: limit }) if max >= 2 => limit,
                    other => panic!("{max}: {other:?}"),
                };
                assert_eq!(limit, max);
            }
        }
        db.flush().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_many_series_equals_single_queries() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let names: Vec<_> = (0..50)
        .map(|n| (format!("{}", n / 7), format!("{n:02}")))
        .collect();
    for round in 0..3 {
        for (n, (source, metric)) in (1..).zip(&names) {
            let points: Vec<_> = (0..100)
                .map(|at| (at * n + round, (at + round) as f64))
                .collect();
            insert(&db, source, metric, &points);
        }
        // The last rows stay in memory.
        if round < 2 {
            db.flush().await.unwrap();
        }
    }
    let of_metric = |of: &SeriesPoints| {
        let points: Vec<_> = of.points.iter().copied().map(bits).collect();
        (Arc::clone(&of.metric), points)
    };
    for step in [None, Some(30)] {
        let mut each = Vec::new();
        for (source, metric) in &names {
            let one = Selector::series(source, metric);
            let found = db
                .query(&one, 5..=2000, step, Aggregate::Sum)
                .await
                .unwrap();
            each.extend(found.iter().map(of_metric));
        }
        let points = each.iter().map(|(_, points)| points.len()).sum();
        let all = Selector::all();
        let query = |max| db.query_limited(max, &all, 5..=2000, step, Aggregate::Sum);
        let found = query(points).await.unwrap();
        let found: Vec<_> = found.iter().map(of_metric).collect();
        assert!(found.len() == names.len() && found == each);
        let result = query(points - 1).await;
        assert!(matches!(result, Err(SeriesError::TooManyPoints { .. })));
    }
}

#[tokio::test]
async fn invalid_query_fails_and_empty_result_does_not() {
    let database = TestDatabase::new();
    let db = database.open().await;
    let one = Selector::series("a", "x");
    for step in [0, -1, i64::MIN] {
        let result = db.query(&one, ALL, Some(step), Aggregate::Sum).await;
        assert!(matches!(result, Err(SeriesError::Query(_))), "{step}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may query")]
    let backwards = db
        .query(&one, 2..=1, Some(1), Aggregate::Sum)
        .await
        .unwrap();
    assert!(backwards.is_empty());
    assert!(
        db.query(&one, ALL, None, Aggregate::Sum)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn names_in_a_range_come_from_memory_and_files_and_expire() {
    let mut database = TestDatabase::new();
    database.retention = age(1);
    let db = database.open().await;
    insert(&db, "host 1", "cpu", &[(0, 1.0)]);
    insert(&db, "host 1", "memory", &[(30 * HOUR, 1.0)]);
    insert(&db, "host 2", "cpu", &[(1, 1.0)]);
    db.flush().await.unwrap();
    insert(&db, "other", "cpu", &[(HOUR, 1.0)]);
    assert_eq!(
        db.sources(ALL).await.unwrap(),
        ["host 1", "host 2", "other"]
    );
    assert_eq!(db.sources(0..=0).await.unwrap(), ["host 1"]);
    assert_eq!(db.sources(2..=HOUR - 1).await.unwrap(), [""; 0]);
    assert_eq!(db.metrics("host 1", ALL).await.unwrap(), ["cpu", "memory"]);
    assert_eq!(
        db.metrics("host 1", 1..=30 * HOUR).await.unwrap(),
        ["memory"]
    );
    assert_eq!(db.metrics("unknown", ALL).await.unwrap(), [""; 0]);
    let hosts = Selector::parse("host ?", "c*");
    let answer = db.query(&hosts, ALL, None, Aggregate::Last).await.unwrap();
    let names: Vec<_> = answer
        .iter()
        .map(|series| (&*series.source, &*series.metric))
        .collect();
    assert_eq!(names, [("host 1", "cpu"), ("host 2", "cpu")]);
    let literally = Selector {
        source: Pattern::Exact("host ?".into()),
        metric: Pattern::parse("*"),
    };
    assert!(db.list(&literally, ALL).await.unwrap().is_empty());

    db.flush().await.unwrap();
    database.set_clock(20 * HOUR);
    db.compact().await.unwrap();
    assert_eq!(db.sources(ALL).await.unwrap(), ["host 1"]);
    assert_eq!(db.metrics("host 1", ALL).await.unwrap(), ["memory"]);
}
