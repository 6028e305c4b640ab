//! Conditional deletes over stores with Google's and Azure's protocol, by both endpoints: the store decides them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bywash_gateway::GcsConfig;
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::objects::Objects;
use bywash_sim::server::{Protocol, Server as Store};

use crate::cluster_uploads::{Kind, mount_store};
use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::server::Server;

const OBJECT: &str = "/storage/v1/b/cloud/o/a";

/// A store of one kind, with the bucket and key of the object `a` there.
struct Origin {
    gcs: Arc<Gcs>,
    azure: Arc<Azure>,
    kind: Kind,
    name: (&'static str, &'static str),
}

impl Origin {
    fn of(kind: Kind) -> Self {
        Self {
            gcs: Gcs::new(),
            azure: Azure::new(),
            kind,
            name: match kind {
                Kind::Azure => ("account", "data/a"),
                _ => ("data", "a"),
            },
        }
    }

    fn objects(&self) -> &Objects {
        match self.kind {
            Kind::Azure => self.azure.objects(),
            _ => self.gcs.objects(),
        }
    }

    /// Replaces the object as another program does.
    fn replace(&self, bytes: &'static [u8]) {
        let (bucket, key) = self.name;
        let put = self.objects();
        put.put(bucket, key, bytes.into(), BTreeMap::new(), |_| true);
    }

    fn exists(&self) -> bool {
        self.objects().get(self.name.0, self.name.1).is_some()
    }

    /// Starts both endpoints over the store.
    async fn serve(&self) -> (Store, GcsServer, Server) {
        let protocol: Arc<dyn Protocol> = match self.kind {
            Kind::Azure => Arc::clone(&self.azure) as _,
            _ => Arc::clone(&self.gcs) as _,
        };
        let store = Store::start(protocol).await.unwrap();
        let root = tempfile::tempdir().unwrap();
        let engine = Server::engine(64 << 20, &root);
        mount_store(&engine, self.kind, &store);
        let s3 = Server::start_beside(&engine).await;
        let gcs = GcsServer::start_over(engine, root, GcsConfig::anonymous("")).await;
        (store, gcs, s3)
    }
}

#[tokio::test]
async fn deletion_of_a_generation_is_decided_by_the_store() {
    for kind in [Kind::Gcs, Kind::Azure] {
        let origin = Origin::of(kind);
        let (_store, server, _s3) = origin.serve().await;
        let generation = async || {
            let found = document(&server.get(OBJECT).await.expect(200));
            found["generation"].as_str().unwrap().to_owned()
        };
        let delete = |query: String| server.send_owned("DELETE", format!("{OBJECT}?{query}"), b"");
        for name in ["generation", "ifGenerationMatch", "ifMetagenerationMatch"] {
            let query = |generation: &str| match name {
                "ifMetagenerationMatch" => format!("{name}=1"),
                name => format!("{name}={generation}"),
            };
            server.put_object("cloud", "a", b"known").await;
            let known = query(&generation().await);
            refused(
                delete("ifGenerationMatch=1".to_owned()).await,
                412,
                "conditionNotMet",
            );
            origin.replace(b"other");
            let late = delete(known).await;
            match name {
                // It holds for the other version too.
                "ifMetagenerationMatch" => refused(late, 503, "backendError"),
                _ => refused(late, 412, "conditionNotMet"),
            }
            assert!(origin.exists(), "{kind:?} {name}");
            let current = query(&generation().await);
            delete(current.clone()).await.expect(204);
            assert!(!origin.exists(), "{kind:?} {name}");
            refused(delete(current).await, 404, "notFound");
        }
    }
}

/// Google's generations are others for the same bytes, which have the same ETag.
#[tokio::test]
async fn generation_with_the_same_bytes_is_not_deleted_over_google() {
    let origin = Origin::of(Kind::Gcs);
    let (_store, server, _s3) = origin.serve().await;
    server.put_object("cloud", "a", b"same").await;
    let found = document(&server.get(OBJECT).await.expect(200));
    let generation = found["generation"].as_str().unwrap();
    origin.replace(b"same");
    let target = format!("{OBJECT}?ifGenerationMatch={generation}");
    refused(server.delete(&target).await, 412, "conditionNotMet");
    assert!(origin.exists());
}

#[tokio::test]
async fn if_match_of_a_delete_at_the_s3_endpoint_is_decided_by_the_store() {
    for kind in [Kind::Gcs, Kind::Azure] {
        let origin = Origin::of(kind);
        let (_store, _gcs, server) = origin.serve().await;
        let delete = async |e_tag: &str| {
            let condition = [("if-match", e_tag)];
            server.send("DELETE", "/cloud/a", &condition, b"").await
        };
        let put = server.put("/cloud/a", &[], b"known").await.expect(200);
        let known = put.header("etag").unwrap().to_owned();
        origin.replace(b"other");
        let refused = delete(&known).await;
        refused.expect_error(412, "PreconditionFailed");
        assert!(origin.exists(), "{kind:?}");
        let head = server.send("HEAD", "/cloud/a", &[], b"").await.expect(200);
        delete(head.header("etag").unwrap()).await.expect(204);
        assert!(!origin.exists(), "{kind:?}");
        delete(&known).await.expect_error(404, "NoSuchKey");
    }
}
