//! `bywash series` with a running server, and with the folder of a stopped one.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use crate::common::{Server, bywash, data_dir, stderr, stdout};
use bytes::Bytes;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::reader::{FileReader, SerializedFileReader};
use rustix::process::Signal;

/// Runs `bywash series ARGS`, which must succeed or fail as given. Returns its standard output and standard error.
fn series(args: &[&str], database: &[&str], succeeds: bool) -> (String, String) {
    let output = bywash(&[&["series"], args, database].concat())
        .output()
        .unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.success(), succeeds, "{args:?}: {message}");
    (stdout(&output), message)
}

#[test]
fn series_are_written_and_read_with_and_without_a_server() {
    let (home, data) = data_dir(&[]);
    let lines = home.path().join("lines");
    fs::write(&lines, "m,k=a v=1.5 5\nm,k=b v=-2 6\n").unwrap();
    let (lines, folder) = (lines.to_str().unwrap(), data.join("series"));
    let server = Server::start(&data, &[]);
    let at_server = ["--data-dir", data.to_str().unwrap()];
    let in_folder = ["--folder", folder.to_str().unwrap()];
    let run = |args: &[&str], database: &[&str]| series(args, database, true).0;
    run(&["write", lines], &at_server);
    let names = "m,k=a  v\nm,k=b  v\n";
    assert_eq!(run(&["ls", "m,*"], &at_server), names);
    let (_, message) = series(&["ls"], &in_folder, false);
    assert!(message.contains("in use"), "{message}");

    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(run(&["ls", "m,*"], &in_folder), names);
    run(&["write", "--precision", "s", lines], &in_folder);
    let last = run(
        &["query", "m,k=a", "v", "--start", "6", "--json"],
        &in_folder,
    );
    assert_eq!(
        last,
        "{\"source\":\"m,k=a\",\"metric\":\"v\",\"timestamp\":5000000000,\"value\":1.5}\n"
    );
}

#[test]
fn key_pair_goes_to_no_proxy_of_the_environment() {
    let (home, data) = data_dir(&[]);
    let lines = home.path().join("lines");
    fs::write(&lines, "m,k=a v=1.5 5\n").unwrap();
    let server = Server::start(&data, &["--no-history"]);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let lines = lines.to_str().unwrap();
    for args in [
        &["series", "write", lines][..],
        &["series", "ls"],
        &["series", "query", "m,k=a"],
        &["cache", "ls"],
    ] {
        let output = bywash(args)
            .arg("--data-dir")
            .arg(&data)
            .env("http_proxy", &address)
            .env("all_proxy", &address)
            .env_remove("no_proxy")
            .env_remove("NO_PROXY")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
    let error = proxy.accept().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(server);
}

/// Source, metric, timestamp, and bits of the value.
type Row = (String, String, i64, u64);

/// Returns lines, and their rows: names that CSV quotes, extreme timestamps, values that a short text form would round.
fn odd_rows() -> (String, Vec<Row>) {
    let values: [f64; 5] = [0.1, -0.0, 5e-324, 1.797_693_134_862_315_7e308, -1.0 / 3.0];
    let names = [
        (r#"comma\,name,k=a"b"#, r#"comma\,name,k=a"b"#, "f"),
        ("dense,place=größe", "dense,place=größe", "日本"),
    ];
    let mut lines = String::new();
    let mut rows = Vec::new();
    for (written, source, metric) in names {
        let times = [i64::MIN, -1, 0]
            .into_iter()
            .chain(1..2000)
            .chain([i64::MAX]);
        for (at, value) in times.zip(values.into_iter().cycle()) {
            lines.push_str(&format!("{written} {metric}={value:e} {at}\n"));
            rows.push((source.to_owned(), metric.to_owned(), at, value.to_bits()));
        }
    }
    (lines, rows)
}

fn rows_of_csv(text: &str) -> Vec<Row> {
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let heading: Vec<_> = table.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(heading, ["source", "metric", "timestamp", "value"]);
    let rows = table.deserialize::<(String, String, i64, f64)>();
    rows.map(Result::unwrap)
        .map(|(source, metric, at, value)| (source, metric, at, value.to_bits()))
        .collect()
}

fn column<T: DataType>(file: &SerializedFileReader<Bytes>, at: usize) -> Vec<T::T> {
    let mut values = Vec::new();
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group).unwrap();
        let mut column = get_typed_column_reader::<T>(group.get_column_reader(at).unwrap());
        let rows = usize::try_from(group.metadata().num_rows()).unwrap();
        column.read_records(rows, None, None, &mut values).unwrap();
    }
    values
}

