//! The endpoint of Google's storage at several nodes of a cluster: each request at another one.

use bywash::Engine;
use bywash::cluster::{ClusterMember, ClusterStatus};
use bywash_gateway::{GcsAccount, GcsConfig, GcsTokenKeys, Scope};
use bywash_support::account::{EMAIL, NAME, PEM, der, token};
use chrono::Utc;
use serde_json::{Value, json};

use crate::cluster_uploads::authority::Authority;
use crate::cluster_uploads::{Cluster, Kind, TARGET};
use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::http::{HttpResponse, pattern};
use crate::multipart::{MIN, completion};

const CHUNK: usize = 256 << 10;
const GRANT: &str = "urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer";
const HOME: &str = "00000000000000aa";
const OTHER: &str = "00000000000000bb";

/// Starts a node over the store of a cluster.
async fn node(cluster: &Cluster) -> GcsServer {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    cluster.mount(&engine);
    let config = GcsConfig {
        cluster_uploads: Some(cluster.uploads([1; 32])),
        ..GcsConfig::anonymous("")
    };
    GcsServer::start_over(engine, tempfile::tempdir().unwrap(), config).await
}

/// Sends a request to a node that ends after it.
async fn once(cluster: &Cluster, method: &str, target: &str, body: &[u8]) -> HttpResponse {
    node(cluster).await.send(method, target, &[], body).await
}

#[tokio::test]
async fn each_request_of_an_upload_in_parts_is_served_by_another_node() {
    for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
        let cluster = Cluster::of(kind).await;
        let body = pattern(MIN + 12345);
        let begun = once(&cluster, "POST", &format!("{TARGET}?uploads"), b"").await;
        let id = begun.expect(200).tag("UploadId").unwrap();
        let end = format!("{TARGET}?uploadId={id}");
        let mut parts = Vec::new();
        for (number, bytes) in [(9, &body[MIN..]), (2, &body[..MIN])] {
            let target = format!("{TARGET}?partNumber={number}&uploadId={id}");
            let stored = once(&cluster, "PUT", &target, bytes).await.expect(200);
            let e_tag = stored.header("etag").unwrap().trim_matches('"').to_owned();
            parts.insert(0, (number, e_tag));
        }
        let parts: Vec<_> = parts
            .iter()
            .map(|(number, e_tag)| (*number, &**e_tag))
            .collect();
        let list = completion(&parts);
        let made = once(&cluster, "POST", &end, list.as_bytes())
            .await
            .expect(200);
        let again = once(&cluster, "POST", &end, list.as_bytes())
            .await
            .expect(200);
        assert_eq!(made.tag("ETag"), again.tag("ETag"), "{kind:?}");
        let read = once(&cluster, "GET", TARGET, b"").await.expect(200);
        assert!(read.body == body, "{kind:?}");
    }
}

#[tokio::test]
async fn upload_in_parts_is_proven_aborted_and_refused_at_another_node() {
    let cluster = Cluster::of(Kind::S3).await;
    let begin = async || {
        let begun = once(&cluster, "POST", &format!("{TARGET}?uploads"), b"").await;
        begun.expect(200).tag("UploadId").unwrap()
    };
    let id = begin().await;
    let part = format!("{TARGET}?partNumber=1&uploadId={id}");
    let stored = once(&cluster, "PUT", &part, b"all").await.expect(200);
    let list = completion(&[(1, stored.header("etag").unwrap().trim_matches('"'))]);
    let end = format!("{TARGET}?uploadId={id}");
    // The condition holds for the lost one, and would not for its repetition.
    let absent = [("x-goog-if-generation-match", "0")];
    cluster.lose_completion();
    let lost = node(&cluster)
        .await
        .post(&end, &absent, list.as_bytes())
        .await;
    assert!(lost.status >= 500, "{}", lost.text());
    let proven = node(&cluster)
        .await
        .post(&end, &absent, list.as_bytes())
        .await;
    proven.expect(200);

    let id = begin().await;
    let part = format!("{TARGET}?partNumber=1&uploadId={id}");
    once(&cluster, "PUT", &part, b"x").await.expect(200);
    let end = format!("{TARGET}?uploadId={id}");
    once(&cluster, "DELETE", &end, b"").await.expect(204);
    for (method, target) in [("PUT", &part), ("POST", &end), ("DELETE", &end)] {
        let gone = once(&cluster, method, target, list.as_bytes())
            .await
            .expect(404);
        assert_eq!(gone.tag("Code").unwrap(), "NoSuchUpload", "{method}");
    }
    let forged = format!("{TARGET}?partNumber=1&uploadId=c1.AAAA");
    once(&cluster, "PUT", &forged, b"x").await.expect(404);
}

