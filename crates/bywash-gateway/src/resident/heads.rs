//! Response heads, built once a version: their values are shared, so a response copies and
//! allocates no values.

use std::sync::Arc;

use bywash::{CacheOutcome, Engine, Reservation, ResidentObject, Share};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::slots::Slots;
use crate::limits::{MAX_KEPT_HEAD_BYTES, MAX_KEPT_HEADS_BYTES, MAX_KEPT_HEADS_MEMORY_DIVISOR};
use crate::meta::put_cache_outcome;

/// Memory of one header without the bytes of its texts: its entry, and the allocations of the
/// texts.
const HEADER_BYTES: usize = 192;

/// The headers of one version that do not depend on the request.
#[derive(Debug)]
pub(crate) struct Head {
    /// Number of the version with these attributes.
    id: u64,
    with_digests: bool,
    headers: Box<[(HeaderName, HeaderValue)]>,
}

impl Head {
    /// Builds the head of a hit from the headers of a version.
    fn new(id: u64, with_digests: bool, mut map: HeaderMap) -> Self {
        put_cache_outcome(&mut map, CacheOutcome::Hit);
        let mut headers = Vec::with_capacity(map.len());
        for (name, value) in &map {
            // The first clone of a value allocates, and its clones none.
            headers.push((name.clone(), value.clone()));
        }
        Self {
            id,
            with_digests,
            headers: headers.into(),
        }
    }

    /// Adds the headers to a response that has none of these.
    pub(super) fn put(&self, response: &mut HeaderMap) {
        for (name, value) in &self.headers {
            // A header may have several values.
            response.append(name.clone(), value.clone());
        }
    }

    /// The first value of a header.
    pub(crate) fn value(&self, name: &HeaderName) -> Option<&HeaderValue> {
        let mut headers = self.headers.iter();
        headers.find_map(|(found, value)| (found == name).then_some(value))
    }

    fn bytes(&self) -> usize {
        let text = |(name, value): &(HeaderName, HeaderValue)| {
            HEADER_BYTES + name.as_str().len() + value.len()
        };
        self.headers.iter().map(text).sum()
    }
}

/// The heads of versions that were served lately, in memory that is charged at the start.
#[derive(Debug)]
pub(super) struct Heads {
    slots: Slots<Head>,
    _charge: Option<Reservation>,
}

impl Heads {
    /// A cache within the memory of `engine`; without memory it keeps nothing.
    pub(super) fn new(engine: &Engine) -> Self {
        let share = engine.budget().limit() / MAX_KEPT_HEADS_MEMORY_DIVISOR;
        let bytes = share.min(MAX_KEPT_HEADS_BYTES);
        let charge = engine.try_reserve(Share::Download, bytes);
        let bytes = charge.as_ref().map_or(0, Reservation::bytes);
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / MAX_KEPT_HEAD_BYTES;
        Self {
            slots: Slots::new(count),
            _charge: charge,
        }
    }

    /// The head of a version, with digests or without; `headers` builds it if it is not kept.
    pub(super) fn get(
        &self,
        object: &ResidentObject,
        with_digests: bool,
        headers: impl FnOnce() -> HeaderMap,
    ) -> Arc<Head> {
        let number = object.headers_id();
        let kept = self.slots.get(number);
        let is_wanted = |head: &Arc<Head>| head.id == number && head.with_digests == with_digests;
        if let Some(head) = kept.filter(is_wanted) {
            return head;
        }
        let head = Arc::new(Head::new(number, with_digests, headers()));
        if head.bytes() <= MAX_KEPT_HEAD_BYTES {
            self.slots.put(number, Arc::clone(&head));
        }
        head
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use bywash::Consistency;
    use bywash::origin::memory::MemoryStore;
    use object_store::path::Path;
    use object_store::{Attribute, Attributes, ObjectStore, ObjectStoreExt};

    use super::*;
    use crate::meta::version_headers;

    async fn resident(engine: &Engine, key: &str, attributes: Attributes) -> ResidentObject {
        let bucket = engine.bucket("data").unwrap_or_else(|| {
            let store = Arc::new(MemoryStore::new());
            engine.mount("data", store, Consistency::Immutable).unwrap()
        });
        let (path, options) = (Path::from(key), attributes.into());
        bucket.put_opts(&path, "x".into(), options).await.unwrap();
        bucket.head(&path).await.unwrap();
        bucket.resident(key).unwrap()
    }

    fn get(heads: &Heads, object: &ResidentObject) -> Arc<Head> {
        heads.get(object, false, || {
            let (meta, attributes) = (object.meta(), object.attributes());
            version_headers(meta, attributes, None, 0, false)
        })
    }

    fn metadata(bytes: usize) -> Attributes {
        let value = "v".repeat(bytes);
        Attributes::from_iter([(Attribute::Metadata("name".into()), value)])
    }

    #[tokio::test]
    async fn few_heads_are_kept_and_no_long_ones() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let heads = Heads::new(&engine);
        let is_kept = |object: &ResidentObject| {
            let [one, two] = [(); 2].map(|()| get(&heads, object));
            Arc::ptr_eq(&one, &two)
        };
        let slots = (16 << 20) / MAX_KEPT_HEADS_MEMORY_DIVISOR as usize / MAX_KEPT_HEAD_BYTES;
        let mut objects = Vec::new();
        for number in 0..8 * slots {
            let object = resident(&engine, &number.to_string(), Attributes::new()).await;
            assert!(is_kept(&object));
            objects.push((get(&heads, &object), object));
        }
        let same =
            |(head, object): &(Arc<Head>, ResidentObject)| Arc::ptr_eq(head, &get(&heads, object));
        assert!(objects.iter().rev().filter(|pair| same(pair)).count() <= slots);
        let long = resident(&engine, "long", metadata(MAX_KEPT_HEAD_BYTES)).await;
        assert!(!is_kept(&long));
    }

    #[tokio::test]
    async fn other_attributes_of_a_version_have_another_head() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let heads = Heads::new(&engine);
        for value in ["a", "b"] {
            let attributes = Attributes::from_iter([(Attribute::ContentType, value)]);
            let object = resident(&engine, "key", attributes).await;
            let mut map = HeaderMap::new();
            get(&heads, &object).put(&mut map);
            assert_eq!(map["content-type"], value);
            assert_eq!(map["x-bywash-cache"], "hit");
        }
    }
}