fn rows_of_parquet(path: &Path) -> Vec<Row> {
    let file = SerializedFileReader::new(Bytes::from(fs::read(path).unwrap())).unwrap();
    let text = |at| {
        let values = column::<ByteArrayType>(&file, at).into_iter();
        values.map(|value| value.as_utf8().unwrap().to_owned())
    };
    let names = text(0).zip(text(1));
    let points = column::<Int64Type>(&file, 2)
        .into_iter()
        .zip(column::<DoubleType>(&file, 3));
    names
        .zip(points)
        .map(|((source, metric), (at, value))| (source, metric, at, value.to_bits()))
        .collect()
}

#[test]
fn every_row_is_exported_as_it_was_written_by_a_server_and_from_its_folder() {
    let (home, data) = data_dir(&[]);
    let (lines, rows) = odd_rows();
    let file = home.path().join("lines");
    fs::write(&file, lines).unwrap();
    let (data, folder) = (data.to_str().unwrap(), data.join("series"));
    let server = Server::start(data.as_ref(), &["--no-history"]);
    let at_server = ["--data-dir", data];
    let in_folder = ["--folder", folder.to_str().unwrap()];
    series(&["write", file.to_str().unwrap()], &at_server, true);

    let exported = home.path().join("rows");
    let path = exported.to_str().unwrap();
    let check = |database: &[&str]| {
        assert_eq!(rows_of_csv(&series(&["export"], database, true).0), rows);
        series(&["export", "--format", "csv", "--to", path], database, true);
        assert_eq!(rows_of_csv(&fs::read_to_string(&exported).unwrap()), rows);
        series(
            &["export", "--format", "parquet", "--to", path],
            database,
            true,
        );
        assert_eq!(rows_of_parquet(&exported), rows);
        let some = ["export", "dense,*", "--start", "5", "--end", "7"];
        let some = rows_of_csv(&series(&some, database, true).0);
        let expected = rows.iter().filter(|row| row.0.starts_with("dense"));
        let expected: Vec<_> = expected.filter(|row| (5..=7).contains(&row.2)).collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), expected);
    };
    check(&at_server);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    check(&in_folder);
}

#[test]
fn refused_lines_are_named_by_number_at_a_server_and_in_a_folder() {
    let (home, data) = data_dir(&[]);
    let file = home.path().join("lines");
    fs::write(&file, "m v=1 1\nm v= 2\n\nm v=3 3\nnothing\n").unwrap();
    let (data, folder) = (data.to_str().unwrap(), data.join("series"));
    let server = Server::start(data.as_ref(), &["--no-history"]);
    let at_server = ["--data-dir", data];
    let in_folder = ["--folder", folder.to_str().unwrap()];
    let refused = |database: &[&str]| {
        let (_, message) = series(&["write", file.to_str().unwrap()], database, false);
        let lines: Vec<&str> = message.lines().collect();
        let [summary, second, fifth] = lines[..] else {
            panic!("{message}");
        };
        let words =
            "bywash: 2 of 4 lines are refused, 2 are kept; correct them and write them again:";
        assert_eq!(summary, words);
        assert!(second.starts_with("  line 2: "), "{second}");
        assert!(fifth.starts_with("  line 5: "), "{fifth}");
        let (_, message) = series(
            &["write", "--precision", "d", file.to_str().unwrap()],
            database,
            false,
        );
        assert_eq!(
            message,
            "bywash: the precision is none of ns, us, ms, s, m, h\n"
        );
        assert_eq!(rows_of_csv(&series(&["export"], database, true).0).len(), 2);
    };
    refused(&at_server);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    refused(&in_folder);
}

#[test]
fn write_to_the_history_is_rejected_with_its_reason_and_no_hint_at_keys() {
    let (home, data) = data_dir(&["data"]);
    let file = home.path().join("file");
    fs::write(&file, "x").unwrap();
    let server = Server::start(&data, &[]);
    let (code, message) = server.fail(&["cp", file.to_str().unwrap(), "s3://bywash-history/x"]);
    assert_eq!(code, 4, "{message}");
    assert!(message.contains("the server's own history"), "{message}");
    assert!(!message.contains("AWS_"), "{message}");
}

