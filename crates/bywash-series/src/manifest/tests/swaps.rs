//! Tests of failed puts, lost responses, other writers and damage.

use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::*;
use bywash_support::faulty_store::{Fault, FaultyStore};

async fn faulty() -> (FaultyStore, Arc<dyn ObjectStore>, DataFiles) {
    let store = FaultyStore::default();
    let shared = store.shared();
    let files = open(&shared).await;
    (store, shared, files)
}

fn one_row(partition: i64, generation: u64) -> Vec<Arc<ImmutableMemtable>> {
    let at = partition * span().nanos();
    vec![immutable(
        partition,
        generation,
        vec![series("a", "x", &[(at, generation as f64)])],
    )]
}

async fn count(files: &DataFiles) -> usize {
    rows(files, ("a", "x"), i64::MIN..=i64::MAX).await.len()
}

#[tokio::test]
async fn lost_manifest_response_is_resolved_by_reading() {
    let (store, _, files) = faulty().await;
    store.fault("put", "manifest", Fault::LoseResponse);
    files.flush(one_row(0, 1), 1).await.unwrap();
    assert_eq!(count(&files).await, 1);
    files.flush(one_row(1, 2), 2).await.unwrap();
    assert_eq!(count(&files).await, 2);
}

#[tokio::test]
async fn failed_flush_is_repeated_without_duplicates() {
    for (part, fault) in [
        ("files/", Fault::Fail),
        ("files/", Fault::LoseResponse),
        ("manifest", Fault::Fail),
        ("manifest", Fault::LoseResponse),
        ("manifest", Fault::DelayPut),
    ] {
        let (store, shared, files) = faulty().await;
        files.flush(one_row(0, 1), 1).await.unwrap();
        store.fault("put", part, fault);
        if part == "manifest" {
            store.fault("get", "manifest", Fault::Fail);
        }
        let failed = files.flush(one_row(1, 2), 1).await.unwrap_err();
        assert!(
            matches!(failed, SeriesError::Store { .. }),
            "{part} {fault:?}: {failed}"
        );
        assert_eq!(count(&files).await, 1, "{part} {fault:?}");
        store.clear_faults();
        let arrived = store.complete_delayed().await;
        assert!(arrived.iter().all(Result::is_ok));
        files.flush(one_row(1, 2), 1).await.unwrap();
        assert_eq!(count(&files).await, 2, "{part} {fault:?}");
        assert_eq!(files.version().files().len(), 2, "{part} {fault:?}");
        let again = open(&shared).await;
        assert_eq!(count(&again).await, 2, "{part} {fault:?}");
        again
            .delete_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap();
        assert_eq!(objects(&shared).await.len(), 2, "{part} {fault:?}");
    }
}

#[tokio::test]
async fn delayed_put_of_a_superseded_writer_has_no_effect() {
    let (store, shared, old) = faulty().await;
    store.fault("put", "manifest", Fault::DelayPut);
    old.flush(one_row(0, 1), 1).await.unwrap_err();
    let new = open(&shared).await;
    new.flush(one_row(0, 1), 1).await.unwrap();
    let arrived = store.complete_delayed().await;
    assert!(matches!(
        arrived[..],
        [Err(object_store::Error::Precondition { .. })]
    ));
    for _ in 0..2 {
        let error = old.flush(one_row(3, 2), 1).await.unwrap_err();
        assert!(matches!(error, SeriesError::AnotherWriter), "{error}");
    }
    let error = old
        .delete_orphans(Duration::ZERO, i64::MAX)
        .await
        .unwrap_err();
    assert!(matches!(error, SeriesError::AnotherWriter), "{error}");
    new.flush(one_row(1, 2), 1).await.unwrap();
    assert_eq!(count(&new).await, 2);
}

#[tokio::test]
async fn orphans_are_deleted_after_a_grace_and_pending_files_stay() {
    let (store, shared, files) = faulty().await;
    store.fault("put", "manifest", Fault::Fail);
    files.flush(one_row(0, 1), 1).await.unwrap_err();
    assert_eq!(
        files
            .delete_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap(),
        0,
        "it may yet be named"
    );
    let files = open(&shared).await;
    let now = crate::Clock::now(&crate::SystemClock);
    assert_eq!(
        files
            .delete_orphans(Duration::from_secs(3600), now)
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        files
            .delete_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap(),
        1
    );
    assert_eq!(objects(&shared).await.len(), 0);
}

