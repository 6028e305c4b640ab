//! Uploads of the folder store: parts in any order, restarts, bodies that fail.

use bytes::Bytes;
use bywash::origin::UploadedPart;
use bywash::origin::folder::FolderStore;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions,
};

use crate::folder_store::{files_below, key, store};

use crate::numbered_parts::NumberedParts;

fn kept() -> Attributes {
    Attributes::from_iter([(Attribute::ContentType, "text/plain")])
}

fn body(text: &'static str) -> bywash::origin::PartBody {
    stream::iter([Ok(Bytes::from_static(text.as_bytes()))]).boxed()
}

#[tokio::test]
async fn upload_survives_a_restart_and_accepts_parts_in_any_order() {
    let (dir, store) = store();
    let path = key("deep/er/up");
    let opts = PutMultipartOptions::from(kept());
    let id = store.begin_upload(&path, opts).await.unwrap();
    let p7 = NumberedParts::send_part(&store, &path, &id, 7, 4, body("tail"));
    let p7 = p7.await.unwrap();
    let first = NumberedParts::send_part(&store, &path, &id, 2, 5, body("wrong"));
    let first = first.await.unwrap();
    drop(store);

    let store = FolderStore::open(dir.path()).unwrap();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(listed, []);
    let again = NumberedParts::send_part(&store, &path, &id, 2, 5, body("head-"));
    let again = again.await.unwrap();
    let parts = |second: &str| {
        let part = |number, e_tag: &str| UploadedPart {
            number,
            e_tag: e_tag.to_owned(),
        };
        [part(2, second), part(7, &p7)]
    };
    for wrong in [first.as_str(), "unknown", "../x", ""] {
        let parts = parts(wrong);
        let refused = store.complete_parts(&path, &id, &parts, PutMode::Overwrite.into());
        let refused = refused.await;
        assert!(
            matches!(refused, Err(Error::Precondition { .. })),
            "{wrong}"
        );
    }
    let (other, parts) = (key("other"), parts(&again));
    let other = store.complete_parts(&other, &id, &parts, PutMode::Overwrite.into());
    assert!(matches!(other.await, Err(Error::NotFound { .. })));

    let completed = store.complete_parts(&path, &id, &parts, PutMode::Create.into());
    let completed = completed.await.unwrap();
    let got = store.get(&path).await.unwrap();
    assert_eq!(got.meta.e_tag, completed.e_tag);
    assert_eq!(got.attributes, kept());
    assert_eq!(got.bytes().await.unwrap(), "head-tail");
    let gone = store.abort_parts(&path, &id).await;
    assert!(matches!(gone, Err(Error::NotFound { .. })));
    assert_eq!(files_below(&dir.path().join(".bywash/uploads")).len(), 0);
    assert_eq!(files_below(&dir.path().join(".bywash/staging")).len(), 0);
}

#[tokio::test]
async fn part_with_failing_or_wrong_length_body_is_not_stored() {
    let (dir, store) = store();
    let path = key("up");
    let opts = PutMultipartOptions::default();
    let id = store.begin_upload(&path, opts).await.unwrap();
    for (length, number) in [(3, 1), (5, 1), (4, 0), (4, 10_001)] {
        let refused = NumberedParts::send_part(&store, &path, &id, number, length, body("four"));
        assert!(refused.await.is_err(), "length {length}, number {number}");
    }
    let broken = stream::iter([
        Ok(Bytes::from_static(b"fo")),
        Err(Error::Generic {
            store: "test",
            source: "the client left".into(),
        }),
    ]);
    let refused = NumberedParts::send_part(&store, &path, &id, 1, 4, broken.boxed()).await;
    assert!(refused.unwrap_err().to_string().contains("the client left"));
    let files = files_below(dir.path());
    assert_eq!(files, [format!(".bywash/uploads/{id}/manifest.json")]);

    for foreign in ["", "..", "../staging", "0", "x/y"] {
        let unknown = NumberedParts::send_part(&store, &path, foreign, 1, 4, body("four")).await;
        assert!(matches!(unknown, Err(Error::NotFound { .. })), "{foreign}");
    }
    store.abort_parts(&path, &id).await.unwrap();
    assert_eq!(files_below(dir.path()), Vec::<String>::new());
    let late = NumberedParts::send_part(&store, &path, &id, 1, 4, body("four")).await;
    assert!(matches!(late, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn dropped_multipart_writer_leaves_no_files() {
    let (dir, store) = store();
    let mut upload = store.put_multipart(&key("up")).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    drop(upload);
    assert_eq!(files_below(dir.path()), Vec::<String>::new());
}

#[tokio::test]
async fn repeated_completion_after_a_failure_never_creates_a_shorter_object() {
    let (dir, store) = store();
    let mut upload = store.put_multipart(&key("up")).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    let lost = upload.put_part("lost".into());
    drop(lost);
    for _ in 0..2 {
        assert!(upload.complete().await.is_err());
    }
    assert!(!dir.path().join("up").exists());
}
