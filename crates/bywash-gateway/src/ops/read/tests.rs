use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{CacheOutcome, Consistency, Engine};
use futures::StreamExt;
use object_store::PutPayload;

use super::*;
use crate::bucket_rules::AllRules;
use crate::config::ETagStyle;
use crate::record::RequestIds;
use crate::uploads::Uploads;

/// Several blocks of the default size, the last one not full.
const LEN: usize = (5 << 20) + 77;

fn addresses(pieces: &[Bytes]) -> Vec<(*const u8, usize)> {
    let address = |piece: &Bytes| (piece.as_ptr(), piece.len());
    pieces.iter().map(address).collect()
}

/// The pieces of an object as the engine returns them: pieces of a resident block are in its frame.
async fn engine_pieces(bucket: &Bucket, path: &Path) -> Vec<Bytes> {
    let body = bucket.get(path).await.unwrap().into_stream();
    body.map(Result::unwrap).collect().await
}

async fn gateway_with_object() -> (Gateway, Bucket, Path) {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let store = Arc::new(MemoryStore::new());
    let bucket = engine.mount("data", store, Consistency::default()).unwrap();
    let path = Path::from("a");
    bucket
        .put(&path, PutPayload::from(vec![7; LEN]))
        .await
        .unwrap();
    let gateway = Gateway {
        engine: engine.clone(),
        region: "here".into(),
        uploads: Arc::new(Uploads::new(1, engine.clone())),
        rules: Arc::new(AllRules::open(engine, None, Default::default()).unwrap()),
        etag: ETagStyle::Fast,
        tls: false,
    };
    (gateway, bucket, path)
}

fn request(context: Option<&Arc<RequestContext>>) -> S3Request<GetObjectInput> {
    let input = GetObjectInput::builder()
        .bucket("data".to_owned())
        .key("a".to_owned())
        .build()
        .unwrap();
    let mut extensions = http::Extensions::new();
    if let Some(context) = context {
        extensions.insert(Arc::clone(context));
    }
    S3Request {
        input,
        method: http::Method::GET,
        uri: http::Uri::from_static("/data/a"),
        headers: HeaderMap::new(),
        extensions,
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

#[tokio::test]
async fn cache_outcome_of_a_read_is_in_the_context_and_in_a_header() {
    let (gateway, ..) = gateway_with_object().await;
    for expected in [CacheOutcome::Miss, CacheOutcome::Hit] {
        let context = Arc::new(RequestContext::new(RequestIds::new().next(), None));
        let response = get(&gateway, request(Some(&context))).await.unwrap();
        assert_eq!(context.cache(), Some(expected));
        assert_eq!(response.headers["x-bywash-cache"], expected.name());
        let body: Vec<_> = response.output.body.unwrap().collect().await;
        assert!(body.iter().all(Result::is_ok));
    }
}

#[tokio::test]
async fn body_is_served_without_a_copy() {
    let (gateway, bucket, path) = gateway_with_object().await;
    let loaded = engine_pieces(&bucket, &path).await;
    // Different pins of the same blocks have equal addresses if the engine copies nothing.
    let resident = engine_pieces(&bucket, &path).await;
    drop(loaded);
    assert_eq!(resident.iter().map(Bytes::len).sum::<usize>(), LEN);
    assert_eq!(
        addresses(&resident),
        addresses(&engine_pieces(&bucket, &path).await)
    );

    let body = get(&gateway, request(None))
        .await
        .unwrap()
        .output
        .body
        .unwrap();
    let sent: Vec<Bytes> = body.map(Result::unwrap).collect().await;
    assert_eq!(addresses(&sent), addresses(&resident));
}
