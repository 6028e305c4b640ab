//! Puts that fail, answers that are lost, other writers, damage.

use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::cues::{Cue, CuedStore};
use super::*;

async fn cued() -> (CuedStore, Arc<dyn ObjectStore>, SealedFiles) {
    let store = CuedStore::default();
    let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let files = open(&shared).await;
    (store, shared, files)
}

fn one_row(partition: i64, generation: u64) -> Vec<Arc<Frozen>> {
    let at = partition * span().nanos();
    vec![frozen(
        partition,
        generation,
        vec![series("a", "x", &[(at, generation as f64)])],
    )]
}

async fn count(files: &SealedFiles) -> usize {
    rows(files, ("a", "x"), i64::MIN..=i64::MAX).await.len()
}

#[tokio::test]
async fn the_lost_answer_of_a_manifest_is_found_out_by_reading() {
    let (store, _, files) = cued().await;
    store.cue("put", "manifest", Cue::LoseAnswer);
    files.seal(one_row(0, 1), 1).await.unwrap();
    assert_eq!(count(&files).await, 1);
    files.seal(one_row(1, 2), 2).await.unwrap();
    assert_eq!(count(&files).await, 2);
}

#[tokio::test]
async fn a_seal_that_failed_anywhere_is_repeated_and_no_row_is_doubled() {
    for (part, cue) in [
        ("files/", Cue::Fail),
        ("files/", Cue::LoseAnswer),
        ("manifest", Cue::Fail),
        ("manifest", Cue::LoseAnswer),
        ("manifest", Cue::Delay),
    ] {
        let (store, shared, files) = cued().await;
        files.seal(one_row(0, 1), 1).await.unwrap();
        store.cue("put", part, cue);
        if part == "manifest" {
            store.cue("get", "manifest", Cue::Fail);
        }
        let failed = files.seal(one_row(1, 2), 1).await.unwrap_err();
        assert!(
            matches!(failed, SeriesError::Store { .. }),
            "{part} {cue:?}: {failed}"
        );
        assert_eq!(count(&files).await, 1, "{part} {cue:?}");
        store.calm();
        let arrived = store.arrive().await;
        assert!(arrived.iter().all(Result::is_ok));
        files.seal(one_row(1, 2), 1).await.unwrap();
        assert_eq!(count(&files).await, 2, "{part} {cue:?}");
        assert_eq!(files.version().files().len(), 2, "{part} {cue:?}");
        let again = open(&shared).await;
        assert_eq!(count(&again).await, 2, "{part} {cue:?}");
        again
            .collect_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap();
        assert_eq!(objects(&shared).await.len(), 2, "{part} {cue:?}");
    }
}

#[tokio::test]
async fn a_late_put_of_one_who_was_replaced_changes_nothing() {
    let (store, shared, old) = cued().await;
    store.cue("put", "manifest", Cue::Delay);
    old.seal(one_row(0, 1), 1).await.unwrap_err();
    let new = open(&shared).await;
    new.seal(one_row(0, 1), 1).await.unwrap();
    let arrived = store.arrive().await;
    assert!(matches!(
        arrived[..],
        [Err(object_store::Error::Precondition { .. })]
    ));
    for _ in 0..2 {
        let refused = old.seal(one_row(3, 2), 1).await.unwrap_err();
        assert!(matches!(refused, SeriesError::AnotherWriter), "{refused}");
    }
    let refused = old
        .collect_orphans(Duration::ZERO, i64::MAX)
        .await
        .unwrap_err();
    assert!(matches!(refused, SeriesError::AnotherWriter), "{refused}");
    new.seal(one_row(1, 2), 1).await.unwrap();
    assert_eq!(count(&new).await, 2);
}

#[tokio::test]
async fn orphans_go_after_a_grace_and_what_is_being_written_stays() {
    let (store, shared, files) = cued().await;
    store.cue("put", "manifest", Cue::Fail);
    files.seal(one_row(0, 1), 1).await.unwrap_err();
    assert_eq!(
        files
            .collect_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap(),
        0,
        "it may yet be named"
    );
    let files = open(&shared).await;
    let now = crate::Clock::now(&crate::SystemClock);
    assert_eq!(
        files
            .collect_orphans(Duration::from_secs(3600), now)
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        files
            .collect_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap(),
        1
    );
    assert_eq!(objects(&shared).await.len(), 0);
}

