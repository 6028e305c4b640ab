//! Values received, queried and drawn.

use std::io::Write as _;
use std::time::Duration;

use bywash::Share;
use bywash_series::SeriesError;
use bywash_support::faulty_store::{Fault, FaultyStore};

use super::*;
use crate::limits::MAX_WRITES_AT_ONCE;

#[tokio::test]
async fn lines_become_series_and_refused_ones_are_named() {
    let console = start(engine()).await;
    let (status, ..) = console
        .post(
            "/write?precision=s&db=any",
            "",
            b"weather,place=garden temperature=21.5 1700000000",
        )
        .await;
    assert_eq!(status, 204);
    let (status, _, response) = console
        .post(
            "/api/v2/write?org=o&bucket=b",
            "",
            b"m a=1\nm a=\n\nm,k=v b=2,s=\"x\"",
        )
        .await;
    assert_eq!(status, 400);
    let response: serde_json::Value = serde_json::from_str(&response).unwrap();
    assert_eq!(
        (&response["kept_lines"], &response["refused_lines"]),
        (&2.into(), &1.into())
    );
    assert_eq!(response["refused"][0]["line"], 2);
    assert!(
        response["error"]
            .as_str()
            .unwrap()
            .starts_with("partial write: 1 of 3 lines are refused: line 2: "),
        "{response}"
    );

    let (status, _, list) = console.get("/series/list").await;
    assert_eq!(status, 200);
    let expected = serde_json::json!([
        {"source": "m", "metric": "a"}, {"source": "m,k=v", "metric": "b"},
        {"source": "weather,place=garden", "metric": "temperature"},
    ]);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&list).unwrap(),
        expected
    );
    let (_, _, list) = console
        .get("/series/list?start=2023-11-14T00:00:00Z&end=2023-11-15T00:00:00Z&format=csv")
        .await;
    assert_eq!(
        list,
        "source,metric\n\"weather,place=garden\",temperature\n"
    );
    assert_eq!(console.get("/series/list?start=tomorrow").await.0, 400);

    let (_, _, metrics) = console.get("/metrics").await;
    for line in [
        "bywash_series_lines_total 4",
        "bywash_series_values_total 3",
        "bywash_series_strings_total 1",
        "bywash_series_refused_lines_total 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in {metrics}"
        );
    }
}

#[tokio::test]
async fn line_of_strings_alone_is_accepted_and_counted() {
    let console = start(engine()).await;
    let lines = b"system,host=a load1=0.5 1\nsystem,host=a uptime_format=\"1 day\" 1";
    assert_eq!(console.post("/write", "", lines).await.0, 204);
    let alone = b"system,host=a uptime_format=\"1 day\",kernel=\"6\" 1";
    assert_eq!(console.post("/api/v2/write", "", alone).await.0, 204);
    let (_, _, metrics) = console.get("/metrics").await;
    for line in [
        "bywash_series_lines_total 3",
        "bywash_series_values_total 1",
        "bywash_series_strings_total 3",
        "bywash_series_refused_lines_total 0",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}: {metrics}"
        );
    }
}

