use super::*;

pub(super) fn name(key: &str, id: &str) -> UploadName {
    UploadName {
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
        id: id.to_owned(),
    }
}

/// A part with a checksum if its size is odd.
pub(super) fn part(size: u64) -> Part {
    let checksum = Checksum {
        algorithm: Algorithm::Crc32c,
        value: format!("{size}=="),
    };
    Part {
        md5: None,
        e_tag: format!("\"tag {size}\""),
        size,
        checksum: Some(checksum).filter(|_| size % 2 == 1),
        modified: DateTime::from_timestamp_nanos(1_700_000_000_123_456_789),
    }
}

pub(super) fn upload(algorithm: Option<Algorithm>) -> Upload {
    let initiated = DateTime::from_timestamp_nanos(1_600_000_000_987_654_321);
    Upload::new(initiated, algorithm, true, Some("mark".to_owned()))
}

/// Asserts that clients and completions see the same.
#[track_caller]
pub(super) fn same(found: &Upload, expected: &Upload) {
    assert_eq!(found.initiated, expected.initiated);
    assert_eq!(found.algorithm, expected.algorithm);
    assert_eq!(found.full_object, expected.full_object);
    assert_eq!(found.mark, expected.mark);
    assert_eq!(found.parts, expected.parts);
    assert_eq!(found.attempts, expected.attempts);
}

fn engine() -> Engine {
    Engine::builder().memory(16 << 20).build().unwrap()
}

fn kept(folder: &Path) -> Arc<Uploads> {
    Arc::new(Uploads::persistent(10, folder, engine()).unwrap())
}

fn doing(name: &UploadName) -> OperationContext<'_> {
    OperationContext::new("test", &name.bucket, &name.key)
}

async fn begin(uploads: &Arc<Uploads>, name: &UploadName) -> S3Result<()> {
    let hold = uploads.admit(doing(name)).await?;
    uploads.begin(name.clone(), upload(None), hold).await
}

async fn add(uploads: &Arc<Uploads>, name: &UploadName, number: u16, part: Part) -> S3Result<()> {
    let hold = uploads.admit_part(name, doing(name)).await?;
    uploads.add_part(name, number, part, hold).await
}

#[tokio::test]
async fn acknowledged_changes_survive_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let uploads = kept(home.path());
    let (first, second) = (name("a", "1"), name("b", "2"));
    for name in [&first, &second] {
        begin(&uploads, name).await.unwrap();
    }
    add(&uploads, &first, 2, part(2)).await.unwrap();
    add(&uploads, &first, 1, part(1)).await.unwrap();
    add(&uploads, &first, 2, part(3)).await.unwrap();
    let (completion, _) = uploads.complete(&first).unwrap();
    completion.begin("parts".to_owned()).await.unwrap();
    drop(completion);
    uploads.remove(&second).await.unwrap();
    let refused = add(&uploads, &second, 1, part(1)).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::NoSuchUpload);

    let again = kept(home.path());
    same(&again.get(&first).unwrap(), &uploads.get(&first).unwrap());
    assert_eq!(again.get(&first).unwrap().attempts.len(), 1);
    assert!(again.get(&second).is_err());
    let from = Bound::Included(("", ""));
    assert_eq!(again.first("bucket", from), uploads.first("bucket", from));
    again.check_open(&first).unwrap();
    let (completion, _) = again.complete(&first).unwrap();
    completion.done().await.unwrap();
    assert!(again.get(&first).is_err());
    assert!(kept(home.path()).get(&first).is_err());
}

#[tokio::test]
async fn failed_write_leaves_uploads_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("multipart");
    let uploads = kept(&folder);
    let first = name("a", "1");
    begin(&uploads, &first).await.unwrap();
    add(&uploads, &first, 1, part(1)).await.unwrap();
    std::fs::rename(&folder, home.path().join("away")).unwrap();
    let refused = add(&uploads, &first, 2, part(2)).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::InternalError);
    assert!(begin(&uploads, &name("b", "2")).await.is_err());
    assert!(uploads.get(&name("b", "2")).is_err());
    assert_eq!(uploads.get(&first).unwrap().parts.len(), 1);
    // Once the disk works again, all acknowledged changes are written.
    std::fs::create_dir(&folder).unwrap();
    add(&uploads, &first, 3, part(3)).await.unwrap();
    same(
        &kept(&folder).get(&first).unwrap(),
        &uploads.get(&first).unwrap(),
    );
}

