//! An origin with unordered listings, such as S3's directory buckets.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bywash::origin::{Capabilities, ReadOnly, Readable};
use bywash::{Consistency, Engine};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResult, ListResult, ObjectMeta, ObjectStore, Result};

/// Lists the last key first. Each listing fails after two keys.
#[derive(Debug)]
struct Backwards;

impl fmt::Display for Backwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("backwards")
    }
}

#[async_trait]
impl Readable for Backwards {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory")
    }

    fn reason(&self) -> &'static str {
        "a test lists it"
    }

    async fn get_opts(&self, path: &Path, _options: GetOptions) -> Result<GetResult> {
        let path = path.to_string();
        let source = "it only lists".into();
        Err(Error::NotFound { path, source })
    }

    fn list(
        &self,
        _prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.cloned().unwrap_or_default();
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
        Err(Error::NotImplemented {
            operation: "list with delimiter".to_owned(),
            implementer: "backwards".to_owned(),
        })
    }
}

/// Resuming after the last key would return none, and the keys not listed yet would be missing.
#[tokio::test(start_paused = true)]
async fn unordered_listing_is_not_resumed() {
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let origin = Arc::new(ReadOnly::new(Backwards));
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
