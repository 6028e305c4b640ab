#![allow(clippy::unwrap_used, reason = "tests")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Returns the length of the body, and whether it is complete.
struct BodyLength;

impl Protocol for BodyLength {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let name = request.query("name").unwrap_or_default();
        let text = format!("{} {} {}", name, request.body.len(), request.complete);
        HttpResponse::status(200).with("x-got", &text).body("{}")
    }
}

/// Sends one request of ten bytes. Returns the response, or nothing if the connection ended.
async fn send(server: &Server, name: &str) -> String {
    let address = server.url().replace("http://", "");
    let mut connection = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "PUT /a%20b?name={name} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 10\r\n\r\n0123456789"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    // A reset counts as the end.
    let _ = connection.read_to_end(&mut response).await;
    String::from_utf8(response).unwrap()
}

#[tokio::test]
async fn each_fault_has_its_effect() {
    let server = Server::start(Arc::new(BodyLength)).await.unwrap();
    let healthy = send(&server, "x%2By+z").await;
    assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
    assert!(healthy.contains("x-got: x+y z 10 true"), "{healthy}");
    assert!(healthy.ends_with("{}"), "{healthy}");

    server.script("name=u", ServerFault::Unavailable);
    assert!(send(&server, "u").await.starts_with("HTTP/1.1 503"));
    server.script("name=a", ServerFault::UnavailableAfter(4));
    assert!(send(&server, "a").await.starts_with("HTTP/1.1 503"));
    server.script("name=r", ServerFault::ResetAfter(3));
    assert_eq!(send(&server, "r").await, "");
    server.script("name=l", ServerFault::LoseResponse);
    assert_eq!(send(&server, "l").await, "");
    server.script("name=b", ServerFault::BadBody);
    let corrupt = send(&server, "b").await;
    assert!(corrupt.starts_with("HTTP/1.1 200"), "{corrupt}");
    assert!(corrupt.ends_with("{\"<garb"), "{corrupt}");

    let log = server.take_log();
    let seen: Vec<_> = log.iter().map(|one| (one.received, one.status)).collect();
    let expected = [
        (10, Some(200)),
        (10, Some(503)),
        (4, Some(503)),
        (3, None),
        (10, None),
        (10, Some(200)),
    ];
    assert_eq!(seen, expected);
    assert_eq!(log[0].line, "PUT /a%20b?name=x%2By+z");
}

#[tokio::test]
async fn stalled_request_is_logged_without_a_response() {
    let server = Server::start(Arc::new(BodyLength)).await.unwrap();
    server.script("name=s", ServerFault::StallAfter(2));
    let stalled = send(&server, "s");
    tokio::pin!(stalled);
    let logged = async {
        loop {
            let log = server.take_log();
            if !log.is_empty() {
                return log;
            }
            tokio::task::yield_now().await;
        }
    };
    // Cancelled only after the server has read it; otherwise it might not be logged.
    let log = tokio::select! {
        response = &mut stalled => panic!("a response: {response}"),
        log = logged => log,
    };
    let stalled = tokio::time::timeout(std::time::Duration::from_millis(50), stalled).await;
    assert!(stalled.is_err());
    assert_eq!((log[0].received, log[0].status), (2, None));
}

#[tokio::test]
async fn seed_draws_the_same_faults_in_any_order_of_requests() {
    let run = async |names: [&str; 8]| {
        let server = Server::start(Arc::new(BodyLength)).await.unwrap();
        let kinds = [ServerFaultKind::Unavailable, ServerFaultKind::BadBody];
        server.set_fault_plan(FaultPlan::seeded(
            7,
            &kinds.map(|kind| (kind, 0.4)),
            u64::MAX,
        ));
        for name in names {
            send(&server, name).await;
        }
        let mut log: Vec<_> = server
            .take_log()
            .into_iter()
            .map(|one| (one.line, one.fault))
            .collect();
        log.sort_by(|one, other| one.0.cmp(&other.0));
        log
    };
    let forward = run(["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    assert_eq!(forward, run(["d", "h", "g", "c", "f", "b", "a", "e"]).await);
    let faults = forward.iter().filter(|(_, fault)| fault.is_some()).count();
    assert!((1..8).contains(&faults), "{forward:?}");
}

#[tokio::test]
async fn plan_has_no_more_than_its_maximum_of_faults() {
    let server = Server::start(Arc::new(BodyLength)).await.unwrap();
    server.set_fault_plan(FaultPlan::seeded(
        1,
        &[(ServerFaultKind::Unavailable, 1.0)],
        2,
    ));
    for _ in 0..4 {
        send(&server, "a").await;
    }
    let log = server.take_log();
    let statuses: Vec<_> = log.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Some(503), Some(503), Some(200), Some(200)]);
}

