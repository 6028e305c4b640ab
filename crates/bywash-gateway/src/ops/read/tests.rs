use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use futures::StreamExt;
use object_store::PutPayload;

use super::*;
use crate::uploads::Uploads;

/// Several blocks of the default size, the last one not full.
const LEN: usize = (5 << 20) + 77;

fn addresses(pieces: &[Bytes]) -> Vec<(*const u8, usize)> {
    let address = |piece: &Bytes| (piece.as_ptr(), piece.len());
    pieces.iter().map(address).collect()
}

/// Returns the pieces of an object as the engine returns them: those of a resident block are in its frame.
async fn engine_pieces(bucket: &Bucket, path: &Path) -> Vec<Bytes> {
    let body = bucket.get(path).await.unwrap().into_stream();
    body.map(Result::unwrap).collect().await
}

#[tokio::test]
async fn body_is_served_without_a_copy() {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let store = Arc::new(MemoryStore::new());
    let bucket = engine.mount("data", store, Consistency::default()).unwrap();
    let path = Path::from("a");
    bucket
        .put(&path, PutPayload::from(vec![7; LEN]))
        .await
        .unwrap();
    let loaded = engine_pieces(&bucket, &path).await;
    // Different pins of the same blocks have equal addresses if the engine copies nothing.
    let resident = engine_pieces(&bucket, &path).await;
    drop(loaded);
    assert_eq!(resident.iter().map(Bytes::len).sum::<usize>(), LEN);
    assert_eq!(
        addresses(&resident),
        addresses(&engine_pieces(&bucket, &path).await)
    );

    let gateway = Gateway {
        engine: engine.clone(),
        region: "here".into(),
        uploads: Arc::new(Uploads::new(1, engine)),
    };
    let input = GetObjectInput::builder()
        .bucket("data".to_owned())
        .key("a".to_owned())
        .build()
        .unwrap();
    let request = S3Request {
        input,
        method: http::Method::GET,
        uri: http::Uri::from_static("/data/a"),
        headers: HeaderMap::new(),
        extensions: http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    };
    let body = get(&gateway, request).await.unwrap().output.body.unwrap();
    let sent: Vec<Bytes> = body.map(Result::unwrap).collect().await;
    assert_eq!(addresses(&sent), addresses(&resident));
}
