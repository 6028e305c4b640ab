//! An origin with unordered listings, such as S3's directory buckets.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bywash::origin::{Capabilities, ReadOnly};
use bywash::{Consistency, Engine, Origin};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Lists the last key first. Each listing fails after two keys.
#[derive(Debug)]
struct Backwards;

impl fmt::Display for Backwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("backwards")
    }
}

impl Origin for Backwards {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory")
    }
}

fn not_implemented() -> Error {
    Error::NotImplemented {
        operation: "anything but lists".to_owned(),
        implementer: "backwards".to_owned(),
    }
}

#[async_trait]
impl ObjectStore for Backwards {
    async fn get_opts(&self, path: &Path, _options: GetOptions) -> Result<GetResult> {
        let path = path.to_string();
        let source = "it only lists".into();
        Err(Error::NotFound { path, source })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_with_offset(prefix, &Path::default())
    }

    fn list_with_offset(
        &self,
        _prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        let keys = ["d", "c"].map(|key| {
            Ok(ObjectMeta {
                location: Path::from(key),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size: 1,
                e_tag: None,
                version: None,
            })
        });
        let store = "backwards";
        let source = "the line went dead".into();
        let keys = keys
            .into_iter()
            .chain([Err(Error::Generic { store, source })]);
        let keys = stream::iter(keys);
        keys.try_filter(move |meta| future::ready(meta.location > offset))
            .boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        Err(not_implemented())
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(not_implemented())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_implemented())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([Err(not_implemented())]).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_implemented())
    }
}

/// Resuming after the last key would return none, and the keys not listed yet would be missing.
#[tokio::test(start_paused = true)]
async fn unordered_listing_is_not_resumed() {
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let origin = Arc::new(ReadOnly::new(Arc::new(Backwards)));
    let bucket = engine.mount("odd", origin, Consistency::Immutable).unwrap();
    let mut keys = bucket.list(None);
    for key in ["d", "c"] {
        let meta = keys.try_next().await.unwrap().unwrap();
        assert_eq!(meta.location.as_ref(), key);
    }
    let error = keys.try_next().await.unwrap_err();
    assert!(error.to_string().contains("the line went dead"), "{error}");
    // By pages it is not listed at all.
    let error = bucket.list_page("", None, 9).await.unwrap_err();
    assert!(matches!(error, Error::NotSupported { .. }), "{error:?}");
}
