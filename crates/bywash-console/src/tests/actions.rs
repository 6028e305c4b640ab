//! The buttons of the page.

use super::*;

/// Sends a form as a browser does, with the key.
async fn press(console: &Running, action: &str, origin: Option<&str>, form: &str) -> (u16, String) {
    let origin = origin.map_or_else(String::new, |origin| format!("Origin: {origin}\r\n"));
    let headers = format!("Content-Type: application/x-www-form-urlencoded\r\n{origin}");
    let target = format!("/actions/{action}");
    let (status, _, body) = console.post(&target, &headers, form.as_bytes()).await;
    (status, body)
}

const OWN: Option<&str> = Some("http://localhost");

#[tokio::test]
async fn buttons_warm_drop_and_explain() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let (_, _, page) = console.get("/?bucket=data").await;
    for part in [
        "action=\"/actions/warm\"",
        "formaction=\"/actions/drop\"",
        "name=\"why\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (_, _, page) = console.get("/?bucket=data&why=a").await;
    for part in [
        "a read would be a <strong>hit</strong>",
        "name=\"prefix\" maxlength=\"1024\" value=\"a\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (status, page) = press(&console, "drop", OWN, "bucket=data&prefix=").await;
    assert!(
        status == 200 && page.contains("Dropped from memory: 1 object, 5 B."),
        "{page}"
    );
    assert!(page.contains("href=\"/?bucket=data\""), "{page}");
    let (_, _, page) = console.get("/?bucket=data&why=a").await;
    assert!(
        page.contains("a read would be a <strong>miss</strong>"),
        "{page}"
    );
    let (status, page) = press(&console, "warm", OWN, "bucket=data&prefix=a").await;
    assert!(
        status == 200 && page.contains("Read into memory: 1 object, 5 B."),
        "{page}"
    );
    assert_eq!(engine.stats().pool.resident_blocks, 1);
    let (status, page) = press(&console, "warm", OWN, "bucket=%3Cb%3E").await;
    assert_eq!(status, 404);
    assert!(
        page.contains("there is no bucket &lt;b&gt;") && !page.contains("<b>"),
        "{page}"
    );
}

#[tokio::test]
async fn button_aborts_an_upload_of_a_client() {
    let console = start(engine()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("name=\"upload\" value=\"id-1\""), "{page}");
    let form = "bucket=data&key=%3Cbig%3E&upload=";
    let (status, page) = press(&console, "abort", OWN, &format!("{form}id-1")).await;
    assert!(
        status == 200 && page.contains("Aborted the upload of data/&lt;big&gt;"),
        "{page}"
    );
    let (status, page) = press(&console, "abort", OWN, &format!("{form}id-2")).await;
    assert!(
        status == 409 && page.contains("There is no upload id-2."),
        "{page}"
    );
}

#[tokio::test]
async fn buttons_are_for_the_page_itself_only() {
    let engine = engine_with_traffic().await;
    for access in [key(), Access::Anonymous] {
        let console = start_with(engine.clone(), access).await;
        for origin in [
            None,
            Some("null"),
            Some("http://evil.example"),
            Some("https://localhost"),
        ] {
            for action in ["warm", "drop", "abort"] {
                let form = "bucket=data&prefix=&key=a&upload=id-1";
                let (status, page) = press(&console, action, origin, form).await;
                assert_eq!(status, 403, "{action} {origin:?}: {page}");
            }
        }
    }
    let console = start(engine.clone()).await;
    let head = "POST /actions/drop HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
                Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 11";
    let (status, _, _) = send(console.address, head, b"bucket=data").await;
    assert_eq!(status, 401, "without the key");
    assert_eq!(engine.stats().pool.resident_blocks, 1);
}
