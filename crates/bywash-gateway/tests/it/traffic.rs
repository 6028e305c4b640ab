//! Tests of request statistics.

use bywash::traffic::RequestKind;

use crate::server::Server;

#[tokio::test]
async fn requests_are_counted_timed_and_their_objects_ranked() {
    let server = Server::anonymous().await;
    for key in ["cold", "hot"] {
        let path = format!("/memory/{key}");
        server.put(&path, &[], b"12345").await.expect(200);
        server.get(&path, &[]).await.expect(200);
    }
    server.get("/memory/hot", &[]).await.expect(200);
    server.get("/memory/absent", &[]).await.expect(404);
    server.get("/memory?list-type=2", &[]).await.expect(200);
    let engine = server.engine.clone();
    // A request is recorded when its connection has finished with it.
    server.stopped().await;
    let traffic = engine.traffic();
    let stats = traffic.stats();
    assert_eq!((stats.requests, stats.failed, stats.received), (7, 0, 10));
    assert!(stats.sent > 15, "{stats:?}");
    let latencies = RequestKind::ALL.map(|kind| traffic.latencies(kind).count());
    assert_eq!(latencies, [4, 2, 1]);
    let hottest: Vec<_> = traffic
        .hottest(9)
        .into_iter()
        .map(|object| (object.key, object.requests, object.bytes))
        .collect();
    assert_eq!(
        hottest,
        [("hot".to_owned(), 2, 10), ("cold".to_owned(), 1, 5)]
    );
}
