//! Requests to `/cache`.

use bywash::{CacheLimits, CachedPage, MemoryLimit, Share};

use super::*;
use crate::FetchedFile;
use crate::limits::MAX_CACHED_OBJECTS;

/// Sends a complete request. Returns status, head and body of the response.
async fn exchange(address: std::net::SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: {KEY}\r\nContent-Length: {length}{headers}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn list_without_memory_for_it_is_refused_for_now() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let held: Vec<_> = std::iter::from_fn(|| engine.try_reserve(Share::Upload, 1 << 10)).collect();
    let (status, _, body) = console.get("/cache").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("no memory for the list"), "{body}");
    drop(held);
    let before = engine.budget().held(Share::Upload);
    assert_eq!(console.get("/cache").await.0, 200);
    assert_eq!(engine.budget().held(Share::Upload), before);
}

#[tokio::test]
async fn cache_is_listed_explained_and_changed() {
    let engine = engine_with_traffic().await;
    let console = start(engine).await;
    let address = console.address;
    let get = async |path: &str| {
        let (status, head, body) = console.get(path).await;
        assert!(head.contains("content-type: application/json"), "{head}");
        (
            status,
            serde_json::from_str::<serde_json::Value>(&body).unwrap(),
        )
    };
    let (status, cached) = get("/cache").await;
    assert_eq!(
        (status, &cached["buckets"]["data"][0]["key"]),
        (200, &"a".into())
    );
    let (_, cached) = get("/cache?bucket=data&prefix=b").await;
    assert_eq!(cached, serde_json::json!({ "buckets": {}, "next": null }));
    let (status, why) = get("/cache/why?bucket=data&key=a").await;
    assert_eq!((status, &why["outcome"]), (200, &"hit".into()));
    for missing in ["/cache?bucket=no", "/cache/why?bucket=no&key=a"] {
        let (status, refusal) = get(missing).await;
        assert_eq!(
            (status, &refusal["error"]),
            (404, &"there is no bucket no".into())
        );
    }

    let json = "\r\nContent-Type: application/json";
    let all = r#"{"bucket":"data"}"#;
    let (status, _, body) = exchange(address, &post("/cache/drop", json, all)).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        get("/cache/why?bucket=data&key=a").await.1["outcome"],
        "miss"
    );
    let (status, _, body) = exchange(address, &post("/cache/warm", json, all)).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        get("/cache/why?bucket=data&key=a").await.1["outcome"],
        "hit"
    );
}