#[tokio::test]
async fn bodies_are_plain_or_gzip_and_limited_either_way() {
    let console = start(engine()).await;
    let pack = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let gzip = "Content-Encoding: gzip\r\n";
    assert_eq!(
        console.post("/write", gzip, &pack(b"packed a=1")).await.0,
        204
    );
    assert_eq!(
        console.series.sources(i64::MIN..=i64::MAX).await.unwrap(),
        ["packed"]
    );
    assert_eq!(console.post("/write", gzip, b"packed a=1").await.0, 400);
    assert_eq!(
        console
            .post("/write", "Content-Encoding: br\r\n", b"x")
            .await
            .0,
        415
    );
    assert_eq!(
        console.post("/write?precision=d", "", b"m a=1").await.0,
        400
    );
    let huge = vec![b'#'; (16 << 20) + 1];
    assert_eq!(console.post("/write", "", &huge).await.0, 413);
    assert_eq!(console.post("/write", gzip, &pack(&huge)).await.0, 413);
    let (_, _, metrics) = console.get("/metrics").await;
    assert!(
        metrics.contains("bywash_series_refused_requests_total 5\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn clients_of_influxdb_find_the_server_by_its_ping() {
    let console = start(engine()).await;
    let (status, head, body) = console.get("/ping").await;
    assert_eq!((status, &*body), (204, ""));
    assert!(
        header(&head, "x-influxdb-version")
            .unwrap()
            .starts_with("1.8")
    );
}

#[tokio::test]
async fn bodies_are_charged_to_the_budget_or_refused_for_now() {
    let engine = engine();
    let console = start(engine.clone()).await;
    let budget = engine.budget();
    let mut held = Vec::new();
    while let Some(taken) = budget.try_reserve(Share::Upload, 1 << 20) {
        held.push(taken);
    }
    let lines = vec![b'#'; 1 << 20];
    let (status, head, body) = console.post("/write", "", &lines).await;
    assert_eq!((status, header(&head, "retry-after")), (503, Some("5")));
    assert!(body.contains("no memory for the lines"), "{body}");
    // Of a longer body the rest is not read, and the response arrives nevertheless.
    let long = vec![b'#'; 12 << 20];
    for _ in 0..10 {
        let (status, head, _) = console.post("/write", "", &long).await;
        assert_eq!((status, header(&head, "connection")), (503, Some("close")));
    }
    held.truncate(held.len() - 6);
    assert_eq!(console.post("/write", "", &lines).await.0, 204);
    // Unpacked it may have the max length.
    let gzip = "Content-Encoding: gzip\r\n";
    assert_eq!(console.post("/write", gzip, &lines).await.0, 503);
    drop(held);
    let before = budget.held(Share::Upload);
    assert_eq!(console.post("/write", gzip, &lines).await.0, 400);
    assert_eq!(budget.held(Share::Upload), before, "it is given back");
}

/// New names that find no memory wait like rows do, and are not refused for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names_that_do_not_fit_in_memory_are_to_be_sent_again() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = FaultyStore::over(Arc::new(MemoryStore::new()));
    (0..10_000).for_each(|_| store.fault("put", "files/", Fault::Fail));
    let options = SeriesOptions {
        memtable_bytes: Some(1 << 20),
        // Longer than the test: names that cannot leave are not waited for.
        write_timeout: Duration::from_secs(600),
        ..SeriesOptions::default()
    };
    let budget = engine.budget().clone();
    let db = SeriesDb::open(store.shared(), home.path().join("wal"), budget, options);
    let series = (db.await.unwrap(), home);
    let console = start_over(engine, key(), None, Limits::default(), series).await;
    let mut refused = 0;
    for request in 0.. {
        let lines: String = (0..100)
            .map(|name| format!("m,k={request}-{name} v=1 1\n"))
            .collect();
        let (status, head, body) = console.post("/write", "", lines.as_bytes()).await;
        if status == 204 {
            assert_eq!(refused, 0, "names fit again");
            continue;
        }
        assert_eq!(
            (status, header(&head, "retry-after")),
            (503, Some("5")),
            "{body}"
        );
        assert!(body.contains("write all others again later"), "{body}");
        refused += 1;
        if refused == 3 {
            break;
        }
    }
    let (known, _, _) = console.post("/write", "", b"m,k=0-0 v=2 2").await;
    assert_eq!(known, 204, "known names have memory");
    store.clear_faults();
    let again = async { while console.post("/write", "", b"m,k=again v=1 1").await.0 != 204 {} };
    let again = tokio::time::timeout(Duration::from_secs(20), again).await;
    assert!(again.is_ok(), "names leave once their rows are in files");
}

/// A store that does not respond is not known to fail for a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_names_keep_known_series_out_only_shortly() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = FaultyStore::over(Arc::new(MemoryStore::new()));
    (0..10_000).for_each(|_| store.fault("put", "files/", Fault::HoldRequest));
    let options = SeriesOptions {
        memtable_bytes: Some(1 << 20),
        write_timeout: Duration::from_secs(600),
        ..SeriesOptions::default()
    };
    let budget = engine.budget().clone();
    let db = SeriesDb::open(store.shared(), home.path().join("wal"), budget, options);
    let db = db.await.unwrap();
    let console = start_over(engine, key(), None, Limits::default(), (db.clone(), home)).await;
    assert_eq!(console.post("/write", "", b"m v=1 1").await.0, 204);
    // Its row is flushed before any sweep, which does not end.
    let full = (0..).find_map(|number| db.handle("m", &format!("{number}")).err());
    assert!(
        matches!(full, Some(SeriesError::TooManySeries { .. })),
        "{full:?}"
    );
    let console = &console;
    let new = (0..2 * MAX_WRITES_AT_ONCE).map(|name| async move {
        let line = format!("m,new={name} v=1 1");
        console.post("/write", "", line.as_bytes()).await.0
    });
    let known = async { console.post("/write", "", b"m v=2 2").await.0 };
    let all = futures::future::join(futures::future::join_all(new), known);
    let (new, known) = tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .expect("no request waits for the write timeout");
    assert_eq!(known, 204);
    assert_eq!(new, [503; 2 * MAX_WRITES_AT_ONCE]);
    store.clear_faults();
}