/// Two servers on two machines, one after the other and at once, over one bucket: rows that a killed one has in its log only
/// come back with it.
#[test]
fn server_elsewhere_reads_values_in_a_bucket_and_rows_of_a_killed_one_come_back_with_it() {
    let (home, data) = data_dir(&[]);
    let (elsewhere, bucket) = (home.path().join("elsewhere"), home.path().join("bucket"));
    fs::create_dir(&bucket).unwrap();
    let url = format!("file://{}", bucket.display());
    let origin = format!("metrics={url}");
    let options = [&*origin, "--series-bucket", "metrics/all"];
    let run = |args: &[&str], data: &Path| {
        let at = ["--data-dir", data.to_str().unwrap()];
        series(args, &at, true).0
    };
    let write = |lines: &str, data: &Path| {
        let file = home.path().join("lines");
        fs::write(&file, lines).unwrap();
        run(&["write", file.to_str().unwrap()], data);
    };
    let first = Server::start(&data, &options);
    assert!(first.startup_output.contains("metrics/all"));
    write("m v=1 1\n", &data);
    first.signal(Signal::TERM);
    assert!(first.wait().success());
    let first = Server::start(&data, &options);
    write("m v=2 2\n", &data);
    first.signal(Signal::KILL);
    first.wait();

    let values = |text: String| -> Vec<f64> {
        let value = |row: &str| row.rsplit("  ").next().unwrap().parse().unwrap();
        text.lines().map(value).collect()
    };
    let query = ["query", "m", "v"];
    let second = Server::start(&elsewhere, &options);
    assert_eq!(values(run(&query, &elsewhere)), [1.0]);
    write("m v=3 3\n", &elsewhere);
    second.signal(Signal::TERM);
    assert!(second.wait().success());

    let first = Server::start(&data, &options);
    assert_eq!(values(run(&query, &data)), [1.0, 2.0, 3.0]);
    let history = run(&["ls", "bywash"], &data);
    assert!(history.contains("bywash  starts"), "{history}");
    first.signal(Signal::TERM);
    assert!(first.wait().success());

    // Values in the bucket are read without a server, and only read.
    let place = format!("{url}/all");
    let at = ["--at", &*place];
    assert_eq!(values(series(&query, &at, true).0), [1.0, 2.0, 3.0]);
    let listed = series(&["ls"], &at, true).0;
    assert!(listed.contains("m  v\n") && listed.contains("bywash  starts\n"));
    let csv = series(&["export", "m"], &at, true).0;
    assert_eq!(rows_of_csv(&csv).len(), 3);
    let file = home.path().join("lines");
    let (_, message) = series(&["write", file.to_str().unwrap()], &at, false);
    assert!(message.contains("read only"), "{message}");
    let (_, message) = series(&["ls"], &["--at", &*url], false);
    assert!(message.contains("no database"), "{message}");
    assert!(bucket.join("all/series/manifest").is_file());
    assert!(!data.join("series/files").exists());
}

#[test]
fn values_of_a_data_folder_go_on_in_a_bucket_once_their_files_are_copied() {
    let (home, data) = data_dir(&[]);
    let bucket = home.path().join("bucket");
    fs::create_dir(&bucket).unwrap();
    let lines = home.path().join("lines");
    fs::write(&lines, "m v=1 1\n").unwrap();
    let at_server = ["--data-dir", data.to_str().unwrap()];
    let server = Server::start(&data, &["--no-history"]);
    series(&["write", lines.to_str().unwrap()], &at_server, true);
    server.signal(Signal::TERM);
    assert!(server.wait().success());

    let origin = format!("metrics=file://{}", bucket.display());
    let options = [&*origin, "--series-bucket", "metrics", "--no-history"];
    let free = [
        "--s3-addr=127.0.0.1:0",
        "--admin-addr=127.0.0.1:0",
        "--gcs-addr=off",
    ];
    let start = [&["serve"], &at_server[..], &free[..], &options[..]].concat();
    let refused = bywash(&start).output().unwrap();
    let message = stderr(&refused);
    assert!(
        !refused.status.success() && message.contains("copy the files"),
        "{message}"
    );
    let from = format!("{}/", data.join("series/files").display());
    let to = format!("file://{}/series/", bucket.display());
    let copied = bywash(&["sync", &from, &to]).output().unwrap();
    assert!(copied.status.success(), "{}", stderr(&copied));
    let server = Server::start(&data, &options);
    let rows = series(&["query", "m"], &at_server, true).0;
    assert_eq!(rows.lines().count(), 1, "{rows}");
    drop(server);
}
