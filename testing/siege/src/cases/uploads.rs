//! Multipart uploads: more open ones than the server accepts, more parts than an upload accepts, many concurrent ones.

use std::time::Duration;

use bytes::Bytes;

use super::{Case, case};
use crate::CaseError;
use crate::client::{Client, Expect};
use crate::context::{CaseContext, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[
    case!("open-uploads", open_uploads),
    case!("parts", parts),
    case!("uploads-at-once", uploads_at_once),
];

/// Maximum number of open uploads of a server.
const MAX_OPEN: u64 = 4096;
/// Maximum part number.
const MAX_PART: u64 = 10_000;

async fn start_upload(client: &mut Client, path: &str) -> Option<String> {
    let good = Expect::Status(&[200, 503]);
    let response = client
        .send(("POST", path, "uploads="), &[], b"", &good)
        .await?;
    response.tag("UploadId")
}

/// More uploads than may be open, ten times as many in a full run; those beyond the limit are rejected.
async fn open_uploads(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("uploads").await?;
    let count = context.campaign.beyond(MAX_OPEN);
    let opened = context
        .run_concurrently(16, |task| {
            let mut client = context.excessive("MAX_OPEN_UPLOADS");
            async move {
                let mut opened = Vec::new();
                for number in (task..count).step_by(16) {
                    let path = format!("/uploads/{number}");
                    if let Some(id) = start_upload(&mut client, &path).await {
                        opened.push((path, id));
                    }
                }
                opened
            }
        })
        .await;
    let opened: Vec<_> = opened.into_iter().flatten().collect();
    context.record.figure("open", opened.len());
    if opened.len() as u64 > MAX_OPEN {
        context
            .record
            .finding(format!("{} uploads are open; max {MAX_OPEN}", opened.len()));
    }
    let chunk = opened.len().div_ceil(16).max(1);
    let opened = std::sync::Arc::new(opened);
    context
        .run_concurrently(16, |task| {
            let (mut client, opened) = (context.well_behaved(), std::sync::Arc::clone(&opened));
            async move {
                for (path, id) in opened.iter().skip(task as usize * chunk).take(chunk) {
                    let query = format!("uploadId={id}");
                    let good = Expect::Status(&[204]);
                    client.send(("DELETE", path, &query), &[], b"", &good).await;
                }
            }
        })
        .await;
    Ok(())
}

/// One upload with the highest part numbers (all in a full run), some of them twice, and invalid part numbers.
async fn parts(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("parts").await?;
    let id = start_upload(&mut context.well_behaved(), "/parts/key").await;
    let id = id.ok_or("no upload was created")?;
    let (seed, count) = (context.seed, MAX_PART.min(context.campaign.keys / 50));
    context
        .run_concurrently(8, |task| {
            let (mut client, id) = (context.well_behaved(), id.clone());
            async move {
                for number in (MAX_PART - count + 1 + task..=MAX_PART).step_by(8) {
                    let query = format!("partNumber={number}&uploadId={id}");
                    let good = Expect::Status(&[200]);
                    let part = body(seed, number, 32);
                    let request = ("PUT", "/parts/key", &*query);
                    client.send(request, &[], &part, &good).await;
                    if number % 10 == 0 {
                        client.send(request, &[], &part, &good).await;
                    }
                }
            }
        })
        .await;
    for number in [0, MAX_PART + 1, u64::MAX] {
        let query = format!("partNumber={number}&uploadId={id}");
        let refused = Expect::Status(&[400]);
        let mut client = context.excessive("MAX_PART_NUMBER");
        client
            .send(("PUT", "/parts/key", &query), &[], b"x", &refused)
            .await;
    }
    let query = format!("uploadId={id}");
    let gone = Expect::Status(&[204]);
    context
        .well_behaved()
        .send(("DELETE", "/parts/key", &query), &[], b"", &gone)
        .await;
    Ok(())
}

/// Number of concurrent uploads, with far more parts than fit in memory.
const CONCURRENT_UPLOADS: u64 = 200;

/// Returns the parts of upload `number`: one, in a full run two, of which the first has the minimum length.
fn parts_of(context: &CaseContext, number: u64) -> Vec<Bytes> {
    let sizes: &[usize] = match context.campaign.is_full() {
        true => &[5 << 20, 1000],
        false => &[3 << 19],
    };
    let part =
        |(index, size): (usize, &usize)| body(context.seed, number ^ (index as u64) << 40, *size);
    sizes.iter().enumerate().map(part).collect()
}

/// Uploads and completes `parts`. Retries a part that gets SlowDown.
async fn upload(client: &mut Client, path: &str, parts: &[Bytes]) -> Option<()> {
    let id = start_upload(client, path).await?;
    let mut tags = String::new();
    let good = Expect::Status(&[200]);
    for (index, part) in parts.iter().enumerate() {
        let number = index + 1;
        let query = format!("partNumber={number}&uploadId={id}");
        let mut tries = 0;
        let tag = loop {
            let response = client.send(("PUT", path, &query), &[], part, &good).await;
            let tag = response.and_then(|response| response.header("etag").map(str::to_owned));
            tries += 1;
            if tag.is_some() || tries == 8 {
                break tag;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }?;
        tags.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        ));
    }
    let xml = format!("<CompleteMultipartUpload>{tags}</CompleteMultipartUpload>");
    let query = format!("uploadId={id}");
    let request = ("POST", path, &*query);
    let response = client.send(request, &[], xml.as_bytes(), &good).await?;
    (response.status == 200 && response.text().contains("CompleteMultipartUploadResult"))
        .then_some(())
}

/// 200 concurrent uploads, completed and read. Parts may wait for memory; none may be lost.
async fn uploads_at_once(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve_filled(Setup::default()).await?;
    context.create_bucket("uploads").await?;
    let done = context
        .run_concurrently(CONCURRENT_UPLOADS, |number| {
            // More than fits in memory: SlowDown is permitted, and the client retries.
            let mut client = context.excessive("memory");
            let parts = parts_of(context, number);
            async move {
                let path = format!("/uploads/{number}");
                upload(&mut client, &path, &parts).await.map(|()| number)
            }
        })
        .await;
    let done: Vec<u64> = done.into_iter().flatten().collect();
    context.record.figure("completed", done.len());
    for number in &done {
        let whole = parts_of(context, *number).concat();
        let path = format!("/uploads/{number}");
        context.well_behaved().get(&path, &whole.into()).await;
    }
    if (done.len() as u64) < CONCURRENT_UPLOADS / 10 * 9 {
        context.record.finding(format!(
            "only {} of {CONCURRENT_UPLOADS} uploads were completed",
            done.len()
        ));
    }
    Ok(())
}
