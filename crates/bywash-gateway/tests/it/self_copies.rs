//! Copies of an object onto itself during writes: acknowledged writes stay.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_gateway::{GcsConfig, S3Config};
use bywash_sim::WrappedMemory;
use bywash_support::hooked_store::{HookedStore, ObservedRequest, RequestHook};
use object_store::path::Path;
use object_store::{Attribute, Error, ObjectStore, ObjectStoreExt, PutMode};
use tokio::sync::watch;

use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;
use crate::server::Server;

/// Holds back the first write of a copy, which has the metadata `a`.
#[derive(Debug)]
struct HeldWrite {
    /// Whether the store has conditional writes.
    compares: bool,
    held: watch::Sender<bool>,
    released: watch::Sender<bool>,
}

#[async_trait]
impl RequestHook for HeldWrite {
    async fn before(&self, request: &ObservedRequest) -> object_store::Result<()> {
        let Some((_, options)) = &request.put else {
            return Ok(());
        };
        if !self.compares && matches!(options.mode, PutMode::Update(_)) {
            return Err(Error::NotImplemented {
                operation: "conditional writes".to_owned(),
                implementer: "this store".to_owned(),
            });
        }
        let mark = Attribute::Metadata("a".into());
        if self.compares && options.attributes.get(&mark).is_some() {
            self.held.send_replace(true);
            let mut released = self.released.subscribe();
            let _ = released.wait_for(|released| *released).await;
        }
        Ok(())
    }
}

struct Endpoints {
    gcs: GcsServer,
    s3: Server,
    hook: Arc<HeldWrite>,
    /// The store behind the endpoints.
    memory: MemoryStore,
}

async fn endpoints(compares: bool) -> Endpoints {
    let memory = MemoryStore::new();
    let hook = Arc::new(HeldWrite {
        compares,
        held: watch::Sender::new(false),
        released: watch::Sender::new(false),
    });
    let objects: Arc<dyn ObjectStore> = Arc::new(memory.clone());
    let hooked = HookedStore::new(objects, Arc::<HeldWrite>::clone(&hook));
    let origin = Arc::new(WrappedMemory::new(Arc::new(hooked), memory.clone()));
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let consistency = Consistency::Revalidate(Duration::from_secs(3600));
    engine.mount("bkt", origin, consistency).unwrap();
    let root = tempfile::tempdir().unwrap();
    let gcs = GcsServer::start_over(engine.clone(), root, GcsConfig::anonymous("")).await;
    let root = tempfile::tempdir().unwrap();
    let s3 = Server::start_with(engine, root, S3Config::anonymous()).await;
    Endpoints {
        gcs,
        s3,
        hook,
        memory,
    }
}

/// Ways to copy `key` onto itself.
#[derive(Debug, Clone, Copy)]
enum Copying {
    CopyObject,
    Rewrite,
    Copy,
    Patch,
    /// As clients append.
    Compose,
}

const ALL: [Copying; 5] = [
    Copying::CopyObject,
    Copying::Rewrite,
    Copying::Copy,
    Copying::Patch,
    Copying::Compose,
];

impl Endpoints {
    async fn put(&self, key: &str, body: &[u8]) {
        self.s3
            .put(&format!("/bkt/{key}"), &[], body)
            .await
            .expect(200);
    }

    async fn get(&self, key: &str) -> HttpResponse {
        self.s3.get(&format!("/bkt/{key}"), &[]).await.expect(200)
    }

    async fn copy(&self, copying: Copying) -> HttpResponse {
        let object = "/storage/v1/b/bkt/o/key";
        let metadata = br#"{"metadata":{"a":"1"}}"#;
        match copying {
            Copying::CopyObject => {
                let headers = [
                    ("x-amz-copy-source", "/bkt/key"),
                    ("x-amz-metadata-directive", "REPLACE"),
                    ("x-amz-meta-a", "1"),
                ];
                self.s3.put("/bkt/key", &headers, b"").await
            }
            Copying::Rewrite => {
                let target = format!("{object}/rewriteTo/b/bkt/o/key");
                self.gcs.post(&target, &[], metadata).await
            }
            Copying::Copy => {
                let target = format!("{object}/copyTo/b/bkt/o/key");
                self.gcs.post(&target, &[], metadata).await
            }
            Copying::Patch => self.gcs.send("PATCH", object, &[], metadata).await,
            Copying::Compose => {
                let document = br#"{"sourceObjects":[{"name":"key"},{"name":"tail"}],"destination":{"metadata":{"a":"1"}}}"#;
                self.gcs
                    .post(&format!("{object}/compose"), &[], document)
                    .await
            }
        }
    }
}