#[tokio::test]
async fn clients_that_send_slowly_keep_no_turn_from_others() {
    let engine = engine();
    let console = start(engine.clone()).await;
    let budget = engine.budget();
    let before = budget.held(Share::Upload);
    let lines = format!("m v=1 0\n{}", "#".repeat(100));
    let head = format!(
        "POST /write HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        lines.len()
    );
    let (first, rest) = lines.split_at(20);
    let mut slow = Vec::new();
    for _ in 0..2 * MAX_WRITES_AT_ONCE {
        let mut client = TcpStream::connect(console.address).await.unwrap();
        let begin = format!("{head}{first}");
        client.write_all(begin.as_bytes()).await.unwrap();
        slow.push(client);
    }
    // The first bytes of each are received and charged.
    let charged = before + (slow.len() * lines.len()) as u64;
    let received = async {
        while budget.held(Share::Upload) < charged {
            tokio::task::yield_now().await;
        }
    };
    let received = tokio::time::timeout(Duration::from_secs(20), received).await;
    assert!(received.is_ok(), "some wait for a turn");
    let (status, _, _) = console.post("/write", "", b"m v=2 1").await;
    assert_eq!(status, 204);
    for mut client in slow {
        client.write_all(rest.as_bytes()).await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 204"), "{response}");
    }
}

#[tokio::test]
async fn points_are_queried_as_rows_and_by_steps() {
    let console = start(engine()).await;
    let lines = b"m,k=a v=1 0\nm,k=a v=3 1000000000\nm,k=b v=-0.5 60000000000";
    assert_eq!(console.post("/write", "", lines).await.0, 204);
    let rows = |response: &str| -> Vec<(String, i64, f64)> {
        let rows: Vec<serde_json::Value> = serde_json::from_str(response).unwrap();
        let row = |row: &serde_json::Value| {
            let source = row["source"].as_str().unwrap().to_owned();
            (
                source,
                row["timestamp"].as_i64().unwrap(),
                row["value"].as_f64().unwrap(),
            )
        };
        rows.iter().map(row).collect()
    };
    let a = |at: i64, value: f64| ("m,k=a".to_owned(), at, value);
    let (_, _, response) = console.get("/series/query?source=m,k%3Da&metric=v").await;
    assert_eq!(rows(&response), [a(0, 1.0), a(1_000_000_000, 3.0)]);
    let (_, _, response) = console
        .get("/series/query?source=m,*&start=0&end=60000000000&step=1m&agg=max")
        .await;
    assert_eq!(
        rows(&response),
        [a(0, 3.0), ("m,k=b".to_owned(), 60_000_000_000, -0.5)]
    );
    let (_, _, response) = console
        .get("/series/query?source=m,k%3Db&metric=v&format=csv")
        .await;
    assert_eq!(
        response,
        "source,metric,timestamp,value\n\"m,k=b\",v,60000000000,-0.5\n"
    );
    for wrong in ["step=0", "step=x", "agg=median", "start=2&end=1"] {
        let (status, _, body) = console.get(&format!("/series/query?{wrong}")).await;
        assert_eq!(status, 400, "{wrong}: {body}");
    }
}

