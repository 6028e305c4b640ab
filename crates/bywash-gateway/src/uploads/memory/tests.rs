use super::*;
use crate::uploads::Uploads;
use crate::uploads::tests::{name, part, upload};
use s3s::S3ErrorCode;

fn doing(name: &UploadName) -> OperationContext<'_> {
    OperationContext::new("test", &name.bucket, &name.key)
}

/// An upload of `parts` parts, as an earlier server may leave it.
fn with_parts(parts: u16) -> Upload {
    let mut upload = upload(None);
    upload.parts = Arc::new((1..=parts).map(|number| (number, part(1))).collect());
    upload
}

fn engine(memory: u64) -> Engine {
    Engine::builder().memory(memory).build().unwrap()
}

#[tokio::test]
async fn parts_past_the_memory_of_part_lists_get_slow_down_until_an_upload_ends() {
    let engine = engine(16 << 20);
    let uploads = Arc::new(Uploads::new(100, engine.clone()));
    let limit = uploads.memory.limit();
    assert_eq!(limit, 4 << 20);
    let mut opened = Vec::new();
    let refused = 'full: loop {
        let next = name("key", &opened.len().to_string());
        let hold = uploads.admit(doing(&next)).await.unwrap();
        uploads
            .begin(next.clone(), upload(None), hold)
            .await
            .unwrap();
        opened.push(next.clone());
        for number in 1..=10_000 {
            let hold = match uploads.admit_part(&next, doing(&next)).await {
                Ok(hold) => hold,
                Err(error) => break 'full error,
            };
            uploads
                .add_part(&next, number, part(1), hold)
                .await
                .unwrap();
            let (charges, charged) = uploads.memory.held();
            assert!(
                charges <= charged && charges <= limit,
                "{charges} of {charged}, max {limit}"
            );
        }
    };
    assert_eq!(*refused.code(), S3ErrorCode::SlowDown);
    assert!(uploads.memory.held().0 + PART_BYTES > limit);
    assert!(engine.budget().held(Share::Upload) >= limit - PART_BYTES);
    let refused = uploads.admit(doing(&opened[0])).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::SlowDown);
    // Replacing a part takes no more memory.
    let held = uploads.memory.held().0;
    let first = opened.remove(0);
    uploads.remove(&first).await.unwrap();
    assert!(uploads.memory.held().0 < held);
    let last = opened.last().unwrap_or(&first);
    uploads
        .admit_part(last, doing(last))
        .await
        .map(drop)
        .unwrap();
    for name in &opened {
        uploads.remove(name).await.unwrap();
    }
    assert_eq!(uploads.memory.held(), (0, 0));
    assert_eq!(engine.budget().held(Share::Upload), 0);
}

#[tokio::test]
async fn replaced_and_cancelled_parts_take_no_more_memory() {
    let uploads = Arc::new(Uploads::new(100, engine(16 << 20)));
    let name = name("key", "1");
    let hold = uploads.admit(doing(&name)).await.unwrap();
    uploads
        .begin(name.clone(), upload(None), hold)
        .await
        .unwrap();
    let bare = uploads.memory.held().0;
    for size in [1, 2, 3] {
        let hold = uploads.admit_part(&name, doing(&name)).await.unwrap();
        uploads.add_part(&name, 7, part(size), hold).await.unwrap();
        assert_eq!(uploads.memory.held().0, bare + part_bytes(&part(size)));
    }
    drop(uploads.admit_part(&name, doing(&name)).await.unwrap());
    let kept = bare + part_bytes(&part(3));
    assert_eq!(uploads.memory.held().0, kept);
    // An ETag longer than charged for is charged before it is stored.
    let mut long = part(2);
    long.e_tag = "e".repeat(10_000);
    let hold = uploads.admit_part(&name, doing(&name)).await.unwrap();
    uploads
        .add_part(&name, 8, long.clone(), hold)
        .await
        .unwrap();
    assert_eq!(uploads.memory.held().0, kept + part_bytes(&long));
}

#[tokio::test]
async fn inherited_lists_above_the_memory_are_loaded_and_block_new_ones() {
    let home = tempfile::tempdir().unwrap();
    let before = Arc::new(Uploads::persistent(100, home.path(), engine(256 << 20)).unwrap());
    let names: Vec<_> = (0..4).map(|id| name("key", &id.to_string())).collect();
    for name in &names {
        let hold = before.admit(doing(name)).await.unwrap();
        before
            .begin(name.clone(), with_parts(9_000), hold)
            .await
            .unwrap();
    }
    let bytes = before.memory.held().0;
    drop(before);

    let small = engine(16 << 20);
    let uploads = Arc::new(Uploads::persistent(100, home.path(), small.clone()).unwrap());
    assert_eq!(uploads.memory.held().0, bytes);
    assert!(bytes > uploads.memory.limit());
    assert_eq!(small.budget().held(Share::Upload), bytes.min(8 << 20));
    let refused = uploads.admit_part(&names[0], doing(&names[0])).await;
    assert_eq!(*refused.unwrap_err().code(), S3ErrorCode::SlowDown);
    // Loaded uploads can be completed and aborted, which frees memory.
    let (completion, upload) = uploads.complete(&names[0]).unwrap();
    assert_eq!(upload.parts.len(), 9_000);
    completion.begin("parts".to_owned()).await.unwrap();
    completion.done().await.unwrap();
    for name in &names[1..3] {
        uploads.remove(name).await.unwrap();
    }
    let last = &names[3];
    uploads
        .admit_part(last, doing(last))
        .await
        .map(drop)
        .unwrap();
    uploads.remove(last).await.unwrap();
    assert_eq!(small.budget().held(Share::Upload), 0);
}

#[tokio::test]
async fn concurrent_starts_respect_the_upload_limit() {
    let uploads = Arc::new(Uploads::new(2, engine(16 << 20)));
    let names: Vec<_> = (0..3).map(|id| name("key", &id.to_string())).collect();
    let first = uploads.admit(doing(&names[0])).await.unwrap();
    let second = uploads.admit(doing(&names[1])).await.unwrap();
    let refused = uploads.admit(doing(&names[2])).await.unwrap_err();
    assert_eq!(*refused.code(), S3ErrorCode::SlowDown);
    uploads
        .begin(names[0].clone(), upload(None), first)
        .await
        .unwrap();
    assert!(uploads.admit(doing(&names[2])).await.is_err());
    // An upload that does not start releases its slot.
    drop(second);
    let third = uploads.admit(doing(&names[2])).await.unwrap();
    uploads
        .begin(names[2].clone(), upload(None), third)
        .await
        .unwrap();
    assert!(uploads.admit(doing(&names[1])).await.is_err());
}
