//! Refused input: other versions, garbage, counts and ranges that cannot be.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bywash_client::message::{
    Bounds, ByteRange, Conditions, Delete, ErrorCode, Get, GetObject, Hello, MAGIC, Reply, Request,
    Resume,
};
use bywash_local::{ListenError, Listener};

use crate::door::{Door, RawClient, wait_for};

fn failure(reply: Option<Reply>) -> (ErrorCode, String) {
    match reply {
        Some(Reply::Error(failure)) => (failure.code, failure.message),
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn other_version_of_the_protocol_is_refused_with_a_sentence() {
    let door = Door::new(16 << 20);
    let mut client = RawClient::connect(&door);
    let hello = Request::Hello(Hello {
        magic: MAGIC,
        version: 99,
        program: "future".to_owned(),
    });
    client.send(&RawClient::request(1, &hello));
    let (code, message) = failure(client.receive());
    assert_eq!(code, ErrorCode::Protocol);
    assert!(
        message.contains("99") && message.contains("same release"),
        "{message}"
    );
    assert_eq!(client.receive(), None);
}

#[test]
fn garbage_closes_its_connection_alone() {
    let door = Door::new(16 << 20);
    door.warm("a", 100);
    let hello = RawClient::hello();
    let after = |bytes: &[u8]| [hello.as_slice(), bytes].concat();
    let giant = after(&[0xFF, 0xFF, 0xFF, 0x7F, 1, 0, 0, 0, 1, 0, 0, 0]);
    let unknown_kind = after(&[0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0]);
    let odd_zeros = after(&[0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0]);
    let unknown_request = after(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 200]);
    // A list of four billion elements in a message of five bytes.
    let count = after(&[
        5, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 14, 0xFF, 0xFF, 0xFF, 0xFF,
    ]);
    let http = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
    for bytes in [
        giant,
        unknown_kind,
        odd_zeros,
        unknown_request,
        count,
        http,
        after(&hello),
    ] {
        let mut client = RawClient::connect(&door);
        client.send(&bytes);
        let mut rest = Vec::new();
        // The server ends the connection, with or without a reason.
        let _ = client.0.read_to_end(&mut rest);
    }
    door.wait_idle();
    assert_eq!(door.bucket().get("a").unwrap().bytes.len(), 100);
}

#[test]
fn requests_that_cannot_be_are_refused_by_their_reason() {
    let door = Door::new(64 << 20);
    door.warm("a", 100);
    let mut client = RawClient::connect(&door);
    client.send(&RawClient::hello());
    client.receive().unwrap();
    let object = |ranges| GetObject {
        bucket: "data".to_owned(),
        key: "a".to_owned(),
        conditions: Conditions {
            if_match: None,
            if_none_match: None,
            version: None,
        },
        ranges,
    };
    let bounds = |start, end| ByteRange::Bounded(Bounds { start, end });
    let get = |objects| {
        Request::Get(Get {
            objects,
            inline_bytes: 0,
            deadline_ms: 10_000,
        })
    };
    let wrong = [
        (vec![], ErrorCode::InvalidArgument),
        (vec![bounds(5, 5)], ErrorCode::InvalidArgument),
        (vec![bounds(6, 5)], ErrorCode::InvalidArgument),
        (
            vec![ByteRange::Whole(()), bounds(0, 1)],
            ErrorCode::InvalidArgument,
        ),
        (vec![bounds(100, 200)], ErrorCode::InvalidRange),
        (
            vec![bounds(0, 1), bounds(u64::MAX - 1, u64::MAX)],
            ErrorCode::InvalidRange,
        ),
        (vec![ByteRange::From(u64::MAX)], ErrorCode::InvalidRange),
    ];
    for (number, (ranges, code)) in wrong.into_iter().enumerate() {
        client.send(&RawClient::request(2, &get(vec![object(ranges)])));
        let Some(Reply::Failed(failed)) = client.receive() else {
            panic!("request {number} should fail");
        };
        assert_eq!(failed.code, code, "request {number}: {}", failed.message);
        assert_eq!(client.receive(), Some(Reply::Done(())));
    }
    let many = (0..10_001).map(|_| object(vec![bounds(0, 1)])).collect();
    client.send(&RawClient::request(3, &get(many)));
    assert_eq!(failure(client.receive()).0, ErrorCode::Limit);
    let delete = Request::Delete(Delete {
        bucket: "data".to_owned(),
        keys: (0..1001).map(|key| format!("k{key}")).collect(),
        if_match: None,
        deadline_ms: 10_000,
    });
    client.send(&RawClient::request(3, &delete));
    assert_eq!(failure(client.receive()).0, ErrorCode::InvalidArgument);
    client.send(&RawClient::request(4, &Request::Finish(())));
    assert_eq!(failure(client.receive()).0, ErrorCode::InvalidArgument);
    let resume = Request::Resume(Resume {
        bucket: "data".to_owned(),
        token: vec![1, 2, 3],
    });
    client.send(&RawClient::request(5, &resume));
    assert_eq!(failure(client.receive()).0, ErrorCode::InvalidArgument);
}

#[test]
fn client_without_a_hello_is_closed() {
    let door = Door::new(16 << 20);
    let mut silent = RawClient::connect(&door);
    assert_eq!(silent.receive(), None);
    door.wait_idle();
}

#[test]
fn client_that_takes_nothing_of_its_reply_is_closed() {
    let door = Door::new(64 << 20);
    door.warm("a", 8 << 20);
    let mut client = RawClient::connect(&door);
    client.send(&RawClient::hello());
    client.receive().unwrap();
    let get = Request::Get(Get {
        objects: vec![GetObject {
            bucket: "data".to_owned(),
            key: "a".to_owned(),
            conditions: Conditions {
                if_match: None,
                if_none_match: None,
                version: None,
            },
            ranges: vec![ByteRange::Whole(())],
        }],
        inline_bytes: u32::MAX,
        deadline_ms: 60_000,
    });
    client.send(&RawClient::request(2, &get));
    // More than the socket holds waits; nobody reads it.
    wait_for(|| door.stats().clients == 0);
    drop(client);
}

#[test]
fn addresses_are_signed_for_seven_days_at_most() {
    let door = Door::new(16 << 20);
    let bucket = door.bucket();
    let sign = |days: u64| {
        let expires = Duration::from_secs(days * 24 * 3600);
        bucket.sign("GET", "k", expires).unwrap_err()
    };
    assert_eq!(sign(8).code(), ErrorCode::InvalidArgument);
    assert_eq!(sign(0).code(), ErrorCode::InvalidArgument);
    // This server has no key.
    assert_eq!(sign(7).code(), ErrorCode::Unsupported);
}

#[test]
fn socket_is_for_this_user_alone() {
    let door = Door::new(16 << 20);
    let mode = std::fs::metadata(&door.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn place_of_a_living_server_is_not_taken_and_that_of_a_dead_one_is() {
    let door = Door::new(16 << 20);
    let second = door.run(async { Listener::bind(&door.socket) });
    assert!(matches!(second, Err(ListenError::Taken(_))), "{second:?}");
    assert!(door.client().buckets().is_ok(), "the first goes on");
    door.stop();
    // A socket that nobody listens at, as after `kill -9`.
    wait_for(|| {
        let listener = std::os::unix::net::UnixListener::bind(&door.socket);
        drop(listener);
        door.socket.exists()
    });
    let third = door.run(async { Listener::bind(&door.socket) }).unwrap();
    drop(third);
    assert!(!door.socket.exists(), "removed at its end");
    std::fs::write(&door.socket, b"a file").unwrap();
    let file = door.run(async { Listener::bind(&door.socket) });
    assert!(matches!(file, Err(ListenError::NotASocket(_))), "{file:?}");
    assert_eq!(std::fs::read(&door.socket).unwrap(), b"a file");
}

#[test]
fn folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let door = Door::new(16 << 20);
    let bound = door.run(async { Listener::bind(&folder.path().join("s.sock")) });
    assert!(matches!(bound, Err(ListenError::Io(..))), "{bound:?}");
}

#[test]
fn socket_in_a_folder_with_a_long_path_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("n".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let door = Door::new(16 << 20);
    let socket = long.join("local.sock");
    let listener = door.run(async { Listener::bind(&socket) }).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = door.local.clone().serve(listener, async move {
        let _ = stopped.await;
    });
    let served = door.spawn(serving);
    assert!(
        bywash_client::Client::connect_to(&socket)
            .unwrap()
            .buckets()
            .is_ok()
    );
    stop.send(()).unwrap();
    door.run(served).unwrap();
    assert!(!socket.exists());
}
