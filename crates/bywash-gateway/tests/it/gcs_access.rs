//! Which requests the GCS endpoint serves: tokens of service accounts, their exchange, signatures, signed URLs.

use bywash_gateway::{
    AccessLog, AccessLogFormat, AccessLogTarget, Credential, GcsAccount, GcsConfig, Scope,
};
use bywash_support::account::{
    EMAIL, KEY_ID, NAME, OTHER_PEM, PEM, confused_token, der, header, rs256, sign, sign_with,
    token, unsigned_token,
};
use bywash_support::sign::{KEY, SECRET, Signer, hex, sha256_hex};
use chrono::Utc;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;

const ENDPOINT: &str = "http://gcs.test";
const STORAGE: &str = "https://storage.googleapis.com/";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// A server with an account, and with a secret key.
struct Keyed {
    server: GcsServer,
    accounts: TempDir,
}

async fn keyed_with(scope: Scope, config: GcsConfig) -> Keyed {
    let accounts = tempfile::tempdir().unwrap();
    let account = GcsAccount::new(NAME, &der(PEM), ENDPOINT, scope).unwrap();
    assert_eq!(
        (account.email(), &*account.key_id),
        (EMAIL.to_owned(), KEY_ID)
    );
    account.keep(accounts.path()).unwrap();
    let config = GcsConfig {
        anonymous: false,
        accounts: Some(accounts.path().to_owned()),
        credentials: vec![Credential::new(KEY, SECRET)],
        ..config
    };
    let server = GcsServer::start_with(config).await;
    Keyed { server, accounts }
}

async fn keyed(scope: Scope) -> Keyed {
    keyed_with(scope, GcsConfig::anonymous("")).await
}

