//! What the page shows.

use super::*;

async fn read(engine: &Engine, key: &str) {
    let bucket = engine.bucket("data").unwrap();
    let got = bucket.get(&Path::from(key)).await.unwrap();
    got.bytes().await.unwrap();
}

#[tokio::test]
async fn tiles_show_the_last_minute_and_not_the_time_before() {
    let engine = engine_with_traffic().await;
    for _ in 0..7 {
        read(&engine, "a").await;
    }
    // A minute that has nothing of this in it: its first snapshot is of now.
    let console = start(engine.clone()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("The last minute"), "{page}");
    assert!(page.contains("0 of 0 blocks"), "{page}");
    for _ in 0..3 {
        read(&engine, "a").await;
    }
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("3 of 3 blocks"), "{page}");
}

#[tokio::test]
async fn first_names_of_series_are_listed() {
    let console = start(engine()).await;
    let line = |number: usize| format!("m,n={number:03} v=1 1\n");
    let shown = crate::page::NAMES;
    let lines: String = (0..shown).rev().map(line).collect();
    console.post("/write", "", lines.as_bytes()).await;
    let names = |page: &str| page.matches("&amp;series=m%2Cn").count();
    let (_, _, page) = console.get("/").await;
    assert_eq!((names(&page), page.contains("and more")), (shown, false));
    console.post("/write", "", line(shown).as_bytes()).await;
    let (_, _, page) = console.get("/").await;
    assert_eq!((names(&page), page.contains("and more")), (shown, true));
    assert!(page.contains("m,n=000/v") && !page.contains(&format!("m,n={shown}/v")));
}

#[tokio::test]
async fn uploads_that_are_not_shown_are_counted() {
    let console = start(engine()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("data/&lt;big&gt;"), "{page}");
    assert!(page.contains("and 2 more"), "{page}");
}