#[tokio::test]
async fn newer_write_is_not_replaced_by_what_a_copy_read_before_it() {
    for copying in ALL {
        let endpoints = endpoints(true).await;
        endpoints.put("tail", b"+").await;
        endpoints.put("key", b"old").await;
        let writer = async {
            let mut held = endpoints.hook.held.subscribe();
            held.wait_for(|held| *held).await.unwrap();
            endpoints.put("key", b"newer").await;
            endpoints.hook.released.send_replace(true);
        };
        let (copied, ()) = tokio::join!(endpoints.copy(copying), writer);
        copied.expect(200);
        let read = endpoints.get("key").await;
        let expected: &[u8] = match copying {
            Copying::Compose => b"newer+",
            _ => b"newer",
        };
        assert_eq!(read.body, expected, "{copying:?}");
        assert_eq!(read.header("x-amz-meta-a"), Some("1"), "{copying:?}");
    }
}

#[tokio::test]
async fn copy_at_a_store_without_conditional_writes_looks_at_the_version_last() {
    for copying in [Copying::CopyObject, Copying::Rewrite, Copying::Compose] {
        let endpoints = endpoints(false).await;
        endpoints.put("tail", b"+").await;
        endpoints.put("key", b"old").await;
        // Known here, and in memory.
        endpoints.get("key").await;
        let newer = Path::from("key");
        endpoints.memory.put(&newer, "newer".into()).await.unwrap();
        endpoints.copy(copying).await.expect(200);
        let read = endpoints.get("key").await;
        let expected: &[u8] = match copying {
            Copying::Compose => b"newer+",
            _ => b"newer",
        };
        assert_eq!(read.body, expected, "{copying:?}");
        assert_eq!(read.header("x-amz-meta-a"), Some("1"), "{copying:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_changes_of_attributes_in_folders_and_memory() {
    let gcs = GcsServer::start().await;
    let s3 = Server::start_beside(&gcs.engine).await;
    for bucket in crate::server::BUCKETS {
        let (object, key) = (
            format!("/storage/v1/b/{bucket}/o/key"),
            format!("/{bucket}/key"),
        );
        s3.put(&key, &[], b"0").await.expect(200);
        let writer = async {
            for number in 1..=40 {
                let body = number.to_string();
                s3.put(&key, &[], body.as_bytes()).await.expect(200);
                let read = s3.get(&key, &[]).await.expect(200);
                assert_eq!(read.text(), body, "{bucket}");
            }
        };
        let changes = async {
            let headers = [
                ("x-amz-copy-source", key.as_str()),
                ("x-amz-metadata-directive", "REPLACE"),
            ];
            let tags =
                b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
            for _ in 0..10 {
                let changed = [
                    s3.put(&key, &headers, b"").await,
                    gcs.send("PATCH", &object, &[], br#"{"metadata":{"b":"1"}}"#)
                        .await,
                    gcs.post(&format!("{object}/rewriteTo/b/{bucket}/o/key"), &[], b"{}")
                        .await,
                    s3.put(&format!("{key}?tagging"), &[], tags).await,
                ];
                for changed in changed {
                    let is_known = [200, 409, 412, 503].contains(&changed.status);
                    assert!(is_known, "{bucket}: {}", changed.text());
                }
            }
        };
        tokio::join!(writer, changes);
        assert_eq!(s3.get(&key, &[]).await.expect(200).text(), "40");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_and_acls_without_conditions_are_set_beside_writers() {
    let s3 = Server::anonymous().await;
    for bucket in crate::server::BUCKETS {
        let key = format!("/{bucket}/key");
        s3.put(&key, &[], b"0").await.expect(200);
        let writer = async {
            for number in 1..=60 {
                let body = number.to_string();
                s3.put(&key, &[], body.as_bytes()).await.expect(200);
            }
        };
        let tag = async || {
            let tags =
                b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
            let target = format!("{key}?tagging");
            for _ in 0..20 {
                s3.put(&target, &[], tags).await.expect(200);
                s3.send("DELETE", &target, &[], b"").await.expect(204);
            }
        };
        let publish = async {
            let target = format!("{key}?acl");
            for _ in 0..20 {
                for acl in ["public-read", "private"] {
                    let headers = [("x-amz-acl", acl)];
                    s3.put(&target, &headers, b"").await.expect(200);
                }
            }
        };
        tokio::join!(writer, tag(), tag(), publish);
        assert_eq!(s3.get(&key, &[]).await.expect(200).text(), "60", "{bucket}");
    }
}