#[tokio::test]
async fn responses_are_charged_to_the_budget_or_refused_for_now() {
    let engine = engine();
    let console = start(engine.clone()).await;
    let lines: String = (0..10_000).map(|at| format!("m v={at} {at}\n")).collect();
    assert_eq!(console.post("/write", "", lines.as_bytes()).await.0, 204);
    let budget = engine.budget();
    let before = budget.held(Share::Upload);
    let mut held = Vec::new();
    while let Some(taken) = budget.try_reserve(Share::Upload, 1 << 20) {
        held.push(taken);
    }
    let all = "/series/query?source=m&format=csv";
    let (status, _, body) = console.get(all).await;
    assert_eq!(status, 503);
    assert!(body.contains("no memory for the response"), "{body}");
    held.truncate(held.len() - 2);
    let (status, _, rows) = console.get(all).await;
    assert_eq!((status, rows.lines().count()), (200, 10_001));
    drop(held);
    assert_eq!(budget.held(Share::Upload), before, "it is given back");
}

#[tokio::test]
async fn names_and_rows_are_charged_by_their_length() {
    let engine = engine();
    let console = start(engine.clone()).await;
    // 1,000 names of 1 KiB with one point each: more than 1 MiB of text.
    let tag = "t".repeat(1000);
    let line = |at: usize| format!("m,tag={tag}{at} v=1 1\n");
    let lines: String = (0..1000).map(line).collect();
    let (status, _, body) = console.post("/write", "", lines.as_bytes()).await;
    assert_eq!(status, 204, "{body}");
    let budget = engine.budget();
    let before = budget.held(Share::Upload);
    let mut held = Vec::new();
    while let Some(taken) = budget.try_reserve(Share::Upload, 1 << 20) {
        held.push(taken);
    }
    held.truncate(held.len() - 1);
    for path in ["/series/list?source=m,*", "/series/query?source=m,*"] {
        let (status, _, body) = console.get(path).await;
        assert_eq!(status, 503, "{path}");
        assert!(body.contains("no memory for the response"), "{body}");
    }
    drop(held);
    for path in ["/series/list?source=m,*", "/series/query?source=m,*"] {
        let (status, _, text) = console.get(path).await;
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status, rows.as_array().unwrap().len()),
            (200, 1000),
            "{path}"
        );
    }
    assert_eq!(budget.held(Share::Upload), before, "all is given back");
}

#[tokio::test]
async fn series_with_any_slashes_in_its_name_is_drawn() {
    let console = start(engine()).await;
    assert_eq!(
        console
            .post("/write", "", b"disk,path=/var/log free/used=7")
            .await
            .0,
        204
    );
    let (_, _, page) = console.get("/?series=disk,path%3D/var/log/free/used").await;
    assert!(
        page.contains("<polyline") || page.contains("<circle"),
        "{page}"
    );
    assert!(page.contains("free/used: 7"), "{page}");
    let (_, _, page) = console.get("/?series=nothing/here&range=7d").await;
    assert!(
        page.contains("No series of this name") && !page.contains("<circle"),
        "{page}"
    );
    let (_, _, page) = console.get("/").await;
    assert!(
        page.contains("series=disk%2Cpath%3D%2Fvar%2Flog%2Ffree%2Fused"),
        "{page}"
    );
}

#[tokio::test]
async fn unknown_and_repeated_parameters_are_refused() {
    let console = start(engine()).await;
    console.post("/write", "", b"m a=1 1").await;
    for page in ["/series/list", "/series/query"] {
        assert_eq!(console.get(&format!("{page}?source=m")).await.0, 200);
        for wrong in [
            "sorce=m",
            "source=m&limit=3",
            "Source=m",
            "source=m&source=n",
            "end=1&=",
        ] {
            let (status, _, message) = console.get(&format!("{page}?{wrong}")).await;
            assert_eq!(status, 400, "{page}?{wrong}");
            let names_it = message.contains("unknown field") || message.contains("duplicate field");
            assert!(names_it, "{message}");
        }
    }
}
