//! Listings with more names than may be in memory.

use std::fmt::Write as _;
use std::process::Child;
use std::sync::{Arc, OnceLock};

use crate::common::{bywash, stderr};
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use parking_lot::Mutex;
use tokio::task::block_in_place;

/// Objects of each bucket. One listing would take 30 MiB of memory.
const OBJECTS: usize = 30_000;
const PAGE: usize = 1000;
/// Page at which memory is measured first.
const EARLY_PAGE: usize = 10;
/// Max growth of memory in bytes between the early page and the last one.
const MAX_GROWTH: u64 = 24 << 20;

/// A store of generated names. It measures its client's memory while the client waits for a page.
#[derive(Default)]
struct ManyNames {
    client: OnceLock<u32>,
    /// Peak memory of the client at the early page, and at the last one.
    early: Mutex<Option<u64>>,
    last: Mutex<Option<u64>>,
}

impl Protocol for ManyNames {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let (bucket, _) = request.bucket_and_key();
        let start = request.query("continuation-token");
        let start: usize = start.map_or(0, |token| token.parse().unwrap());
        let last = start + PAGE == OBJECTS;
        if start == EARLY_PAGE * PAGE {
            self.early.lock().get_or_insert_with(|| self.peak());
        } else if last {
            *self.last.lock() = Some(self.peak());
        }
        let mut body = format!("<ListBucketResult><Name>{bucket}</Name>");
        if last {
            body += "<IsTruncated>false</IsTruncated>";
        } else {
            let next = start + PAGE;
            write!(
                body,
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>"
            )
            .unwrap();
        }
        for index in start..start + PAGE {
            write!(
                body,
                "<Contents><Key>{index:0>500}-{bucket}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"tag\"</ETag><Size>5</Size></Contents>"
            )
            .unwrap();
        }
        HttpResponse::status(200).body(body + "</ListBucketResult>")
    }
}

impl ManyNames {
    /// Peak resident memory of the client in bytes.
    fn peak(&self) -> u64 {
        let client = block_in_place(|| self.client.wait());
        let status = std::fs::read_to_string(format!("/proc/{client}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.unwrap().trim().strip_suffix(" kB").unwrap();
        kib.parse::<u64>().unwrap() << 10
    }

    fn growth(&self) -> u64 {
        let (early, last) = (self.early.lock().unwrap(), self.last.lock().unwrap());
        // The kernel sums its counters of processors late, so a later peak may be a few pages lower.
        last.saturating_sub(early)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_number_of_names() {
    for args in [
        &["sync", "--dry-run", "--delete", "s3://one", "s3://two"][..],
        &["rm", "-r", "--force", "--dry-run", "s3://one"],
        &["ls", "-r", "s3://one"],
        &["du", "s3://one"],
    ] {
        let store = Arc::new(ManyNames::default());
        let server = Server::start(Arc::<ManyNames>::clone(&store))
            .await
            .unwrap();
        let mut command = bywash(args);
        command.args(["--endpoint", &server.url()]);
        let child: Child = command.spawn().unwrap();
        store.client.set(child.id()).unwrap();
        let output = block_in_place(|| child.wait_with_output().unwrap());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        let expected = match args[0] {
            "sync" => 2 * OBJECTS,
            "du" => 1,
            _ => OBJECTS,
        };
        assert_eq!(lines, expected, "{args:?}");
        let growth = store.growth();
        assert!(growth <= MAX_GROWTH, "{args:?}: {growth} bytes more");
    }
}