#[tokio::test]
async fn damage_anywhere_in_a_file_is_an_error_and_never_other_rows() {
    let (_, shared, files) = cued().await;
    let points: Vec<_> = (0..9000).map(|n| (n, n as f64 / 3.0)).collect();
    files
        .seal(vec![frozen(0, 1, vec![series("a", "x", &points)])], 1)
        .await
        .unwrap();
    let path = files.version().files()[0].entry().path();
    let good = shared.get(&path).await.unwrap().bytes().await.unwrap();
    let truth = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    for at in (0..good.len()).step_by(97).chain([good.len() - 1]) {
        let mut bad = good.to_vec();
        bad[at] ^= 0x10;
        shared.put(&path, PutPayload::from(bad)).await.unwrap();
        // Its ETag is another one now; forget it, as stores without ETags do.
        let mut manifest = files.version().manifest().clone();
        manifest.files[0].e_tag = None;
        let layouts = Arc::new(LayoutCache::new(Arc::clone(&shared), budget()));
        let version = Version::new(manifest, None, &layouts);
        match read_version(&version, ("a", "x"), i64::MIN..=i64::MAX).await {
            Err(SeriesError::DamagedFile { .. }) => {}
            Ok(points) => assert_eq!(bits(&points), truth, "byte {at} is of names, and flipped"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    let replaced = read_version(&files.version(), ("a", "x"), i64::MIN..=i64::MAX).await;
    assert!(matches!(
        replaced,
        Err(SeriesError::Store { .. } | SeriesError::DamagedFile { .. })
    ));
    shared
        .put(&path, good.slice(..good.len() - 1).into())
        .await
        .unwrap();
    let short = read_version(&files.version(), ("a", "x"), i64::MIN..=i64::MAX).await;
    assert!(short.is_err());
}

#[tokio::test]
async fn a_manifest_that_is_damaged_newer_or_of_another_span_is_refused() {
    let (_, shared, files) = cued().await;
    files.seal(one_row(0, 1), 1).await.unwrap();
    let path = Path::from(manifest::PATH);
    let good = shared.get(&path).await.unwrap().bytes().await.unwrap();
    let reopen = || SealedFiles::open(Arc::clone(&shared), budget(), span(), Profile::Portable);
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 1;
        shared.put(&path, bad.into()).await.unwrap();
        let refused = reopen().await.unwrap_err();
        let typed = matches!(
            refused,
            SeriesError::DamagedFile { .. } | SeriesError::NewerFormat { .. }
        );
        assert!(typed, "byte {at}: {refused}");
    }
    let newer = [b"BYWASHTS 2 ", &good[11..]].concat();
    shared.put(&path, newer.into()).await.unwrap();
    assert!(matches!(
        reopen().await,
        Err(SeriesError::NewerFormat { format: 2 })
    ));
    shared.put(&path, good.into()).await.unwrap();
    let hour = Span::new(Duration::from_secs(3600)).unwrap();
    let other = SealedFiles::open(Arc::clone(&shared), budget(), hour, Profile::Portable).await;
    assert!(matches!(other, Err(SeriesError::OtherSpan { .. })));
    reopen().await.unwrap();
}

#[tokio::test]
async fn a_read_that_fails_is_an_error_and_the_next_one_goes_on_where_it_was() {
    let (store, _, files) = cued().await;
    for generation in 1..4 {
        let points: Vec<_> = (0..40_000).map(|n| (n * generation, n as f64)).collect();
        let rows = vec![series("a", "x", &points)];
        let sealed = files.seal(vec![frozen(0, generation as u64, rows)], generation as u64);
        sealed.await.unwrap();
    }
    let truth = bits(&rows(&files, ("a", "x"), i64::MIN..=i64::MAX).await);
    let version = files.version();
    let runs: Vec<_> = version.files().iter().map(Run::in_file).collect();
    let names = (&"a".into(), &"x".into());
    let mut merge = Merge::new(names, &runs, i64::MIN..=i64::MAX, &Arc::default());
    let (mut points, mut room, mut failures) = (Vec::new(), Vec::new(), 0);
    loop {
        // Every other request fails.
        store.calm();
        store.cue("get", "files/", Cue::Fail);
        let mut read = merge.next(&mut room).await.map(<[_]>::to_vec);
        if read.is_err() {
            failures += 1;
            read = merge.next(&mut room).await.map(<[_]>::to_vec);
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
