use std::sync::Arc;

use async_trait::async_trait;
use chrono::DateTime;
use futures::{StreamExt, stream};
use object_store::ListResult;
use object_store::list::PaginatedListResult;
use object_store::memory::InMemory;

use object_store::{Error, ObjectMeta};

use super::*;
use crate::page::of_stream;

/// A store that may ignore offsets: a token is the number of keys before the page.
struct Store {
    /// In the order in which they are listed.
    keys: Vec<&'static str>,
    heeds_offset: bool,
    /// Maximum keys on a page; every second page is empty.
    page: usize,
}

#[async_trait]
impl PaginatedListStore for Store {
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let prefix = prefix.unwrap_or_default();
        let offset = options.offset.filter(|_| self.heeds_offset);
        let keys = self.keys.iter().filter(|key| {
            key.starts_with(prefix) && offset.as_deref().is_none_or(|offset| **key > offset)
        });
        let (empty, before) = match options.page_token {
            None => (true, 0),
            Some(token) => (token.starts_with('e'), token[1..].parse().unwrap()),
        };
        let max = if empty {
            0
        } else {
            self.page.min(options.max_keys.unwrap())
        };
        let mut keys = keys.skip(before);
        let objects: Vec<_> = keys.by_ref().take(max).map(|key| object(key)).collect();
        let next = before + objects.len();
        let kind = if empty { 'k' } else { 'e' };
        Ok(PaginatedListResult {
            page_token: keys.next().map(|_| format!("{kind}{next}")),
            result: ListResult {
                objects,
                common_prefixes: Vec::new(),
                extensions: Default::default(),
            },
        })
    }
}

fn object(key: &str) -> ObjectMeta {
    ObjectMeta {
        location: Path::from(key),
        last_modified: DateTime::UNIX_EPOCH,
        size: 1,
        e_tag: None,
        version: None,
    }
}

/// Returns all keys below `prefix`, page after page.
async fn walk(cloud: &Cloud<()>, store: &Store, prefix: &str, max: usize) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = cloud.page_of(store, prefix, after.as_deref(), max).await;
        let page = page.unwrap();
        assert!(page.objects.len() <= max);
        assert!(!page.more || !page.objects.is_empty());
        found.extend(page.objects.iter().map(|meta| meta.location.to_string()));
        if !page.more {
            return found;
        }
        after = page.objects.last().map(|meta| meta.location.to_string());
    }
}

#[tokio::test]
async fn stores_that_ignore_offsets_or_send_empty_pages_list_each_key_once() {
    let ours = Cloud::new(
        "fake://bucket",
        "https://fake".to_owned(),
        Arc::new(InMemory::new()),
        &Path::from("p"),
        (),
    );
    // In addition to ours: our folder's own marker, and keys with the same beginning.
    let keys = ["o", "p/", "p/a", "p/b!", "p/b/c", "p/b/d", "p/c", "p2/a"];
    for (heeds_offset, page, max) in [(true, 2, 2), (false, 2, 2), (false, 3, 1), (false, 1, 9)] {
        let store = Store {
            keys: keys.into(),
            heeds_offset,
            page,
        };
        let case = format!("{heeds_offset} {page} {max}");
        let all = walk(&ours, &store, "", max).await;
        assert_eq!(all, ["a", "b!", "b/c", "b/d", "c"], "{case}");
        let below = walk(&ours, &store, "b/", max).await;
        assert_eq!(below, ["b/c", "b/d"], "{case}");
        let within = walk(&ours, &store, "b", max).await;
        assert_eq!(within, ["b!", "b/c", "b/d"], "{case}");
        assert_eq!(walk(&ours, &store, "x", max).await, [""; 0], "{case}");
    }
}

#[tokio::test]
async fn unordered_listing_is_rejected_and_a_folder_marker_is_not() {
    let ours = Cloud::new(
        "fake://bucket",
        "https://fake".to_owned(),
        Arc::new(InMemory::new()),
        &Path::default(),
        (),
    );
    let list = async |keys: &[&'static str], page| {
        let store = Store {
            keys: keys.into(),
            heeds_offset: false,
            page,
        };
        let paged = ours.page_of(&store, "", None, 9).await;
        let stream = stream::iter(keys.iter().map(|key| Ok(object(key))).collect::<Vec<_>>());
        let streamed = of_stream(|_, _| stream.boxed(), "", 9).await;
        [paged, streamed]
    };
    for listed in list(&["a", "c", "b", "d"], 9).await {
        let error = listed.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }), "{error:?}");
        assert!(error.to_string().contains("lists b after c"), "{error}");
    }
    // `b/` is returned as `b`.
    for listed in list(&["a", "b!", "b/", "b/c"], 9).await {
        let listed = listed.unwrap();
        assert_eq!((listed.objects.len(), listed.more), (4, false));
    }
}
