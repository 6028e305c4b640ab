//! Files with times before 1970 or far ahead: one time in each response, and another generation for each version.

use std::collections::HashSet;
use std::fs::File;
use std::time::{Duration, SystemTime};

use bywash::time::parse_http_date;
use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::gcs_server::GcsServer;
use crate::server::Server;

/// The text between two texts.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap();
    rest.split_once(after).unwrap().0
}

fn seconds(iso: &str) -> i64 {
    iso.parse::<DateTime<Utc>>().unwrap().timestamp()
}

#[tokio::test]
async fn files_of_any_time_have_one_time_and_distinct_generations() {
    let gcs = GcsServer::start().await;
    let s3 = Server::start_beside(&gcs.engine).await;
    let folder = gcs.root.path().join("folder");
    let time = |seconds: i64| {
        let apart = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 {
            SystemTime::UNIX_EPOCH - apart
        } else {
            SystemTime::UNIX_EPOCH + apart
        }
    };
    let mut generations = HashSet::new();
    // 1901, 1965, around 1970, 2200, 2300.
    for wanted in [
        -2_147_483_000,
        -149_731_200,
        -1,
        0,
        1,
        7_258_118_400,
        10_413_792_000,
    ] {
        // Two versions of one time.
        for body in ["one", "other"] {
            let path = folder.join("key");
            let placed = folder.join("placed");
            std::fs::write(&placed, body).unwrap();
            let file = File::options().write(true).open(&placed).unwrap();
            file.set_modified(time(wanted)).unwrap();
            std::fs::rename(&placed, &path).unwrap();
            // The time that the file system keeps.
            let kept = std::fs::metadata(&path).unwrap().modified().unwrap();
            let kept = DateTime::<Utc>::from(kept).timestamp();

            let target = "/folder/key";
            // The version known before is trusted for a moment.
            let read = loop {
                let read = s3.get(target, &[]).await.expect(200);
                if read.body == body.as_bytes() {
                    break read;
                }
                tokio::task::yield_now().await;
            };
            let sent = read.header("last-modified").unwrap().to_owned();
            assert_eq!(parse_http_date(&sent).unwrap().timestamp(), kept, "{sent}");
            let listed = s3.get("/folder?list-type=2", &[]).await.expect(200);
            let listed = String::from_utf8(listed.body).unwrap();
            let listed = between(&listed, "<LastModified>", "</LastModified>");
            assert_eq!(seconds(listed), kept, "{listed}");

            let object = gcs.get("/storage/v1/b/folder/o/key").await.expect(200);
            let object: Value = serde_json::from_slice(&object.body).unwrap();
            assert_eq!(seconds(object["updated"].as_str().unwrap()), kept);
            let generation = object["generation"].as_str().unwrap().to_owned();
            assert!(generation.parse::<i64>().unwrap() > 0, "{generation}");
            let items = gcs.get("/storage/v1/b/folder/o").await.expect(200);
            let items: Value = serde_json::from_slice(&items.body).unwrap();
            let item = &items["items"][0];
            assert_eq!(seconds(item["updated"].as_str().unwrap()), kept);
            assert_eq!(item["generation"].as_str().unwrap(), generation);
            assert!(generations.insert(generation), "{wanted} {body}");
        }
    }
}
