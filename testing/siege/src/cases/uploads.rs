//! Multipart uploads: more open ones than the server takes, more parts than an upload takes, several at once.

use std::time::Duration;

use bytes::Bytes;

use super::{Case, case};
use crate::Trouble;
use crate::client::{Client, Expect};
use crate::field::{Field, body};
use crate::process::Setup;

pub(super) const CASES: &[Case] = &[
    case!("open-uploads", open_uploads),
    case!("parts", parts),
    case!("uploads-at-once", uploads_at_once),
];

/// Uploads that a server keeps open; see MAX_OPEN_UPLOADS.
const OPEN: u64 = 4096;
/// The highest part number; see MAX_PART_NUMBER.
const PART_NUMBER: u64 = 10_000;

async fn start_upload(client: &mut Client, path: &str) -> Option<String> {
    let good = Expect::Status(&[200, 503]);
    let reply = client
        .send(("POST", path, "uploads="), &[], b"", &good)
        .await?;
    reply.tag("UploadId")
}

/// More uploads than may be open, ten times as many in a whole campaign; those past the limit are refused, reads go on.
async fn open_uploads(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    field.make_bucket("uploads").await?;
    let count = field.campaign.past(OPEN);
    let opened = field
        .crowd(16, |task| {
            let mut client = field.past("MAX_OPEN_UPLOADS");
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
    field.record.figure("open", opened.len());
    if opened.len() as u64 > OPEN {
        field
            .record
            .found(format!("{} uploads are open; max {OPEN}", opened.len()));
    }
    let chunk = opened.len().div_ceil(16).max(1);
    let opened = std::sync::Arc::new(opened);
    field
        .crowd(16, |task| {
            let (mut client, opened) = (field.well(), std::sync::Arc::clone(&opened));
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

/// One upload with the highest part numbers, in a whole campaign with all, some of them twice, and the number past the last.
async fn parts(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    field.make_bucket("parts").await?;
    let id = start_upload(&mut field.well(), "/parts/key").await;
    let id = id.ok_or("no upload could be begun")?;
    let (seed, count) = (field.seed, PART_NUMBER.min(field.campaign.keys / 50));
    field
        .crowd(8, |task| {
            let (mut client, id) = (field.well(), id.clone());
            async move {
                for number in (PART_NUMBER - count + 1 + task..=PART_NUMBER).step_by(8) {
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
    for number in [0, PART_NUMBER + 1, u64::MAX] {
        let query = format!("partNumber={number}&uploadId={id}");
        let refused = Expect::Status(&[400]);
        let mut client = field.past("MAX_PART_NUMBER");
        client
            .send(("PUT", "/parts/key", &query), &[], b"x", &refused)
            .await;
    }
    let query = format!("uploadId={id}");
    let gone = Expect::Status(&[204]);
    field
        .well()
        .send(("DELETE", "/parts/key", &query), &[], b"", &gone)
        .await;
    Ok(())
}

/// Uploads at once: far more parts than memory holds.
const AT_ONCE: u64 = 200;

/// The parts of upload `number`: one, in a whole campaign one of the least size that another may follow, and that other.
fn parts_of(field: &Field, number: u64) -> Vec<Bytes> {
    let sizes: &[usize] = match field.campaign.is_whole() {
        true => &[5 << 20, 1000],
        false => &[3 << 19],
    };
    let part =
        |(index, size): (usize, &usize)| body(field.seed, number ^ (index as u64) << 40, *size);
    sizes.iter().enumerate().map(part).collect()
}

/// Uploads all of `parts` and completes them. A part that gets SlowDown is sent again.
async fn upload(client: &mut Client, path: &str, parts: &[Bytes]) -> Option<()> {
    let id = start_upload(client, path).await?;
    let mut tags = String::new();
    let good = Expect::Status(&[200]);
    for (index, part) in parts.iter().enumerate() {
        let number = index + 1;
        let query = format!("partNumber={number}&uploadId={id}");
        let mut tries = 0;
        let tag = loop {
            let reply = client.send(("PUT", path, &query), &[], part, &good).await;
            let tag = reply.and_then(|reply| reply.header("etag").map(str::to_owned));
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
    let reply = client.send(request, &[], xml.as_bytes(), &good).await?;
    (reply.status == 200 && reply.text().contains("CompleteMultipartUploadResult")).then_some(())
}

/// 200 uploads at once, completed and read again. Beyond memory a part may wait; none may be lost.
async fn uploads_at_once(field: &mut Field) -> Result<(), Trouble> {
    field.serve_load(Setup::default()).await?;
    field.make_bucket("uploads").await?;
    let done = field
        .crowd(AT_ONCE, |number| {
            // More at once than memory holds: SlowDown is the right response, and a client tries again.
            let mut client = field.past("memory");
            let parts = parts_of(field, number);
            async move {
                let path = format!("/uploads/{number}");
                upload(&mut client, &path, &parts).await.map(|()| number)
            }
        })
        .await;
    let done: Vec<u64> = done.into_iter().flatten().collect();
    field.record.figure("completed", done.len());
    for number in &done {
        let whole = parts_of(field, *number).concat();
        let path = format!("/uploads/{number}");
        field.well().get(&path, &whole.into()).await;
    }
    if (done.len() as u64) < AT_ONCE / 10 * 9 {
        field.record.found(format!(
            "only {} of {AT_ONCE} uploads were completed",
            done.len()
        ));
    }
    Ok(())
}