#[tokio::test]
async fn parts_stored_at_once_are_all_kept() {
    let home = tempfile::tempdir().unwrap();
    let uploads = kept(home.path());
    let first = name("a", "1");
    begin(&uploads, &first).await.unwrap();
    let storing = (1..=50).map(|number| {
        let (uploads, first) = (Arc::clone(&uploads), first.clone());
        // Each number twice, so that file and memory must agree on the last write.
        tokio::spawn(async move {
            add(&uploads, &first, number % 25 + 1, part(u64::from(number))).await
        })
    });
    for stored in storing.collect::<Vec<_>>() {
        stored.await.unwrap().unwrap();
    }
    let found = kept(home.path()).get(&first).unwrap();
    assert_eq!(found.parts.len(), 25);
    same(&found, &uploads.get(&first).unwrap());
}

#[tokio::test]
async fn open_uploads_are_shown_newest_first_without_reading_a_file() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("multipart");
    let shown = OpenUploads::default();
    assert_eq!(shown.newest(9), (Vec::new(), 0), "nothing serves yet");
    let uploads = kept(&folder);
    shown.show(&uploads);
    for (second, key) in ["old", "newest", "new"].into_iter().enumerate() {
        let mut begun = upload(None);
        let later = [0, 9, 5][second];
        begun.initiated += chrono::TimeDelta::seconds(later);
        let name = name(key, "1");
        let hold = uploads.admit(doing(&name)).await.unwrap();
        uploads.begin(name, begun, hold).await.unwrap();
    }
    let newest = name("newest", "1");
    for number in [1, 2, 2] {
        add(&uploads, &newest, number, part(10)).await.unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let (found, total) = shown.newest(2);
    let keys: Vec<_> = found.iter().map(|open| open.key.as_str()).collect();
    assert_eq!((keys, total), (vec!["newest", "new"], 3));
    assert_eq!((found[0].parts, found[0].bytes), (2, 20));
    let newest = found[0].initiated;
    assert_eq!(shown.begun_before(newest), 2);
    drop(uploads);
    assert_eq!(shown.newest(9).1, 0, "the endpoint ended");
}

#[tokio::test]
async fn upload_aborted_from_the_page_ends_at_the_origin_and_for_its_client() {
    let engine = engine();
    let store = Arc::new(bywash::origin::memory::MemoryStore::new());
    let consistency = bywash::Consistency::default();
    let bucket = engine.mount("bucket", store, consistency).unwrap();
    let shown = OpenUploads::default();
    let aborted = shown.abort(&engine, "bucket", "key", "1").await;
    assert!(aborted.unwrap_err().to_string().contains("does not serve"));
    let uploads = Arc::new(Uploads::new(10, engine.clone()));
    shown.show(&uploads);
    let path = object_store::path::Path::from("key");
    let id = bucket.create_upload(&path, Default::default()).await;
    let open = name("key", &id.unwrap());
    begin(&uploads, &open).await.unwrap();
    for (bucket, key, id) in [
        ("other", "key", open.id.as_str()),
        ("bucket", "other", &open.id),
        ("bucket", "key", "other"),
    ] {
        assert!(shown.abort(&engine, bucket, key, id).await.is_err());
    }
    assert_eq!(shown.newest(9).1, 1);
    shown
        .abort(&engine, "bucket", "key", &open.id)
        .await
        .unwrap();
    assert_eq!(shown.newest(9).1, 0);
    assert!(uploads.get(&open).is_err());
    let piece = futures::stream::once(async { Ok(bytes::Bytes::from_static(b"x")) });
    let body = Box::pin(piece);
    let part = bucket.put_part(&path, &open.id, 1, 1, body).await;
    assert!(part.is_err(), "the origin has dropped it");
}
