//! Access to the admin endpoints, by address, host, key and session.

use super::*;

#[tokio::test]
async fn refuses_foreign_hosts_whatever_the_page() {
    let console = start(engine()).await;
    let address = console.address;
    for head in [
        "GET /stats HTTP/1.1\r\nHost: evil.example",
        "GET /healthz HTTP/1.1\r\nHost: evil.example:8422",
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost",
        "GET /nothing HTTP/1.1\r\nHost: evil.example",
        "GET / HTTP/1.1\r\nHost: evil.example",
        "POST /write HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0",
    ] {
        let (status, _, body) = request(address, head).await;
        assert_eq!(status, 403, "{head}: {body}");
        assert!(!body.contains("budget"), "{body}");
    }
    let (status, _, _) = request(address, "GET /healthz HTTP/1.0").await;
    assert_eq!(
        status, 200,
        "a request that names no host is not a browser's"
    );
    for head in [
        "GET /healthz HTTP/1.1",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
    ] {
        assert_eq!(request(address, head).await.0, 400, "{head}");
    }
    let (status, _, _) = request(address, "GET /nothing HTTP/1.1\r\nHost: localhost").await;
    assert_eq!(status, 404);
    let (status, _, _) = request(
        address,
        "POST /stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0",
    )
    .await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn refuses_an_address_beyond_loopback() {
    let engine = engine();
    let home = tempfile::tempdir().unwrap();
    let console = Console {
        series: Some(open_series(&engine, &home).await),
        engine,
        access: key(),
        history: None,
        uploads: OpenUploads::default(),
        fetch_folder: None,
    };
    let address = "0.0.0.0:8422".parse().unwrap();
    let error = admin_and_metrics(console, address, Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("not loopback"), "{error}");
}

#[tokio::test]
async fn metrics_address_requires_a_key_and_shows_its_buckets_only() {
    let engine = engine_with_traffic().await;
    engine
        .mount(
            "other",
            Arc::new(MemoryStore::new()),
            Consistency::default(),
        )
        .unwrap();
    let readers = vec![
        metrics_reader("key", None),
        metrics_reader("monitor", Some(vec!["other".to_owned()])),
    ];
    let (address, server) = serve_metrics(engine, readers).await;

    let get = |target: &str, authorization: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: metrics.example\r\nAuthorization: {authorization}")
    };
    let (status, _, all) = request(address, &get("/metrics", KEY)).await;
    assert_eq!(status, 200);
    assert!(all.contains("{bucket=\"data\"}") && all.contains("{bucket=\"other\"}"));
    let (status, _, own) = request(address, &get("/metrics", "Token monitor:secret")).await;
    assert_eq!(status, 200);
    assert!(!own.contains("bucket=\"data\"") && own.contains("{bucket=\"other\"}"));
    assert!(own.contains("bywash_endpoint_requests_total"));
    for wrong in ["Token key:wrong", "Token other:secret", "Token", "x"] {
        assert_eq!(
            request(address, &get("/metrics", wrong)).await.0,
            401,
            "{wrong}"
        );
    }
    assert_eq!(request(address, &get("/healthz", "x")).await.0, 200);
    for elsewhere in ["/", "/stats", "/cache", "/series/list", "/login", "/write"] {
        assert_eq!(
            request(address, &get(elsewhere, KEY)).await.0,
            404,
            "{elsewhere}"
        );
    }
    server.abort();
}

