#![allow(clippy::unwrap_used, reason = "tests")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Says how much it got, and whether all.
struct Counts;

impl Protocol for Counts {
    fn answer(&self, asked: &Asked) -> Reply {
        let name = asked.query("name").unwrap_or_default();
        let text = format!("{} {} {}", name, asked.body.len(), asked.complete);
        Reply::status(200).with("x-got", &text).body("{}")
    }
}

/// Sends one request of ten bytes; the answer, or nothing if the connection ended.
async fn ask(server: &Server, name: &str) -> String {
    let address = server.url().replace("http://", "");
    let mut connection = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "PUT /a%20b?name={name} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 10\r\n\r\n0123456789"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset is as good as an end here.
    let _ = connection.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn each_fault_does_what_it_says() {
    let server = Server::start(Arc::new(Counts)).await.unwrap();
    let calm = ask(&server, "x%2By+z").await;
    assert!(calm.starts_with("HTTP/1.1 200"), "{calm}");
    assert!(calm.contains("x-got: x+y z 10 true"), "{calm}");
    assert!(calm.ends_with("{}"), "{calm}");

    server.script("name=u", ServerFault::Unavailable);
    assert!(ask(&server, "u").await.starts_with("HTTP/1.1 503"));
    server.script("name=a", ServerFault::UnavailableAfter(4));
    assert!(ask(&server, "a").await.starts_with("HTTP/1.1 503"));
    server.script("name=r", ServerFault::ResetAfter(3));
    assert_eq!(ask(&server, "r").await, "");
    server.script("name=l", ServerFault::AnswerLost);
    assert_eq!(ask(&server, "l").await, "");
    server.script("name=b", ServerFault::BadBody);
    let garbled = ask(&server, "b").await;
    assert!(garbled.starts_with("HTTP/1.1 200"), "{garbled}");
    assert!(garbled.ends_with("{\"<garb"), "{garbled}");

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
async fn a_stalled_request_is_logged_and_never_answered() {
    let server = Server::start(Arc::new(Counts)).await.unwrap();
    server.script("name=s", ServerFault::StallAfter(2));
    let stalled = ask(&server, "s");
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
    // It is given up only when the server has it: else it might never be logged.
    let log = tokio::select! {
        answer = &mut stalled => panic!("it was answered: {answer}"),
        log = logged => log,
    };
    let stalled = tokio::time::timeout(std::time::Duration::from_millis(50), stalled).await;
    assert!(stalled.is_err());
    assert_eq!((log[0].received, log[0].status), (2, None));
}

#[tokio::test]
async fn the_same_seed_draws_the_same_faults_in_any_order() {
    let run = async |names: [&str; 8]| {
        let server = Server::start(Arc::new(Counts)).await.unwrap();
        let kinds = [ServerFaultKind::Unavailable, ServerFaultKind::BadBody];
        server.plan(FaultPlan::seeded(
            7,
            &kinds.map(|kind| (kind, 0.4)),
            u64::MAX,
        ));
        for name in names {
            ask(&server, name).await;
        }
        let mut log: Vec<_> = server
            .take_log()
            .into_iter()
            .map(|one| (one.line, one.fault))
            .collect();
        log.sort_by(|one, other| one.0.cmp(&other.0));
        log
    };
    let forth = run(["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    assert_eq!(forth, run(["d", "h", "g", "c", "f", "b", "a", "e"]).await);
    let struck = forth.iter().filter(|(_, fault)| fault.is_some()).count();
    assert!((1..8).contains(&struck), "{forth:?}");
}

#[tokio::test]
async fn no_more_faults_than_the_plan_has() {
    let server = Server::start(Arc::new(Counts)).await.unwrap();
    server.plan(FaultPlan::seeded(
        1,
        &[(ServerFaultKind::Unavailable, 1.0)],
        2,
    ));
    for _ in 0..4 {
        ask(&server, "a").await;
    }
    let log = server.take_log();
    let statuses: Vec<_> = log.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Some(503), Some(503), Some(200), Some(200)]);
}

#[test]
fn lies_have_distinct_names_and_there_are_fifty_or_more() {
    let names: std::collections::BTreeSet<_> = Lie::ALL.iter().map(|lie| lie.name()).collect();
    assert_eq!(names.len(), Lie::ALL.len());
    assert!(names.len() >= 50, "{}", names.len());
    for &lie in Lie::ALL {
        assert_eq!(Lie::named(lie.name()), Some(lie));
    }
}

/// The response to a GET, to its end or until the server has been silent for some time.
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
async fn each_lie_changes_a_response_and_a_calm_plan_is_honest_again() {
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
    // In a response, or the next: some lies need two.
    let told = async |(target, range): (&str, &str)| {
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
        let about = match lie {
            Lie::HeadLonger | Lie::HeadShorter | Lie::HeadMissing => continue,
            Lie::RangeForWhole => whole,
            lie if lie.is_of_lists() => list,
            _ => object,
        };
        let honest = undated(told(about).await);
        server.plan(FaultPlan::lying(1, &[lie], 1.0));
        let lied = undated(told(about).await);
        server.plan(FaultPlan::calm());
        // The pieces of a drip are the honest bytes.
        assert!(honest != lied || lie == Lie::Drip, "{}", lie.name());
        assert_eq!(undated(told(about).await), honest, "{}", lie.name());
    }
}

#[tokio::test]
async fn lies_of_a_plan_are_told_in_rotation() {
    let store = s3::S3::new();
    let _ = store
        .objects()
        .put("data", "a", "bytes".into(), Default::default(), |_| true);
    let server = Server::start(store).await.unwrap();
    server.plan(FaultPlan::lying(5, &[Lie::NotModified, Lie::Missing], 1.0));
    for _ in 0..4 {
        get(&server, "/data/a", "").await;
    }
    let log = server.take_log();
    let statuses: Vec<_> = log.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Some(304), Some(404), Some(304), Some(404)]);
    server.plan(FaultPlan::lying(5, Lie::ALL, 0.0));
    assert!(get(&server, "/data/a", "").await.ends_with(b"bytes"));
}