#[tokio::test]
async fn verification_needs_a_disk_tier_and_known_options() {
    let console = start(engine_with_traffic().await).await;
    let json = "\r\nContent-Type: application/json";
    for (body, status, reason) in [
        ("{}", 400, "--disk DIR:SIZE"),
        (r#"{"speed":1}"#, 422, "speed"),
    ] {
        let request = post("/cache/verify", json, body);
        let (refused, _, text) = exchange(console.address, &request).await;
        assert_eq!(refused, status, "{text}");
        assert!(text.contains(reason), "{text}");
    }
}

#[tokio::test]
async fn object_is_fetched_to_a_file_below_the_folder_and_nowhere_else() {
    let console = start(engine_with_traffic().await).await;
    let json = "\r\nContent-Type: application/json";
    let fetch = async |headers: &str, body: &str| {
        let request = post("/cache/fetch", headers, body);
        let (status, _, body) = exchange(console.address, &request).await;
        (status, body)
    };
    let of = |key: &str, path: &str| {
        serde_json::json!({ "bucket": "data", "key": key, "path": path }).to_string()
    };
    let (status, body) = fetch(json, &of("a", "made/file")).await;
    assert_eq!(status, 200, "{body}");
    let fetched: FetchedFile = serde_json::from_str(&body).unwrap();
    let written = std::fs::read(&fetched.path).unwrap();
    assert_eq!(written.len() as u64, fetched.bytes);
    assert_eq!(
        fetched.path,
        console
            .home
            .path()
            .join("fetched/made/file")
            .to_str()
            .unwrap()
    );
    for (key, path, refused, reason) in [
        ("a", "../up", 400, ".."),
        ("a", "/etc/absolute", 400, "absolute"),
        ("a", ".bywash/x", 400, "own files"),
        ("a", "made/file/x", 409, "as it was before"),
        ("absent", "x", 404, "absent"),
        ("a//b", "x", 400, "cannot be named"),
    ] {
        let (status, body) = fetch(json, &of(key, path)).await;
        assert_eq!(status, refused, "{path}: {body}");
        assert!(body.contains(reason), "{path}: {body}");
    }
    let more = r#"{"bucket":"data","key":"a","path":"made/file","create_only":true}"#;
    assert_eq!(fetch(json, more).await.0, 409);
    let wrong = "0".repeat(64);
    let wrong = format!(r#"{{"bucket":"data","key":"a","path":"x","sha256":"{wrong}"}}"#);
    let (status, body) = fetch(json, &wrong).await;
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("SHA-256"), "{body}");
    // Like all changes: only JSON, from no other site, with the key.
    assert_eq!(fetch("", &of("a", "x")).await.0, 415);
    let other = format!("{json}\r\nOrigin: http://evil.example");
    assert_eq!(fetch(&other, &of("a", "x")).await.0, 403);
    let request = post("/cache/fetch", json, &of("a", "x")).replace(KEY, "Basic eDp5");
    assert_eq!(exchange(console.address, &request).await.0, 401);
    let mut names = std::fs::read_dir(console.home.path().join("fetched")).unwrap();
    assert_eq!(names.next().unwrap().unwrap().file_name(), "made");
    assert!(names.next().is_none(), "nothing else is there");
}

#[tokio::test]
async fn limit_is_shown_and_changed_and_a_refusal_changes_nothing() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let json = "\r\nContent-Type: application/json";
    let change = async |body: &str| {
        let request = post("/cache/limit", json, body);
        let (status, _, body) = exchange(console.address, &request).await;
        (status, body)
    };
    let shown = async || -> CacheLimits {
        let (status, _, body) = console.get("/cache/limit").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let before = shown().await;
    assert_eq!(before, engine.cache_limits());
    let MemoryLimit { limit, min, .. } = before.memory;

    let held = engine.try_reserve(Share::Upload, min + 4096).unwrap();
    for (body, refused, reason) in [
        (
            format!(r#"{{"memory":{min}}}"#),
            409,
            "try again after they are released",
        ),
        (format!(r#"{{"memory":{}}}"#, min - 1), 400, "bytes"),
        (
            r#"{"memory":18446744073709551615}"#.to_owned(),
            400,
            "ceiling",
        ),
        (r#"{"memory":"1GiB"}"#.to_owned(), 422, "memory"),
        (r#"{"disk":1}"#.to_owned(), 400, "disk"),
        (r#"{"tape":1}"#.to_owned(), 422, "tape"),
    ] {
        let (status, text) = change(&body).await;
        assert_eq!(status, refused, "{body}: {text}");
        assert!(text.contains(reason), "{body}: {text}");
        assert_eq!(shown().await.memory.limit, limit);
    }
    drop(held);
    let (status, text) = change(&format!(r#"{{"memory":{min}}}"#)).await;
    let changed: CacheLimits = serde_json::from_str(&text).unwrap();
    assert_eq!((status, changed.memory.limit), (200, min));
    assert_eq!(engine.stats().budget.limit, min);
    assert!(changed.memory.used <= min);
}

#[tokio::test]
async fn objects_past_a_page_are_on_the_next_ones() {
    let engine = engine();
    let mut keys = Vec::new();
    for bucket in ["one", "two"] {
        let store = Arc::new(MemoryStore::new());
        let consistency = Consistency::default();
        let bucket = engine.mount(bucket, store, consistency).unwrap();
        for number in 0..MAX_CACHED_OBJECTS * 3 / 4 {
            let path = Path::from(format!("dir/{number:04}"));
            bucket.put(&path, PutPayload::new()).await.unwrap();
            bucket.head(&path).await.unwrap();
            keys.push((bucket.name().to_owned(), path.to_string()));
        }
    }
    let console = start(engine).await;
    // A limit above the maximum counts as the maximum.
    for (limit, pages) in [(MAX_CACHED_OBJECTS + 1, 2), (400, 4)] {
        let (mut listed, mut after) = (Vec::new(), String::new());
        for page in 1..=pages {
            let query = format!("/cache?prefix=dir/&limit={limit}{after}");
            let (status, _, body) = console.get(&query).await;
            assert_eq!(status, 200, "{body}");
            let response: CachedPage = serde_json::from_str(&body).unwrap();
            assert_eq!(response.next.is_some(), page < pages, "page {page}");
            after = response
                .next
                .map_or_else(String::new, |next| format!("&after={next}"));
            let before = listed.len();
            for (bucket, objects) in response.buckets {
                listed.extend(
                    objects
                        .into_iter()
                        .map(|object| (bucket.clone(), object.key)),
                );
            }
            let max = limit.min(MAX_CACHED_OBJECTS);
            assert!(listed.len() - before <= max, "page {page}");
        }
        assert!(listed == keys, "{} listed", listed.len());
    }
}

#[tokio::test]
async fn takes_no_changes_from_pages_of_other_sites() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let address = console.address;
    let all = r#"{"bucket":"data"}"#;
    let json = "\r\nContent-Type: application/json";
    for (headers, refused) in [
        (format!("{json}\r\nOrigin: http://evil.example"), 403),
        (format!("{json}\r\nOrigin: http://localhost:2"), 403),
        (format!("{json}\r\nOrigin: null"), 403),
        // A page can send this without a preflight request.
        ("\r\nContent-Type: text/plain".to_owned(), 415),
        (String::new(), 415),
    ] {
        let (status, _, _) = exchange(address, &post("/cache/drop", &headers, all)).await;
        assert_eq!(status, refused, "{headers}");
    }
    assert_eq!(console.get("/cache/drop").await.0, 405);
    let keyless = format!("POST /cache/drop HTTP/1.1\r\nHost: localhost{json}");
    assert_eq!(request(address, &keyless).await.0, 401);
    let path = Path::from("a");
    assert_eq!(engine.bucket("data").unwrap().explain(&path).outcome, "hit");
    let own = format!("{json}\r\nOrigin: http://localhost:1");
    assert_eq!(
        exchange(address, &post("/cache/drop", &own, all)).await.0,
        200
    );
    assert_eq!(
        engine.bucket("data").unwrap().explain(&path).outcome,
        "miss"
    );
}
