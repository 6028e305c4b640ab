//! `bywash series`: at a running server, and in the folder it leaves behind.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use common::{Server, bywash, data_dir, stderr, stdout};
use rustix::process::Signal;

#[test]
fn series_are_written_read_and_exported_with_and_without_a_server() {
    let (home, data) = data_dir(&[]);
    let lines = home.path().join("lines");
    fs::write(&lines, "m,k=a v=1.5 5\nm,k=b v=-2 6\n").unwrap();
    let (lines, folder) = (lines.to_str().unwrap(), data.join("series"));
    let server = Server::start(&data, &[]);
    let at_server = ["--data-dir", data.to_str().unwrap()];
    let in_folder = ["--folder", folder.to_str().unwrap()];
    let run = |args: &[&str], place: &[&str]| {
        let output = bywash(&[&["series"], args, place].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    run(&["write", lines], &at_server);
    let names = "m,k=a  v\nm,k=b  v\n";
    assert_eq!(run(&["ls", "m,*"], &at_server), names);
    let csv = "source,metric,timestamp,value\n\"m,k=a\",v,5,1.5\n\"m,k=b\",v,6,-2.0\n";
    assert_eq!(run(&["export", "m,*"], &at_server), csv);
    let refused = bywash(&[&["series", "ls"][..], &in_folder].concat())
        .output()
        .unwrap();
    assert!(stderr(&refused).contains("in use"), "{}", stderr(&refused));

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
    let file = home.path().join("rows.parquet");
    run(
        &[
            "export",
            "--format",
            "parquet",
            "--to",
            file.to_str().unwrap(),
        ],
        &in_folder,
    );
    let written = fs::read(&file).unwrap();
    assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"));
}
