//! Copies through the server, which read and write at the same time.

use std::time::Duration;

use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[case!("copies", copies)];

/// Clients that copy at the same time; each object is a chunk of a server of 64 MiB.
const COPIES: u64 = 40;
const OBJECT: usize = 8 << 20;

/// More copies than the memory has room for, beside readers and listings: each copy has other metadata, so its bytes pass through the
/// server.
async fn copies(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    for number in 0..COPIES {
        // Few files with many names, to save disk; each name is an object of the server.
        let path = folder.join(format!("from-{number}"));
        match number % 10 {
            0 => std::fs::write(path, body(context.seed, number, OBJECT))?,
            rest => std::fs::hard_link(folder.join(format!("from-{}", number - rest)), path)?,
        }
    }
    std::fs::write(folder.join("background"), body(context.seed, 1, 100_000))?;
    context.serve_filled(Setup::default()).await?;
    let expected = body(context.seed, 1, 100_000);
    let mut reader = context.well_behaved();
    let background = tokio::spawn(async move {
        loop {
            reader.get("/data/background", &expected).await;
            let listed = Expect::Status(&[200]);
            let list = ("GET", "/data", "list-type=2");
            reader.send(list, &[], b"", &listed).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let copied = context.run_concurrently(COPIES, |number| {
        let mut client = context.excessive("MAX_COPIES_MEMORY_DIVISOR");
        async move {
            let source = format!("/data/from-{number}");
            let headers = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-copy", "1"),
            ];
            let request = ("PUT", &*format!("/data/to-{number}"), "");
            let good = Expect::Status(&[200, 503]);
            let response = client.send(request, &headers, b"", &good).await;
            response.is_some_and(|response| response.status == 200)
        }
    });
    let copied = copied.await;
    background.abort();
    let done = (0..COPIES).zip(copied).filter(|(_, copied)| *copied);
    let done: Vec<u64> = done.map(|(number, _)| number).collect();
    context.record.figure("copied", done.len());
    for number in done {
        let source = number - number % 10;
        let expected = body(context.seed, source, OBJECT);
        let path = format!("/data/to-{number}");
        context.well_behaved().get(&path, &expected).await;
    }
    Ok(())
}
