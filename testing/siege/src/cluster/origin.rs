//! The origin of a soak: a store of S3's protocol whose writes go into the oracle, each at the moment at which it is visible.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use bywash_sim::server::objects::StoredObject;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol};
use bywash_sim::{Oracle, Version};
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};
use parking_lot::RwLock;

/// Bucket of the nodes and of the origin.
pub(crate) const BUCKET: &str = "data";

/// A strongly consistent store. The oracle learns of each version while no request is served beside it.
pub(crate) struct JudgedStore {
    s3: Arc<S3>,
    oracle: Arc<Oracle>,
    /// Held alone by writes. Reads share it.
    order: RwLock<()>,
    reads: AtomicU64,
    heads: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
}

/// Requests that the origin served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OriginCounts {
    pub(crate) gets: u64,
    pub(crate) heads: u64,
    pub(crate) writes: u64,
    /// Bytes of objects in responses.
    pub(crate) bytes: u64,
}

impl JudgedStore {
    /// Creates an empty store.
    #[must_use]
    pub(crate) fn new(oracle: &Arc<Oracle>) -> Self {
        Self {
            s3: S3::plain(),
            oracle: Arc::clone(oracle),
            order: RwLock::new(()),
            reads: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Changes an object behind the cluster's back.
    pub(crate) fn put_behind(&self, key: &str, bytes: Bytes) {
        let _alone = self.order.write();
        let headers = BTreeMap::new();
        let objects = self.s3.objects();
        objects.put(BUCKET, key, bytes, headers, |_| true);
        self.commit(key);
    }

    /// Returns the requests so far.
    pub(crate) fn counts(&self) -> OriginCounts {
        // Relaxed: plain counters.
        OriginCounts {
            gets: self.reads.load(Relaxed),
            heads: self.heads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    fn commit(&self, key: &str) {
        let path = Path::from(key);
        let stored = self.s3.objects().get(BUCKET, key);
        let version = stored.map(|stored| version(&path, stored));
        self.oracle.commit(&path, version);
    }

    /// DeleteObjects, by which clients of S3 delete one object too.
    fn delete_all(&self, request: &HttpRequest) -> HttpResponse {
        if !request.complete {
            return HttpResponse::status(400);
        }
        let _alone = self.order.write();
        let mut deleted = String::new();
        for key in keys(&String::from_utf8_lossy(&request.body)) {
            if self.s3.objects().delete(BUCKET, key) {
                self.commit(key);
            }
            deleted.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
        }
        let text = format!("<DeleteResult>{deleted}</DeleteResult>");
        let response = HttpResponse::status(200).with("content-type", "application/xml");
        response.body(text)
    }

    fn read(&self, request: &HttpRequest) -> HttpResponse {
        let _shared = self.order.read();
        let response = self.s3.respond(request);
        // Relaxed: plain counters.
        if request.method == "HEAD" {
            self.heads.fetch_add(1, Relaxed);
        } else {
            self.reads.fetch_add(1, Relaxed);
            self.bytes.fetch_add(response.body.len() as u64, Relaxed);
        }
        response
    }
}

/// Returns the keys of a request to delete. The soak's keys need no escapes.
fn keys(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split("<Key>").skip(1);
    pieces.filter_map(|piece| Some(piece.split_once("</Key>")?.0))
}

/// The time of a version that has none for the oracle: whole seconds of HTTP are no identity.
fn no_time() -> DateTime<Utc> {
    DateTime::<Utc>::UNIX_EPOCH
}

/// Returns the metadata of an object as the oracle compares it.
#[must_use]
pub(crate) fn meta(path: &Path, size: u64, e_tag: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        location: path.clone(),
        last_modified: no_time(),
        size,
        e_tag: e_tag.map(str::to_owned),
        version: None,
    }
}

fn version(path: &Path, stored: StoredObject) -> Version {
    let size = stored.bytes.len() as u64;
    Version {
        number: stored.generation,
        meta: meta(path, size, Some(&stored.e_tag)),
        body: stored.bytes,
        attributes: Attributes::new(),
    }
}

impl Protocol for JudgedStore {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if matches!(request.method.as_str(), "GET" | "HEAD") {
            return self.read(request);
        }
        // Relaxed: a plain counter.
        self.writes.fetch_add(1, Relaxed);
        if request.method == "POST" && request.query("delete").is_some() {
            return self.delete_all(request);
        }
        let (bucket, key) = request.bucket_and_key();
        let _alone = self.order.write();
        let generation = || {
            let stored = self.s3.objects().get(&bucket, &key);
            stored.map(|stored| stored.generation)
        };
        let before = generation();
        let response = self.s3.respond(request);
        if generation() != before {
            self.commit(&key);
        }
        match (request.method.as_str(), response.status.as_u16()) {
            // As S3 responds to the deletion of what is absent.
            ("DELETE", 404) => HttpResponse::status(204),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn keys_of_a_deletion_are_found() {
        let text = "<Delete><Object><Key>a</Key></Object><Object><Key>b/c</Key></Object></Delete>";
        assert_eq!(keys(text).collect::<Vec<_>>(), ["a", "b/c"]);
    }

    #[test]
    fn changes_behind_the_cluster_are_the_current_version_of_the_oracle() {
        let oracle = Arc::new(Oracle::default());
        let store = JudgedStore::new(&oracle);
        store.put_behind("a", Bytes::from_static(b"one"));
        store.put_behind("a", Bytes::from_static(b"two"));
        let current = oracle.current(&Path::from("a")).unwrap();
        assert_eq!(current.body, Bytes::from_static(b"two"));
        assert_eq!(oracle.versions(&Path::from("a")), 2);
    }
}