#[tokio::test]
async fn database_restored_from_a_copy_is_read_and_goes_on() {
    let (_, original, files) = faulty().await;
    files.flush(one_row(0, 1), 1).await.unwrap();
    files.flush(one_row(1, 2), 2).await.unwrap();
    let copy = FaultyStore::default().shared();
    let objects: Vec<_> = original.list(None).try_collect().await.unwrap();
    // In the other order, so that each copy gets another ETag.
    for object in objects.iter().rev() {
        let body = original.get(&object.location).await.unwrap().bytes().await;
        copy.put(&object.location, body.unwrap().into())
            .await
            .unwrap();
    }
    let e_tags = async |store: &Arc<dyn ObjectStore>| {
        let list = store.list(None).map_ok(|object| object.e_tag);
        list.try_collect::<Vec<_>>().await.unwrap()
    };
    assert_ne!(e_tags(&copy).await, e_tags(&original).await);
    let restored = open(&copy).await;
    assert_eq!(count(&restored).await, 2);
    restored.flush(one_row(2, 3), 3).await.unwrap();
    assert_eq!(count(&restored).await, 3);
}

#[tokio::test]
async fn damaged_file_fails_and_never_returns_other_rows() {
    let (_, shared, files) = faulty().await;
    let points: Vec<_> = (0..9000).map(|n| (n, n as f64 / 3.0)).collect();
    files
        .flush(vec![immutable(0, 1, vec![series("a", "x", &points)])], 1)
        .await
        .unwrap();
    let path = files.version().files()[0].entry().path();
    let good = shared.get(&path).await.unwrap().bytes().await.unwrap();
    let truth = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    for at in (0..good.len()).step_by(97).chain([good.len() - 1]) {
        let mut bad = good.to_vec();
        bad[at] ^= 0x10;
        shared.put(&path, PutPayload::from(bad)).await.unwrap();
        let manifest = files.version().manifest().clone();
        let layouts = Arc::new(LayoutCache::new(Arc::clone(&shared), budget()));
        let version = Version::new(manifest, None, &layouts);
        match read_version(&version, ("a", "x"), i64::MIN..=i64::MAX).await {
            Err(SeriesError::DamagedFile { .. }) => {}
            Ok(points) => assert_eq!(bits(&points), truth, "byte {at} is of names, and flipped"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    shared
        .put(&path, good.slice(..good.len() - 1).into())
        .await
        .unwrap();
    let short = read_version(&files.version(), ("a", "x"), i64::MIN..=i64::MAX).await;
    assert!(short.is_err());
}

#[tokio::test]
async fn manifest_that_is_damaged_newer_or_of_another_width_is_rejected() {
    let (_, shared, files) = faulty().await;
    files.flush(one_row(0, 1), 1).await.unwrap();
    let path = Path::from(format::PATH);
    let good = shared.get(&path).await.unwrap().bytes().await.unwrap();
    let open_with = |width| {
        let format = (width, Profile::Portable);
        DataFiles::open(Arc::clone(&shared), budget(), format, new_writer(), None)
    };
    let reopen = || open_with(span());
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 1;
        shared.put(&path, bad.into()).await.unwrap();
        let error = reopen().await.unwrap_err();
        let typed = matches!(
            error,
            SeriesError::DamagedFile { .. } | SeriesError::NewerFormat { .. }
        );
        assert!(typed, "byte {at}: {error}");
    }
    let newer = [b"BYWASHTS 2 ", &good[11..]].concat();
    shared.put(&path, newer.into()).await.unwrap();
    assert!(matches!(
        reopen().await,
        Err(SeriesError::NewerFormat { format: 2 })
    ));
    shared.put(&path, good.into()).await.unwrap();
    let hour = PartitionWidth::new(Duration::from_secs(3600)).unwrap();
    let other = open_with(hour).await;
    assert!(matches!(
        other,
        Err(SeriesError::PartitionWidthMismatch { .. })
    ));
    reopen().await.unwrap();
}

#[tokio::test]
async fn failed_read_resumes_at_the_same_row() {
    let (store, _, files) = faulty().await;
    for generation in 1..4 {
        let points: Vec<_> = (0..40_000).map(|n| (n * generation, n as f64)).collect();
        let rows = vec![series("a", "x", &points)];
        let flushed = files.flush(
            vec![immutable(0, generation as u64, rows)],
            generation as u64,
        );
        flushed.await.unwrap();
    }
    let truth = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    let version = files.version();
    let runs: Vec<_> = version.files().iter().map(SortedRun::in_file).collect();
    let names = (&"a".into(), &"x".into());
    let mut merge = MergeIterator::new(names, &runs, i64::MIN..=i64::MAX, &Arc::default());
    let (mut points, mut buffer, mut failures) = (Vec::new(), Vec::new(), 0);
    loop {
        // Every other request fails.
        store.clear_faults();
        store.fault("get", "files/", Fault::Fail);
        let mut read = merge.next(&mut buffer).await.map(<[_]>::to_vec);
        if read.is_err() {
            failures += 1;
            read = merge.next(&mut buffer).await.map(<[_]>::to_vec);
        }
        let next = read.unwrap();
        if next.is_empty() {
            break;
        }
        points.extend(next);
    }
    assert!(failures > 3, "{failures} requests failed");
    assert!(bits(&points) == truth);
}