#[tokio::test]
async fn page_and_series_require_the_key() {
    let console = start(engine_with_traffic().await).await;
    for target in ["/", "/series/list", "/cache", "/uploads"] {
        let (status, head, body) = console
            .request(&format!("GET {target} HTTP/1.1\r\nHost: localhost"))
            .await;
        assert_eq!(
            (status, header(&head, "www-authenticate")),
            (401, Some("Basic realm=\"bywash\", charset=\"UTF-8\""))
        );
        assert!(body.contains("bywash env"), "{body}");
        let (status, head, _) = console
            .request(&format!(
                "GET {target}?a=b HTTP/1.1\r\nHost: localhost\r\nAccept: text/html,*/*"
            ))
            .await;
        assert_eq!(status, 303);
        assert!(
            header(&head, "location")
                .unwrap()
                .starts_with("/login?next=%2F"),
            "{head}"
        );
        assert_eq!(console.get(target).await.0, 200, "{target}");
    }
    for query in ["", "?u=key&p=se:cret", "?db=x&p=se%3Acret&u=key"] {
        let write = format!("POST /write{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5");
        let (status, head, body) = send(console.address, &write, b"m a=1").await;
        assert_eq!(status, 401);
        assert!(header(&head, "www-authenticate").is_some());
        let names_them = body.starts_with("u and p of a query are not read");
        assert_eq!(names_them, !query.is_empty(), "{body}");
    }
    assert_eq!(
        console.series.sources(i64::MIN..=i64::MAX).await.unwrap(),
        [""; 0]
    );

    let (status, _, page) = console.get("/").await;
    assert_eq!(status, 200);
    for part in [
        "data/&lt;big&gt;",
        "<progress max=\"6291456\" value=\"3145728\"",
        "Hit ratio",
        ">data<",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[tokio::test]
async fn login_cookie_is_hidden_from_scripts_and_other_sites() {
    let console = start(engine()).await;
    let login = |pair: &str| {
        let body = format!("{pair}&next=%2F%3Frange%3D6h");
        let head = format!(
            "POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}",
            body.len()
        );
        (head, body)
    };
    let (head, body) = login("access_key=key&secret_key=wrong");
    let (status, head, body) = send(console.address, &head, body.as_bytes()).await;
    assert_eq!((status, header(&head, "set-cookie")), (403, None));
    assert!(body.contains("not the key"), "{body}");

    let (head, body) = login("access_key=key&secret_key=secret");
    let (status, head, _) = send(console.address, &head, body.as_bytes()).await;
    assert_eq!(
        (status, header(&head, "location")),
        (303, Some("/?range=6h"))
    );
    let (cookie, rest) = header(&head, "set-cookie")
        .unwrap()
        .split_once(';')
        .unwrap();
    assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
    let with_cookie = format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}");
    assert_eq!(console.request(&with_cookie).await.0, 200);
    let (status, head, _) = console
        .request("POST /logout HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0")
        .await;
    assert_eq!(status, 303);
    assert!(
        header(&head, "set-cookie").unwrap().ends_with("Max-Age=0"),
        "{head}"
    );
}

#[tokio::test]
async fn anonymous_console_is_open_but_not_to_other_sites() {
    let console = start_with(engine(), Access::Anonymous).await;
    assert_eq!(
        console.request("GET / HTTP/1.1\r\nHost: localhost").await.0,
        200
    );
    let write = "POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5";
    for (origin, expected) in [
        ("", 204),
        ("\r\nOrigin: http://localhost", 204),
        ("\r\nOrigin: http://evil.example", 403),
        ("\r\nOrigin: null", 403),
    ] {
        let (status, ..) = send(console.address, &format!("{write}{origin}"), b"m a=1").await;
        assert_eq!(status, expected, "{origin}");
    }
}

#[tokio::test]
async fn every_response_restricts_what_the_browser_loads() {
    let console = start(engine()).await;
    for target in [
        "/",
        "/login",
        "/stats",
        "/nothing",
        "/assets/console.js",
        "/assets/nothing",
    ] {
        let (_, head, _) = console.get(target).await;
        let policy = header(&head, "content-security-policy").unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(
                policy.contains(rule) && !policy.contains("unsafe"),
                "{policy}"
            );
        }
        assert_eq!(header(&head, "x-content-type-options"), Some("nosniff"));
    }
    let (_, _, page) = console.get("/").await;
    assert!(
        !page.contains("style=")
            && !page.contains("onclick")
            && !page.contains("href=\"http")
            && !page.contains("src=\"http"),
        "{page}"
    );
}