fn claims() -> Value {
    let now = Utc::now().timestamp();
    json!({"iss": EMAIL, "sub": EMAIL, "aud": STORAGE, "iat": now, "exp": now + 3600})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

impl Keyed {
    async fn bearing(&self, token: &str, method: &str, target: &str, body: &[u8]) -> HttpResponse {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        self.server.send(method, target, &headers, body).await
    }

    /// Sends an assertion to the token endpoint.
    async fn exchange(&self, grant: &str, assertion: &str) -> HttpResponse {
        let form = format!(
            "grant_type={}&assertion={assertion}",
            grant.replace(':', "%3A")
        );
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        self.server.post("/token", &kind, form.as_bytes()).await
    }
}

#[tokio::test]
async fn assertion_is_exchanged_for_a_token_that_opens_the_buckets() {
    let keyed = keyed(Scope::default()).await;
    for audience in [
        json!("https://oauth2.googleapis.com/token"),
        json!(format!("{ENDPOINT}/token")),
    ] {
        let given = keyed.exchange(GRANT, &token(&with("aud", audience))).await;
        let given = document(&given.expect(200));
        assert_eq!(
            (&given["token_type"], &given["expires_in"]),
            (&json!("Bearer"), &json!(3600))
        );
        let access = given["access_token"].as_str().unwrap();
        let insert = "/upload/storage/v1/b/folder/o?uploadType=media&name=key";
        keyed
            .bearing(access, "POST", insert, b"bytes")
            .await
            .expect(200);
        let media = "/storage/v1/b/folder/o/key?alt=media";
        let read = keyed.bearing(access, "GET", media, b"").await.expect(200);
        assert_eq!(read.body, b"bytes");
    }
}

#[tokio::test]
async fn exchanges_that_are_refused_say_why_in_the_shape_of_oauth() {
    let keyed = keyed(Scope::default()).await;
    let good = with("aud", json!("https://oauth2.googleapis.com/token"));
    let mut delegated = good.clone();
    delegated["sub"] = json!("person@example.com");
    for (grant, assertion, reason) in [
        ("password", token(&good), "grant_type"),
        (GRANT, String::new(), "no JSON web token"),
        (GRANT, token(&claims()), "audience"),
        (GRANT, token(&delegated), "subject"),
        (GRANT, sign_with(OTHER_PEM, &header(), &good), "signature"),
        (GRANT, unsigned_token(&good), "RS256"),
        (GRANT, "A".repeat(9000), "longer"),
    ] {
        let refused = keyed.exchange(grant, &assertion).await.expect(400);
        let refused = document(&refused);
        assert_eq!(refused["error"], "invalid_grant");
        let text = refused["error_description"].as_str().unwrap();
        assert!(text.contains(reason), "{text}");
    }
}

#[tokio::test]
async fn form_of_a_token_has_a_limit() {
    let keyed = keyed(Scope::default()).await;
    // A token of its own limit fits.
    let fits = keyed.exchange(GRANT, &"A".repeat(8 << 10)).await;
    let fits = document(&fits.expect(400));
    let text = fits["error_description"].as_str().unwrap();
    assert!(text.contains("no JSON web token"), "{text}");
    for length in [9 << 10, 70 << 10] {
        let long = keyed.exchange(GRANT, &"A".repeat(length)).await;
        let long = document(&long.expect(400));
        assert_eq!(long["error"], "invalid_grant");
        let text = long["error_description"].as_str().unwrap();
        assert!(text.contains("form of a token is longer"), "{text}");
    }
}

const SCOPES: &str = "https://www.googleapis.com/auth/";

/// Exchanges an assertion with scopes, and returns the access token.
async fn exchanged(keyed: &Keyed, scopes: Option<&str>) -> String {
    let mut assertion = with("aud", json!("https://oauth2.googleapis.com/token"));
    assertion["scope"] = json!(scopes);
    let given = keyed.exchange(GRANT, &token(&assertion)).await.expect(200);
    document(&given)["access_token"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn scopes_of_a_token_restrict_it_to_reading() {
    let keyed = keyed(Scope::default()).await;
    let media = "/storage/v1/b/folder/o/key?alt=media";
    let insert = "/upload/storage/v1/b/folder/o?uploadType=media&name=key";
    let both = format!("{SCOPES}devstorage.read_only {SCOPES}devstorage.read_write");
    for (scopes, writes) in [
        (None, true),
        (Some("devstorage.read_write"), true),
        (Some("devstorage.full_control"), true),
        (Some("cloud-platform"), true),
        (Some("devstorage.read_only"), false),
        (Some("cloud-platform.read-only"), false),
    ] {
        let scopes = scopes.map(|name| format!("{SCOPES}{name}"));
        let mut signed = claims();
        signed["scope"] = json!(scopes);
        let exchanged = exchanged(&keyed, scopes.as_deref()).await;
        for bearer in [exchanged, token(&signed)] {
            let written = keyed.bearing(&bearer, "POST", insert, b"bytes").await;
            if writes {
                drop(written.expect(200))
            } else {
                let text = written.text();
                refused(written, 403, "forbidden");
                assert!(
                    text.contains("Provided scope(s) are not authorized"),
                    "{text}"
                );
                let deleted = keyed.bearing(&bearer, "DELETE", "/folder/key", b"").await;
                assert_eq!(deleted.status, 403, "by the XML API");
            }
            let read = keyed.bearing(&bearer, "GET", media, b"").await.expect(200);
            assert_eq!(read.body, b"bytes", "{scopes:?}");
        }
    }
    // The widest one holds.
    let wide = exchanged(&keyed, Some(&both)).await;
    keyed
        .bearing(&wide, "POST", insert, b"bytes")
        .await
        .expect(200);
    let other = format!("{SCOPES}bigquery {SCOPES}devstorage.write_only");
    let mut signed = claims();
    signed["scope"] = json!(other);
    let response = keyed.bearing(&token(&signed), "GET", media, b"").await;
    refused(response, 401, "authError");
    signed["aud"] = json!("https://oauth2.googleapis.com/token");
    keyed.exchange(GRANT, &token(&signed)).await.expect(400);
}

#[tokio::test]
async fn key_files_of_google_are_refused_with_the_next_step() {
    let keyed = keyed(Scope::default()).await;
    let mut of_google = claims();
    of_google["iss"] = json!("robot@project.iam.gserviceaccount.com");
    of_google["sub"] = of_google["iss"].clone();
    for bearer in [
        token(&of_google),
        "ya29.c.c0AbCd_ef-gh".to_owned(),
        "ya29.a0AbCd".to_owned(),
    ] {
        let response = keyed.bearing(&bearer, "GET", "/storage/v1/b", b"").await;
        let text = response.text();
        refused(response, 401, "authError");
        assert!(text.contains("bywash keys create --gcs"), "{text}");
    }
    of_google["aud"] = json!("https://oauth2.googleapis.com/token");
    let response = keyed.exchange(GRANT, &token(&of_google)).await.expect(400);
    assert!(response.text().contains("bywash keys create --gcs"));
}

#[tokio::test]
async fn self_signed_tokens_open_the_buckets() {
    let keyed = keyed(Scope::default()).await;
    let mut scoped = claims();
    scoped["aud"] = Value::Null;
    scoped["scope"] = json!("https://www.googleapis.com/auth/cloud-platform");
    for claims in [claims(), with("aud", json!(ENDPOINT)), scoped] {
        let response = keyed
            .bearing(&token(&claims), "GET", "/storage/v1/b", b"")
            .await;
        response.expect(200);
    }
}

#[tokio::test]
async fn tokens_that_are_not_good_are_refused() {
    let keyed = keyed(Scope::default()).await;
    let now = Utc::now().timestamp();
    let mut expired = claims();
    (expired["iat"], expired["exp"]) = (json!(now - 7200), json!(now - 3600));
    let unknown_key = json!({"alg": "RS256", "kid": "0".repeat(40)});
    let good = token(&claims());
    for (name, bearer) in [
        ("expired", token(&expired)),
        ("of the future", token(&with("iat", json!(now + 600)))),
        ("for two hours", token(&with("exp", json!(now + 7200)))),
        (
            "for another audience",
            token(&with("aud", json!("https://example.com/"))),
        ),
        ("unsigned", format!("{}.", good.rsplit_once('.').unwrap().0)),
        ("without an algorithm", unsigned_token(&claims())),
        ("signed by the public key", confused_token(&claims())),
        ("by another key", sign_with(OTHER_PEM, &header(), &claims())),
        ("by an unknown key", sign(&unknown_key, &claims())),
        (
            "of another account",
            token(&with("iss", json!("other@bywash.iam.gserviceaccount.com"))),
        ),
        (
            "of another file",
            token(&with("iss", json!("../x@bywash.iam.gserviceaccount.com"))),
        ),
        ("too long", format!("{good}{}", "A".repeat(9000))),
        ("of no form", "a.b.c".to_owned()),
        ("an access token of another server", "AAAA.BBBB".to_owned()),
    ] {
        let response = keyed.bearing(&bearer, "GET", "/storage/v1/b", b"").await;
        assert_eq!(response.status, 401, "{name}");
        assert!(!response.text().contains(&bearer), "{name}");
        refused(response, 401, "authError");
    }
    let basic = [("Authorization", "Basic YTpi")];
    let response = keyed.server.send("GET", "/storage/v1/b", &basic, b"").await;
    refused(response, 401, "required");
}

#[tokio::test]
async fn accounts_reach_their_buckets_alone_and_only_read_if_so() {
    let scope = Scope {
        buckets: Some(vec!["folder".to_owned()]),
        read_only: true,
    };
    let keyed = keyed(scope).await;
    let bearer = token(&claims());
    let bucket = keyed.server.engine.bucket("folder").unwrap();
    let path = object_store::path::Path::from("key");
    object_store::ObjectStoreExt::put(&bucket, &path, "x".into())
        .await
        .unwrap();
    let listed = keyed
        .bearing(&bearer, "GET", "/storage/v1/b", b"")
        .await
        .expect(200);
    let names = document(&listed)["items"].clone();
    let names: Vec<_> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["name"])
        .collect();
    assert_eq!(names, ["folder"]);
    let media = "/storage/v1/b/folder/o/key?alt=media";
    keyed.bearing(&bearer, "GET", media, b"").await.expect(200);
    for (method, target) in [
        ("GET", "/storage/v1/b/memory"),
        ("GET", "/storage/v1/b/memory/o"),
        ("GET", "/storage/v1/b/memory/o/key?alt=media"),
        ("DELETE", "/storage/v1/b/folder/o/key"),
        ("POST", "/storage/v1/b"),
        ("POST", "/storage/v1/b/folder/o/key/copyTo/b/folder/o/copy"),
        (
            "POST",
            "/upload/storage/v1/b/folder/o?uploadType=media&name=x",
        ),
        (
            "POST",
            "/upload/storage/v1/b/folder/o?uploadType=resumable&name=x",
        ),
    ] {
        let response = keyed
            .bearing(&bearer, method, target, br#"{"name":"new"}"#)
            .await;
        refused(response, 403, "forbidden");
    }
    // Each call of a batch is a request of the account.
    let object = |bucket: &str| format!("/storage/v1/b/{bucket}/o/key");
    let calls = [
        format!("GET {}", object("folder")),
        format!("GET {}", object("memory")),
        format!("DELETE {}", object("folder")),
        format!("POST {}/copyTo/b/folder/o/copy", object("folder")),
    ];
    let calls = calls.map(|line| format!("--b\n\n{line} HTTP/1.1\n\n\n"));
    let batch = format!("{}--b--", calls.concat());
    let headers = [
        ("Authorization", &*format!("Bearer {bearer}")),
        ("Content-Type", "multipart/mixed; boundary=b"),
    ];
    let sent = keyed
        .server
        .post("/batch/storage/v1", &headers, batch.as_bytes());
    let response = sent.await.expect(200).text();
    let statuses: Vec<_> = response
        .lines()
        .filter_map(|line| line.strip_prefix("HTTP/1.1 "))
        .map(|status| &status[..3])
        .collect();
    assert_eq!(statuses, ["200", "403", "403", "403"]);
}

#[tokio::test]
async fn account_of_one_bucket_copies_from_no_other_and_creates_none() {
    let scope = Scope {
        buckets: Some(vec!["folder".to_owned()]),
        read_only: false,
    };
    let keyed = keyed(scope).await;
    let bearer = token(&claims());
    for target in [
        "/storage/v1/b/memory/o/key/copyTo/b/folder/o/copy",
        "/storage/v1/b/folder/o/key/rewriteTo/b/memory/o/copy",
        "/storage/v1/b",
    ] {
        let response = keyed
            .bearing(&bearer, "POST", target, br#"{"name":"new"}"#)
            .await;
        refused(response, 403, "forbidden");
    }
    assert!(keyed.server.engine.bucket("new").is_none());
}

#[tokio::test]
async fn removed_account_has_no_tokens_and_a_new_one_is_served_at_once() {
    let keyed = keyed(Scope::default()).await;
    let folder = keyed.accounts.path();
    let account = GcsAccount::new("late", &der(OTHER_PEM), ENDPOINT, Scope::default()).unwrap();
    let by_late = |claims: Value| {
        let header = json!({"alg": "RS256", "kid": account.key_id});
        sign_with(OTHER_PEM, &header, &claims)
    };
    let mut claims = with("aud", json!("https://oauth2.googleapis.com/token"));
    claims["iss"] = json!(account.email());
    claims["sub"] = json!(account.email());
    keyed
        .exchange(GRANT, &by_late(claims.clone()))
        .await
        .expect(400);
    account.keep(folder).unwrap();
    keyed
        .exchange(GRANT, &by_late(claims.clone()))
        .await
        .expect(200);
}

#[tokio::test]
async fn session_needs_no_token() {
    let keyed = keyed(Scope::default()).await;
    let start = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=key";
    let started = keyed
        .bearing(&token(&claims()), "POST", start, b"")
        .await
        .expect(200);
    let session = started.header("location").unwrap();
    let target = &session[session.find("/upload").unwrap()..];
    let server = &keyed.server;
    server.send("PUT", target, &[], b"bytes").await.expect(200);
    let media = "/storage/v1/b/folder/o/key?alt=media";
    let read = keyed.bearing(&token(&claims()), "GET", media, b"").await;
    assert_eq!(read.expect(200).body, b"bytes");
    let unknown = format!("{start}&upload_id={}", "0".repeat(64));
    let response = server.send("PUT", &unknown, &[], b"bytes").await;
    refused(response, 404, "notFound");
}

/// A V4 signed URL, signed independently of the code under test.
fn signed_url(method: &str, path: &str, age_s: i64, extra: &[(&str, &str)]) -> String {
    let date = (Utc::now() - chrono::TimeDelta::seconds(age_s))
        .format("%Y%m%dT%H%M%SZ")
        .to_string();
    let scope = format!("{}/auto/storage/goog4_request", &date[..8]);
    let credential = format!("{EMAIL}/{scope}")
        .replace('/', "%2F")
        .replace('@', "%40");
    let mut headers = vec![("host", "127.0.0.1")];
    headers.extend_from_slice(extra);
    headers.sort_unstable();
    let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let query = format!(
        "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential={credential}&X-Goog-Date={date}&X-Goog-Expires=600\
         &X-Goog-SignedHeaders={}",
        names.join("%3B")
    );
    let request = format!(
        "{method}\n{path}\n{query}\n{lines}\n{}\nUNSIGNED-PAYLOAD",
        names.join(";")
    );
    let text = format!(
        "GOOG4-RSA-SHA256\n{date}\n{scope}\n{}",
        sha256_hex(request.as_bytes())
    );
    format!(
        "{path}?{query}&X-Goog-Signature={}",
        hex(&rs256(PEM, text.as_bytes()))
    )
}

#[tokio::test]
async fn signed_url_serves_its_request_alone() {
    let keyed = keyed(Scope::default()).await;
    let object = "/storage/v1/b/folder/o/a%2Fkey";
    let insert = "/upload/storage/v1/b/folder/o?uploadType=media&name=a%2Fkey";
    keyed
        .bearing(&token(&claims()), "POST", insert, b"bytes")
        .await
        .expect(200);
    let url = signed_url("GET", object, 0, &[]);
    let server = &keyed.server;
    let read = server.get(&url).await.expect(200);
    assert_eq!(document(&read)["name"], "a/key");
    let other = url.replace("key", "other");
    for (method, url) in [
        ("GET", other.as_str()),
        ("DELETE", &url),
        ("GET", &format!("{url}&alt=media")),
        ("GET", &signed_url("GET", object, 700, &[])),
        ("GET", &signed_url("GET", object, -1000, &[])),
        ("GET", &url[..url.len() - 2]),
        ("GET", &url.replace("tester", "other")),
    ] {
        let response = server.send(method, url, &[], b"").await;
        refused(response, 403, "forbidden");
    }
    // A header that changes the request must be signed.
    let match_none = [("x-goog-meta-a", "b")];
    let response = server.send("GET", &url, &match_none, b"").await;
    refused(response, 403, "forbidden");
    let url = signed_url("GET", object, 0, &match_none);
    server.send("GET", &url, &match_none, b"").await.expect(200);
    let bearer = [("Authorization", "Bearer x")];
    let both = server.send("GET", &url, &bearer, b"").await;
    refused(both, 400, "invalid");
}

#[tokio::test]
async fn secret_keys_sign_as_amazon_does_and_the_digest_of_a_body_holds() {
    let keyed = keyed(Scope::default()).await;
    let path = "/upload/storage/v1/b/folder/o";
    let query = "name=key&uploadType=media";
    let target = format!("{path}?{query}");
    let send = |signer: Signer, payload: String, body: &'static [u8]| {
        let (headers, _) = signer.headers("POST", path, query, &payload, &[]);
        let (server, target) = (&keyed.server, target.clone());
        async move {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (&**name, &**value))
                .collect();
            server.send("POST", &target, &headers, body).await
        }
    };
    let digest = sha256_hex(b"bytes");
    send(Signer::default(), digest.clone(), b"bytes")
        .await
        .expect(200);
    send(Signer::default(), "UNSIGNED-PAYLOAD".to_owned(), b"bytes")
        .await
        .expect(200);
    let changed = send(Signer::default(), digest, b"other").await;
    refused(changed, 400, "invalid");
    let media = "/storage/v1/b/folder/o/key?alt=media";
    let read = keyed.bearing(&token(&claims()), "GET", media, b"").await;
    assert_eq!(read.body, b"bytes");
    let wrong = |change: fn(&mut Signer)| {
        let mut signer = Signer::default();
        change(&mut signer);
        signer
    };
    for signer in [
        wrong(|signer| signer.secret_key = "other".to_owned()),
        wrong(|signer| signer.access_key = "other".to_owned()),
        wrong(|signer| signer.date = "20200101T000000Z".to_owned()),
        wrong(|signer| signer.host = String::new()),
    ] {
        let response = send(signer, "UNSIGNED-PAYLOAD".to_owned(), b"bytes").await;
        refused(response, 403, "forbidden");
    }
    let chunks = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD".to_owned();
    let response = send(Signer::default(), chunks, b"bytes").await;
    refused(response, 400, "notImplemented");
    let presigned = Signer::default().presign("GET", "/storage/v1/b/folder/o/key", 60);
    keyed.server.get(&presigned).await.expect(200);
    let altered = presigned.replace("key?", "other?");
    refused(keyed.server.get(&altered).await, 403, "forbidden");
}

#[tokio::test]
async fn log_names_the_account_and_has_no_token_and_no_signature() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let engine = bywash::Engine::builder().memory(16 << 20).build().unwrap();
    let target = AccessLogTarget::File(path.clone());
    let log = AccessLog::open(target, AccessLogFormat::Json, &engine)
        .await
        .unwrap();
    let config = GcsConfig {
        access_log: Some(log.clone()),
        ..GcsConfig::anonymous("")
    };
    let keyed = keyed_with(Scope::default(), config).await;
    let assertion = token(&with("aud", json!("https://oauth2.googleapis.com/token")));
    let given = keyed.exchange(GRANT, &assertion).await.expect(200);
    let access = document(&given)["access_token"]
        .as_str()
        .unwrap()
        .to_owned();
    let object = "/storage/v1/b/folder/o/key";
    keyed.bearing(&access, "GET", object, b"").await.expect(404);
    let url = signed_url("GET", object, 0, &[]);
    let signature = url.split("Signature=").nth(1).unwrap().to_owned();
    keyed.server.get(&url).await.expect(404);
    let in_query = format!("{object}?access_token={access}");
    keyed.server.get(&in_query).await.expect(401);
    assert!(log.close().await);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert_eq!(text.matches(EMAIL).count(), 2, "{text}");
    assert!(text.contains("auth2.token"), "{text}");
    for secret in [&assertion, &access, &signature] {
        assert!(!text.contains(secret.as_str()), "{text}");
    }
}
