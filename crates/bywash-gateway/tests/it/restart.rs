//! Tests of multipart uploads across a restart of the server.

use std::path::{Path, PathBuf};

use bywash_gateway::S3Config;
use tempfile::TempDir;

use crate::http::pattern;
use crate::multipart::{MIN, complete, completion, create, part, upload};
use crate::server::Server;

const TARGET: &str = "/folder/deep/key";

fn keeping(home: &TempDir) -> S3Config {
    S3Config {
        uploads: Some(kept(home)),
        ..S3Config::anonymous()
    }
}

fn kept(home: &TempDir) -> PathBuf {
    home.path().join("multipart")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn open_upload_continues_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(keeping(&home)).await;
    let body = pattern(2 * MIN + 12345);
    let headers = [
        ("Content-Type", "text/x"),
        ("x-amz-meta-a", "b"),
        ("x-amz-checksum-algorithm", "CRC32"),
    ];
    let id = create(&server, TARGET, &headers).await;
    create(&server, "/folder/other", &[]).await;
    let lost = create(&server, "/memory/lost", &[]).await;
    part(&server, TARGET, &id, 1, b"replaced below").await;
    let first = part(&server, TARGET, &id, 1, &body[..MIN]).await;
    let checksum = [("x-amz-checksum-crc32", "AAAAAA==")];
    upload(&server, TARGET, &id, 9, &checksum, b"")
        .await
        .expect(200);
    let lists = [
        format!("{TARGET}?uploadId={id}"),
        "/folder?uploads".to_owned(),
    ];
    let mut before = Vec::new();
    for list in &lists {
        before.push(server.get(list, &[]).await.expect(200).text());
    }

    let server = server.restarted(keeping(&home)).await;
    for (list, before) in lists.iter().zip(before) {
        assert_eq!(server.get(list, &[]).await.expect(200).text(), before);
    }
    let second = part(&server, TARGET, &id, 2, &body[MIN..2 * MIN]).await;
    let server = server.restarted(keeping(&home)).await;
    let last = part(&server, TARGET, &id, 3, &body[2 * MIN..]).await;
    let xml = completion(&[(1, &first), (2, &second), (3, &last)]);
    complete(&server, TARGET, &id, &[], &xml).await.expect(200);
    let read = server.get(TARGET, &[]).await.expect(200);
    assert!(read.body == body);
    assert_eq!(
        (read.header("content-type"), read.header("x-amz-meta-a")),
        (Some("text/x"), Some("b"))
    );
    let ours = |(name, _): &&(String, String)| name.contains("bywashupload");
    assert_eq!(read.headers.iter().find(ours), None, "the mark is ours");
    upload(&server, "/memory/lost", &lost, 1, &[], b"x")
        .await
        .expect_error(404, "NoSuchUpload");
    assert_eq!(files(&kept(&home)).len(), 1, "of the other");
    let server = server.restarted(keeping(&home)).await;
    let left = server.get("/folder?uploads", &[]).await.expect(200);
    assert_eq!(left.tags("Key"), ["other"]);
}

/// A completed upload of one part, and its file as if the server had been killed before it removed it.
async fn completed(server: &Server, home: &TempDir) -> (String, String, String, PathBuf) {
    let id = create(server, TARGET, &[]).await;
    let e_tag = part(server, TARGET, &id, 1, b"all").await;
    let [file] = &files(&kept(home))[..] else {
        panic!("one open upload has one file");
    };
    let spare = home.path().join("spare");
    std::fs::hard_link(file, &spare).unwrap();
    let xml = completion(&[(1, &e_tag)]);
    let reply = complete(server, TARGET, &id, &[("If-None-Match", "*")], &xml)
        .await
        .expect(200);
    assert!(!file.exists());
    std::fs::rename(&spare, file).unwrap();
    (id, xml, reply.tag("ETag").unwrap(), file.clone())
}

#[tokio::test]
async fn next_server_responds_to_a_lost_completion() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(keeping(&home)).await;
    let (id, xml, e_tag, file) = completed(&server, &home).await;
    // As if the origin had not finished either.
    let parts = server.root.path().join("folder/.bywash/uploads").join(&id);
    std::fs::create_dir_all(&parts).unwrap();
    std::fs::write(parts.join("00001.0"), b"all").unwrap();
    let manifest = "{\"key\":\"deep/key\",\"attributes\":{}}";
    std::fs::write(parts.join("manifest.json"), manifest).unwrap();
    let server = server.restarted(keeping(&home)).await;
    let listed = server.get("/folder?uploads", &[]).await.expect(200);
    assert_eq!(listed.tags("UploadId"), [id.as_str()]);
    // The condition held when the object was created, and cannot hold now.
    let reply = complete(&server, TARGET, &id, &[("If-None-Match", "*")], &xml)
        .await
        .expect(200);
    assert_eq!(reply.tag("ETag").unwrap(), e_tag);
    assert!(!file.exists() && !parts.exists());
    let again = complete(&server, TARGET, &id, &[], &xml).await.expect(200);
    assert_eq!(again.tag("ETag").unwrap(), e_tag);
    assert_eq!(server.get(TARGET, &[]).await.expect(200).text(), "all");
}

#[tokio::test]
async fn foreign_object_is_not_the_result_of_a_lost_completion() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start(keeping(&home)).await;
    for replaced in [true, false] {
        let (id, xml, ..) = completed(&server, &home).await;
        server = server.restarted(keeping(&home)).await;
        if replaced {
            server.put(TARGET, &[], b"own").await.expect(200);
        } else {
            server.send("DELETE", TARGET, &[], b"").await.expect(204);
        }
        complete(&server, TARGET, &id, &[], &xml)
            .await
            .expect_error(404, "NoSuchUpload");
        assert!(files(&kept(&home)).is_empty());
        server.send("DELETE", TARGET, &[], b"").await.expect(204);
    }
}

#[tokio::test]
async fn uploads_without_a_folder_end_with_the_server() {
    let server = Server::anonymous().await;
    let id = create(&server, TARGET, &[]).await;
    let server = server.restarted(S3Config::anonymous()).await;
    upload(&server, TARGET, &id, 1, &[], b"x")
        .await
        .expect_error(404, "NoSuchUpload");
}
