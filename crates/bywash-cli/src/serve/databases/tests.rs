#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::SystemTime;

use bywash_series::{Aggregate, Row, Selector};
use tempfile::TempDir;

use super::*;

const HOUR: i64 = 3_600_000_000_000;
/// Rows of each hour, with distinct values, so that files have some size.
const ROWS: i64 = 500;

fn engine() -> Engine {
    Engine::builder().memory(256 << 20).build().unwrap()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_nanos()).unwrap()
}

/// Settings and data folder of a server with its series in the data folder, or in a bucket over the folder `shared`.
fn machine(data_dir: PathBuf, shared: Option<&Path>) -> (Settings, DataDir) {
    let args = crate::serve::Args {
        data_dir: Some(data_dir),
        memory: Some("64MiB".to_owned()),
        origins: Vec::from_iter(
            shared.map(|shared| format!("metrics=file://{}", shared.display())),
        ),
        series_bucket: shared.map(|_| "metrics".to_owned()),
        ..Default::default()
    };
    let settings = Settings::load(args).unwrap();
    let (data, _) = DataDir::open(&settings.data_dir).unwrap();
    (settings, data)
}

/// A database with flushed rows of these hours before now.
async fn filled(options: SeriesOptions, hours: i64, now: i64) -> (SeriesDb, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let (settings, data) = machine(home.path().join("data"), None);
    let place = Place::new(SERIES, &data, &settings);
    let engine = engine();
    let prepared = place.prepare(&engine, options).await.unwrap();
    let opened = place.take_over(&engine, Some(prepared)).await.unwrap();
    let db = opened.unwrap();
    for hour in (0..hours).rev() {
        let row = |n: i64| Row {
            source: "host",
            metric: "noise",
            timestamp: now - hour * HOUR - n * (HOUR / ROWS),
            value: (n * hour) as f64 / 7.0,
        };
        db.insert_rows(&(0..ROWS).map(row).collect::<Vec<_>>())
            .unwrap();
    }
    db.flush().await.unwrap();
    (db, home)
}

/// Returns all timestamps in order.
async fn times(db: &SeriesDb) -> Vec<i64> {
    let selector = Selector::series("host", "noise");
    let found = db.query(&selector, i64::MIN..=i64::MAX, None, Aggregate::Last);
    let found = found.await.unwrap();
    let points = found.iter().flat_map(|series| &series.points);
    points.map(|point| point.timestamp).collect()
}

fn retention(
    history: Option<&str>,
    age: Option<&str>,
    size: Option<&str>,
) -> Result<DatabaseRetention, Failure> {
    let text = |text: Option<&str>| text.map(str::to_owned);
    DatabaseRetention::parse(false, text(history), text(age), text(size))
}

#[tokio::test]
async fn history_above_its_max_size_drops_the_oldest_rows() {
    let retention = retention(Some("100KiB"), None, None)
        .unwrap()
        .history
        .unwrap();
    let now = now();
    let (db, _home) = filled(history_options(&engine(), retention), 200, now).await;
    let before = db.stats().file_bytes;
    assert!(
        before > 200 << 10,
        "{before} bytes are too few to prove anything"
    );
    db.compact().await.unwrap();
    let after = db.stats().file_bytes;
    assert!((1..=100 << 10).contains(&after), "{after}");
    let left = times(&db).await;
    assert_eq!(left.last(), Some(&now), "the newest row is there");
    let hours = (now - left[0]) / HOUR;
    assert!((24..150).contains(&hours), "{hours} hours are left");
    let expected = (now - left[0]) / (HOUR / ROWS) + 1;
    assert_eq!(left.len() as i64, expected, "and no row since the first");
}

#[tokio::test]
async fn values_above_their_max_age_are_dropped_and_younger_ones_kept() {
    let retention = retention(None, Some("2d"), None).unwrap().series;
    let newest = now();
    let (db, _home) = filled(series_options(&engine(), retention), 200, newest).await;
    db.compact().await.unwrap();
    // Rows may expire during the test.
    let oldest = now() - 48 * HOUR;
    let left = times(&db).await;
    let young = left.iter().filter(|at| **at >= oldest).count() as i64;
    assert_eq!(young, (newest - oldest) / (HOUR / ROWS) + 1);
    assert!(left[0] > newest - 100 * HOUR, "old ones go by whole files");
}

#[tokio::test]
async fn values_are_kept_without_limit_by_default() {
    let DatabaseRetention { history, series } = retention(None, None, None).unwrap();
    assert_eq!((series.age, series.bytes), (None, None));
    assert_eq!(history.unwrap().bytes, Some(1 << 30));
    let now = now();
    let (db, _home) = filled(series_options(&engine(), series), 100, now).await;
    db.compact().await.unwrap();
    assert_eq!(times(&db).await.len() as i64, 100 * ROWS);
}

/// A server that cannot open its history leaves the values with the server that writes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_are_taken_over_only_when_both_databases_can_be_opened() {
    let home = tempfile::tempdir().unwrap();
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let machine = |name: &str| machine(home.path().join(name), Some(&shared));
    let opened = async |(settings, data): &(Settings, DataDir)| {
        let engine = crate::serve::engine(settings, data, None).unwrap();
        Databases::open(data, &engine, settings).await
    };
    let writes = async |db: &SeriesDb| {
        let row = Row {
            source: "host",
            metric: "noise",
            timestamp: 1,
            value: 0.5,
        };
        db.insert_rows(&[row]).unwrap();
        db.flush().await
    };
    let first = opened(&machine("first")).await.unwrap();
    for name in [HISTORY, SERIES] {
        let second = machine(name);
        let folder = second.1.database(name);
        std::fs::create_dir_all(&folder).unwrap();
        // No folder of a log can be made there.
        std::fs::write(log(&folder), "a file").unwrap();
        let failure = opened(&second).await.unwrap_err();
        assert!(failure.message.contains(name), "{}", failure.message);
        for db in [
            first.series.as_ref().unwrap(),
            first.history.as_ref().unwrap().db(),
        ] {
            writes(db).await.unwrap();
        }
    }
    let second = opened(&machine("second")).await.unwrap();
    for db in [
        first.series.as_ref().unwrap(),
        first.history.as_ref().unwrap().db(),
    ] {
        let refused = writes(db).await;
        assert!(
            matches!(refused, Err(SeriesError::AnotherWriter)),
            "{refused:?}"
        );
    }
    for databases in [first, second] {
        databases.close().await;
    }
}

#[test]
fn invalid_retention_settings_are_rejected_by_name() {
    let series = retention(None, Some("30d"), Some("10GiB")).unwrap().series;
    assert_eq!(series.age, Some(Duration::from_secs(30 * 24 * 3600)));
    assert_eq!(series.bytes, Some(10 << 30));
    for (wrong, option) in [
        (retention(Some("a lot"), None, None), "--history-size"),
        (retention(None, Some("30"), None), "--series-age"),
        (retention(None, None, Some("5%")), "--series-size"),
    ] {
        let message = wrong.unwrap_err().message;
        assert!(message.starts_with(option), "{message}");
    }
    assert!(
        DatabaseRetention::parse(true, None, None, None)
            .unwrap()
            .history
            .is_none()
    );
}
