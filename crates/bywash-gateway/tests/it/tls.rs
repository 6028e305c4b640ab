//! Tests of the endpoint over TLS.

use std::time::Duration;

use bywash_gateway::{S3Config, TlsError, load_tls};

use crate::http::pattern;
use crate::server::Server;

#[tokio::test]
async fn objects_pass_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Some(load_tls(&certificate, &key).unwrap());
    let server = Server::start(S3Config {
        tls,
        ..S3Config::anonymous()
    })
    .await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .timeout(Duration::from_secs(30))
        .tls_certs_only([reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap()])
        .build()
        .unwrap();
    let url = format!("https://localhost:{}/memory/key", server.address.port());
    let body = pattern(5 << 20);
    let reply = http.put(&url).body(body.clone()).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    assert!(http.get(&url).send().await.unwrap().bytes().await.unwrap() == body);
    // Plain HTTP on the same port gets no response.
    let plain = http.get(url.replace("https", "http")).send().await;
    assert!(plain.is_err());
}

#[test]
fn invalid_certificate_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    assert!(matches!(
        load_tls(&certificate, &key),
        Err(TlsError::File { .. })
    ));
    std::fs::write(&certificate, "nothing").unwrap();
    assert!(matches!(
        load_tls(&certificate, &key),
        Err(TlsError::Empty { .. })
    ));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    assert!(matches!(
        load_tls(&certificate, &key),
        Err(TlsError::File { .. })
    ));
    std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    assert!(matches!(
        load_tls(&certificate, &key),
        Err(TlsError::Pair(_))
    ));
}
