//! `docs/embedding.md` and its programs.

#[allow(dead_code, reason = "the example's own command line")]
#[path = "../../examples/cached_store.rs"]
mod cached_store;
#[allow(dead_code, reason = "the example's own command line")]
#[path = "../../examples/download_service.rs"]
mod download_service;

const PAGE: &str = include_str!("../../../../docs/embedding.md");
const PROGRAMS: [&str; 3] = [
    include_str!("../../examples/cached_store.rs"),
    include_str!("../../examples/download_service.rs"),
    include_str!("../../examples/blocking_writer.rs"),
];

#[test]
fn page_quotes_its_programs_as_they_are() {
    for program in PROGRAMS {
        let quoted = format!("```rust\n{program}```\n");
        let title = program.lines().next().unwrap_or_default();
        assert!(PAGE.contains(&quoted), "docs/embedding.md has not: {title}");
    }
}

#[tokio::test]
async fn second_query_behind_the_cache_sends_no_request_for_data() {
    let sent = cached_store::run().await.unwrap();
    assert!(sent[0] > 0 && sent[1] == 0, "{sent:?}");
}

#[tokio::test]
async fn clients_of_the_download_service_share_one_download() {
    let (sent, received) = download_service::run().await.unwrap();
    assert_eq!(sent, 16 * received);
}