/// Starts a node that has the account and signs tokens with a key.
async fn keyed(account: &GcsAccount, key: u8) -> GcsServer {
    let config = GcsConfig {
        anonymous: false,
        listed_accounts: vec![account.clone()],
        token_keys: Some(GcsTokenKeys::new([key; 32], [])),
        ..GcsConfig::anonymous("")
    };
    GcsServer::start_with(config).await
}

#[tokio::test]
async fn access_token_of_a_node_opens_the_same_at_another_one() {
    let scope = Scope {
        buckets: Some(vec!["folder".to_owned()]),
        read_only: true,
    };
    let account = GcsAccount::new(NAME, &der(PEM), "http://gcs.test", scope).unwrap();
    let first = keyed(&account, 1).await;
    let now = Utc::now().timestamp();
    let audience = "https://oauth2.googleapis.com/token";
    let claims =
        json!({"iss": EMAIL, "sub": EMAIL, "aud": audience, "iat": now, "exp": now + 3600});
    let form = format!("grant_type={GRANT}&assertion={}", token(&claims));
    let given = first.post("/token", &[], form.as_bytes()).await.expect(200);
    let access = document(&given)["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let bearer = format!("Bearer {access}");
    let headers = [("Authorization", &*bearer)];
    let list = "/storage/v1/b/folder/o";
    let second = keyed(&account, 1).await;
    for node in [&first, &second] {
        node.send("GET", list, &headers, b"").await.expect(200);
        for (method, target) in [
            ("GET", "/storage/v1/b/memory/o"),
            ("DELETE", "/storage/v1/b/folder/o/key"),
        ] {
            let other = node.send(method, target, &headers, b"").await;
            refused(other, 403, "forbidden");
        }
    }
    let foreign = keyed(&account, 2).await;
    let unknown = foreign.send("GET", list, &headers, b"").await;
    refused(unknown, 401, "authError");
}

/// A cluster with these members, as a node sees it.
fn status(own: &str, members: &[&str]) -> ClusterStatus {
    let member = |node: &&str| ClusterMember {
        node: (*node).to_owned(),
        address: format!("{node}.test:8423"),
        state: "up".to_owned(),
        ..ClusterMember::default()
    };
    ClusterStatus {
        node: own.to_owned(),
        members: members.iter().map(member).collect(),
        ..ClusterStatus::default()
    }
}

/// Starts a node with these members.
async fn member(own: &str, members: &[&str]) -> (GcsServer, Authority) {
    let authority = Authority::default();
    *authority.status.lock().unwrap() = Some(status(own, members));
    let root = tempfile::tempdir().unwrap();
    let builder = Engine::builder().memory(64 << 20).root(root.path());
    let engine = builder.cluster(authority.nodes()).build().unwrap();
    engine.create_bucket("folder").unwrap();
    let server = GcsServer::start_over(engine, root, GcsConfig::anonymous("")).await;
    (server, authority)
}

async fn start(node: &GcsServer) -> String {
    let target = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=key";
    let started = node.post(target, &[], b"").await.expect(200);
    let location = started.header("location").unwrap();
    location[location.find("/upload/").unwrap()..].to_owned()
}

async fn put(node: &GcsServer, session: &str, range: &str, body: &[u8]) -> HttpResponse {
    let headers = [("Content-Range", range)];
    node.send("PUT", session, &headers, body).await
}

/// Checks a response that clients repeat the request after.
#[track_caller]
fn elsewhere(response: HttpResponse, words: &[&str]) {
    let error = document(&response);
    let text = error["error"]["message"].as_str().unwrap();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(response.header("retry-after"), Some("1"));
    refused(response, 503, "backendError");
}

#[tokio::test]
async fn session_of_another_node_is_named_with_its_node_and_goes_on_there() {
    let (home, _) = member(HOME, &[HOME, OTHER]).await;
    let (other, authority) = member(OTHER, &[HOME, OTHER]).await;
    let session = start(&home).await;
    assert!(
        session.ends_with(&format!(".{HOME}")),
        "a balancer can see it"
    );
    let first = put(&home, &session, "bytes 0-262143/*", &pattern(CHUNK)).await;
    assert_eq!(first.status, 308, "{}", first.text());
    for (method, range, body) in [
        ("PUT", "bytes */*", &b""[..]),
        ("PUT", "bytes 262144-262147/262148", b"last"),
        ("POST", "bytes 262144-262147/262148", b"last"),
        ("DELETE", "bytes */*", b""),
    ] {
        let headers = [("Content-Range", range)];
        let response = other.send(method, &session, &headers, body).await;
        // Responses that anyone may request have no address, and no node but the requested one.
        let text = response.text();
        assert!(!text.contains(OTHER) && !text.contains("8423"), "{text}");
        elsewhere(response, &[HOME]);
    }
    // While its node restarts, the upload is not started again.
    *authority.status.lock().unwrap() = Some(status(OTHER, &[OTHER]));
    let response = put(&other, &session, "bytes */*", b"").await;
    elsewhere(response, &[HOME, "no member"]);
    let open = put(&home, &session, "bytes */*", b"").await;
    assert_eq!(open.header("range"), Some("bytes=0-262143"));
    let made = put(&home, &session, "bytes 262144-262147/262148", b"last").await;
    assert_eq!(document(&made.expect(200))["size"], "262148");
    // So is the response to a lost end.
    elsewhere(put(&other, &session, "bytes */*", b"").await, &[HOME]);
}

#[tokio::test]
async fn session_of_a_node_that_left_for_good_is_over_after_two_weeks() {
    let (node, authority) = member(OTHER, &[OTHER]).await;
    let of = |age_s: i64| {
        let begun = Utc::now().timestamp() - age_s;
        let secret = "0".repeat(64);
        format!(
            "/upload/storage/v1/b/folder/o?uploadType=resumable&upload_id={secret}.{begun}.{HOME}"
        )
    };
    let day = 24 * 60 * 60;
    // It may have been written to in its last day.
    elsewhere(put(&node, &of(13 * day), "bytes */*", b"").await, &[HOME]);
    let over = put(&node, &of(15 * day), "bytes */*", b"").await;
    refused(over, 410, "gone");
    // Its node keeps it as long as it is written to.
    *authority.status.lock().unwrap() = Some(status(OTHER, &[HOME, OTHER]));
    elsewhere(put(&node, &of(15 * day), "bytes */*", b"").await, &[HOME]);
    // A node that has seen no member yet knows of none that left.
    *authority.status.lock().unwrap() = Some(status(OTHER, &[]));
    elsewhere(put(&node, &of(15 * day), "bytes */*", b"").await, &[HOME]);
    *authority.status.lock().unwrap() = Some(status(OTHER, &[HOME, OTHER]));
    // A session that no node has begun does not exist.
    for unknown in [
        "x",
        &"0".repeat(64),
        &format!("{}.1.{OTHER}", "0".repeat(64)),
    ] {
        let target =
            format!("/upload/storage/v1/b/folder/o?uploadType=resumable&upload_id={unknown}");
        refused(put(&node, &target, "bytes */*", b"").await, 404, "notFound");
    }
}

#[tokio::test]
async fn session_goes_on_at_its_node_without_the_cluster() {
    let (mut home, _) = member(HOME, &[HOME]).await;
    let session = start(&home).await;
    let first = put(&home, &session, "bytes 0-262143/*", &pattern(CHUNK)).await;
    assert_eq!(first.status, 308, "{}", first.text());
    // The server starts again over its folders, and is no node any more.
    home.restart().await;
    let open = put(&home, &session, "bytes */*", b"").await;
    assert_eq!(open.header("range"), Some("bytes=0-262143"));
}

#[tokio::test]
async fn versions_and_pages_are_the_same_at_all_nodes() {
    for kind in [Kind::S3, Kind::Gcs] {
        let cluster = Cluster::of(kind).await;
        let (first, second) = (node(&cluster).await, node(&cluster).await);
        for key in ["a", "b", "c"] {
            first.put_object("cloud", key, key.as_bytes()).await;
        }
        let at_first = document(&first.get("/storage/v1/b/cloud/o").await.expect(200));
        let at_second = document(&second.get("/storage/v1/b/cloud/o").await.expect(200));
        let named = |list: &Value| {
            let items = list["items"].as_array().unwrap().iter();
            items
                .map(|item| (item["name"].clone(), item["generation"].clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(named(&at_first).len(), 3);
        assert_eq!(named(&at_first), named(&at_second), "{kind:?}");
        for (name, generation) in named(&at_first) {
            let target = format!("/storage/v1/b/cloud/o/{}", name.as_str().unwrap());
            for node in [&first, &second] {
                let found = document(&node.get(&target).await.expect(200));
                assert_eq!(found["generation"], generation, "{kind:?}");
            }
            let generation = generation.as_str().unwrap();
            let matched = format!("{target}?ifGenerationMatch={generation}");
            second.get(&matched).await.expect(200);
        }
        // A page of one node is followed by the next one of another.
        let (mut names, mut page) = (Vec::new(), String::new());
        for turn in 0.. {
            let node = [&first, &second][turn % 2];
            let target = format!("/storage/v1/b/cloud/o?maxResults=1{page}");
            let list = document(&node.get(&target).await.expect(200));
            names.extend(named(&list).into_iter().map(|(name, _)| name));
            let Some(token) = list["nextPageToken"].as_str() else {
                break;
            };
            page = format!("&pageToken={token}");
        }
        assert_eq!(names, ["a", "b", "c"], "{kind:?}");
    }
}
