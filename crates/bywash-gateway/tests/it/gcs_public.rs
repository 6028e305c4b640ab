//! The JSON API of Google's storage: data that requests without a token may read of a server that
//! is not anonymous.

use bywash_gateway::{GcsConfig, PublicAccess, S3Config};

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::server::{Server, signed};
use crate::sign::{Signer, borrow, sha256_hex};

async fn put(server: &Server, path: &str, extra: &[(&str, &str)]) {
    let hash = sha256_hex(b"data");
    let (headers, _) = Signer::default().headers("PUT", path, "", &hash, extra);
    server
        .put(path, &borrow(&headers), b"data")
        .await
        .expect(200);
}

#[tokio::test]
async fn requests_without_a_token_read_and_list_what_is_public() {
    let mut config = GcsConfig::anonymous("");
    config.anonymous = false;
    let s3 = S3Config {
        public: [
            ("folder", PublicAccess::Read),
            ("memory", PublicAccess::ReadList),
        ]
        .map(|(name, access)| (name.to_owned(), access))
        .into(),
        shared: config.shared.clone(),
        ..signed()
    };
    let server = GcsServer::start_with(config).await;
    let s3 = Server::start_with(server.engine.clone(), tempfile::tempdir().unwrap(), s3).await;
    server.engine.create_bucket("closed").unwrap();
    for bucket in ["folder", "memory", "closed"] {
        put(&s3, &format!("/{bucket}/key"), &[]).await;
        let object = format!("/storage/v1/b/{bucket}/o/key");
        for (target, open) in [
            (object.clone(), bucket != "closed"),
            (format!("{object}?alt=media"), bucket != "closed"),
            (format!("/storage/v1/b/{bucket}/o"), bucket == "memory"),
            (format!("/storage/v1/b/{bucket}"), bucket == "memory"),
            // As if it were there.
            (format!("/storage/v1/b/{bucket}/o/absent"), false),
            ("/storage/v1/b".to_owned(), false),
            (format!("/{bucket}/key"), bucket != "closed"),
            (format!("/{bucket}?list-type=2"), bucket == "memory"),
        ] {
            let response = server.get(&target).await;
            let is_xml = !target.starts_with("/storage/");
            match (open, bucket != "closed" && target.ends_with("absent")) {
                (true, _) => _ = response.expect(200),
                (false, true) => refused(response, 404, "notFound"),
                (false, false) if is_xml => {
                    let code = response.expect(401).tag("Code");
                    assert_eq!(code.as_deref(), Some("AuthenticationRequired"));
                }
                (false, false) => refused(response, 401, "required"),
            }
            let bearer = [("Authorization", "Bearer anything")];
            let response = server.send("GET", &target, &bearer, b"").await;
            if is_xml {
                _ = response.expect(401)
            } else {
                refused(response, 401, "authError")
            }
        }
        let write = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=new");
        for (method, target) in [
            ("POST", &write),
            ("DELETE", &object),
            ("PATCH", &object),
            ("POST", &format!("{object}/copyTo/b/{bucket}/o/copy")),
            ("POST", &format!("{object}/compose")),
            ("POST", &"/batch/storage/v1".to_owned()),
        ] {
            let response = server.send(method, target, &[], b"{}").await;
            refused(response, 401, "required");
        }
        for (method, target) in [("PUT", "new"), ("POST", "new?uploads"), ("DELETE", "key")] {
            let target = format!("/{bucket}/{target}");
            server.send(method, &target, &[], b"").await.expect(401);
        }
    }
    // A client that may list reads no metadata.
    let page = document(&server.get("/storage/v1/b/memory/o").await.expect(200));
    assert!(page["items"][0].get("contentType").is_none());
}

#[tokio::test]
async fn object_with_a_public_acl_is_read_without_a_token() {
    let mut config = GcsConfig::anonymous("");
    config.anonymous = false;
    let s3 = S3Config {
        shared: config.shared.clone(),
        ..signed()
    };
    let server = GcsServer::start_with(config).await;
    let s3 = Server::start_with(server.engine.clone(), tempfile::tempdir().unwrap(), s3).await;
    put(&s3, "/folder/open", &[("x-amz-acl", "public-read")]).await;
    put(&s3, "/folder/closed", &[]).await;
    let read = server.get("/storage/v1/b/folder/o/open?alt=media").await;
    assert_eq!(read.expect(200).text(), "data");
    server.get("/storage/v1/b/folder/o/open").await.expect(200);
    for method in ["GET", "HEAD"] {
        for (object, status) in [("open", 200), ("closed", 401)] {
            let target = format!("/folder/{object}");
            server.send(method, &target, &[], b"").await.expect(status);
        }
    }
    // A link does not change the type of the object.
    let page = "/folder/open?response-content-type=text/html";
    server.get(page).await.expect(400);
    for target in ["o/closed?alt=media", "o/closed", "o/absent", "o"] {
        let target = format!("/storage/v1/b/folder/{target}");
        refused(server.get(&target).await, 401, "required");
    }
}