#[test]
fn at_least_fifty_lies_have_distinct_names() {
    let names: std::collections::BTreeSet<_> = Lie::ALL.iter().map(|lie| lie.name()).collect();
    assert_eq!(names.len(), Lie::ALL.len());
    assert!(names.len() >= 50, "{}", names.len());
    for &lie in Lie::ALL {
        assert_eq!(Lie::named(lie.name()), Some(lie));
    }
}

/// Reads the response to a GET to its end, or until the server is silent for 300 ms.
async fn get(server: &Server, target: &str, range: &str) -> Vec<u8> {
    let address = server.url().replace("http://", "");
    let mut connection = TcpStream::connect(&address).await.unwrap();
    let request =
        format!("GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{range}\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while response.len() < 1 << 20 {
        let read = connection.read(&mut piece);
        match tokio::time::timeout(std::time::Duration::from_millis(300), read).await {
            Ok(Ok(read)) if read > 0 => response.extend_from_slice(&piece[..read]),
            _ => break,
        }
    }
    response
}

#[tokio::test]
async fn each_lie_changes_a_response_until_the_plan_has_none() {
    let store = s3::S3::new();
    for key in ["p/a", "p/b"] {
        let body = Bytes::from(vec![7; 40_000]);
        let _ = store
            .objects()
            .put("data", key, body, Default::default(), |_| true);
    }
    let server = Server::start(store).await.unwrap();
    let object = ("/data/p/a", "range: bytes=100-19999\r\n");
    let whole = ("/data/p/a", "");
    let list = ("/data?list-type=2&prefix=p/", "");
    // Two responses: some lies change only each second one.
    let two_responses = async |(target, range): (&str, &str)| {
        let first = get(&server, target, range).await;
        (first, get(&server, target, range).await)
    };
    let undated = |response: (Vec<u8>, Vec<u8>)| {
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let lines = text
                .split("\r\n")
                .filter(|line| !line.starts_with("date: "));
            lines.collect::<Vec<_>>().join("\r\n")
        };
        (text(response.0), text(response.1))
    };
    for &lie in Lie::ALL {
        let target = match lie {
            Lie::HeadLonger | Lie::HeadShorter | Lie::HeadMissing => continue,
            Lie::RangeForWhole => whole,
            lie if lie.is_list_lie() => list,
            _ => object,
        };
        let honest = undated(two_responses(target).await);
        server.set_fault_plan(FaultPlan::lying(1, &[lie], 1.0));
        let changed = undated(two_responses(target).await);
        server.set_fault_plan(FaultPlan::none());
        // A drip changes only the timing.
        assert!(honest != changed || lie == Lie::Drip, "{}", lie.name());
        assert_eq!(
            undated(two_responses(target).await),
            honest,
            "{}",
            lie.name()
        );
    }
}

#[tokio::test]
async fn lies_of_a_plan_apply_in_rotation() {
    let store = s3::S3::new();
    let _ = store
        .objects()
        .put("data", "a", "bytes".into(), Default::default(), |_| true);
    let server = Server::start(store).await.unwrap();
    server.set_fault_plan(FaultPlan::lying(5, &[Lie::NotModified, Lie::Missing], 1.0));
    for _ in 0..4 {
        get(&server, "/data/a", "").await;
    }
    let log = server.take_log();
    let statuses: Vec<_> = log.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Some(304), Some(404), Some(304), Some(404)]);
    server.set_fault_plan(FaultPlan::lying(5, Lie::ALL, 0.0));
    assert!(get(&server, "/data/a", "").await.ends_with(b"bytes"));
}
