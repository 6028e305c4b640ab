//! Block streams.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures::stream;

use super::*;
use crate::limits::MAX_FRAME_BYTES;

/// Pieces of one sequence of bytes, of these lengths.
fn pieces(lengths: &[usize]) -> Vec<Bytes> {
    let mut at = 0;
    let piece = |length: &usize| {
        let bytes = (at..at + length).map(|at| (at % 251) as u8).collect();
        at += length;
        bytes
    };
    lengths.iter().map(piece).collect()
}

fn serving(pieces: Vec<Bytes>) -> Service {
    Service::reading(move |_| {
        let items: Vec<_> = pieces.iter().cloned().map(Ok).collect();
        async { Ok(stream::iter(items).boxed()) }.boxed()
    })
}

#[tokio::test]
async fn bytes_are_exact_around_the_borders_of_frames() {
    let most = MAX_FRAME_BYTES;
    for lengths in [
        vec![1],
        vec![most - 1],
        vec![most],
        vec![most + 1],
        vec![3 * most],
        vec![0, 1, 0, most, 7, 0],
        vec![8192; 100],
    ] {
        let expected = pieces(&lengths).concat();
        let port = start(serving(pieces(&lengths))).await;
        let client = client();
        // Twice over one connection.
        for _ in 0..2 {
            let stream = read(&client, &port.address, expected.len() as u64).await;
            let got = collect(stream.unwrap()).await.unwrap();
            assert!(got == expected, "{lengths:?}");
        }
        let asked = port.service.reads.lock().unwrap();
        let wanted = wanted(expected.len() as u64);
        assert_eq!(asked[0], (CLIENT, wanted, false));
    }
}

/// Passes connections on to a port, and counts them.
async fn relay(to: String) -> (PeerAddress, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, SeqCst);
            let mut to = TcpStream::connect(&to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    (address(port), connections)
}

#[tokio::test]
async fn reader_that_stops_at_the_last_byte_leaves_a_connection_that_is_used_again() {
    const LENGTH: usize = 300_000;
    let port = start(serving(pieces(&[LENGTH]))).await;
    let (relayed, connections) = relay(port.address.address.clone()).await;
    let client = client();
    for _ in 0..20 {
        let stream = read(&client, &relayed, LENGTH as u64).await;
        let (mut stream, mut received) = (stream.unwrap(), 0);
        while received < LENGTH {
            received += stream.next().await.unwrap().unwrap().len();
        }
    }
    // A busy machine may be late with an end.
    assert!(connections.load(SeqCst) < 5, "{connections:?}");
}

#[tokio::test]
async fn refusals_of_the_service_arrive_as_they_are() {
    for error in [
        PeerError::Absent,
        PeerError::Busy,
        PeerError::OtherSettings,
        PeerError::Foreign,
        PeerError::Unreachable,
    ] {
        let port = start(Service::reading(move |_| async move { Err(error) }.boxed())).await;
        assert_eq!(read(&client(), &port.address, 9).await.err(), Some(error));
        let peeked = client()
            .read(&port.address, &wanted(9), true, PATIENCE)
            .await;
        assert_eq!(peeked.err(), Some(error));
        assert!(port.service.reads.lock().unwrap()[1].2, "a peek is one");
    }
}

#[tokio::test]
async fn slow_service_keeps_a_reader_while_frames_arrive() {
    let slow = || {
        Service::reading(|_| {
            async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                Ok(stream::iter([Ok(Bytes::from_static(b"123456789"))]).boxed())
            }
            .boxed()
        })
    };
    let (patience, nine) = (Duration::from_millis(500), wanted(9));
    let port = start(slow()).await;
    let client = client();
    let found = client.read(&port.address, &nine, false, patience).await;
    let found = found.unwrap();
    assert_eq!(found.rate, RATE);
    assert_eq!(collect(found.bytes).await.unwrap(), b"123456789");
    // Without frames the patience ends.
    let silent = PortSettings {
        alive: Duration::from_secs(60),
        ..settings()
    };
    let port = start_with(slow(), &keys(&[1]), silent).await;
    let stream = client.read(&port.address, &nine, false, patience).await;
    assert_eq!(stream.err(), Some(PeerError::Unreachable));
}

#[tokio::test]
async fn failure_of_the_origin_ends_a_stream_with_its_message() {
    let failing = |before: &'static [u8]| {
        Service::reading(move |_| {
            let error = object_store::Error::NotSupported {
                source: "the origin is away".into(),
            };
            let first = stream::iter((!before.is_empty()).then(|| Ok(Bytes::from(before))));
            let items = first.chain(stream::iter([Err(error)]));
            async { Ok(items.boxed()) }.boxed()
        })
    };
    let port = start(failing(b"1234")).await;
    let error = collect(read(&client(), &port.address, 9).await.unwrap()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the origin is away"), "{error}");
    let port = start(failing(b"")).await;
    let refused = read(&client(), &port.address, 9).await.err();
    assert_eq!(refused, Some(PeerError::Absent));
}

#[tokio::test]
async fn stream_of_another_length_than_the_range_is_an_error() {
    let port = start(serving(pieces(&[4, 4]))).await;
    for length in [9, 7] {
        let stream = read(&client(), &port.address, length).await.unwrap();
        assert!(collect(stream).await.is_err(), "{length}");
    }
    let stream = read(&client(), &port.address, 8).await.unwrap();
    assert_eq!(collect(stream).await.unwrap().len(), 8);
}

/// Frames of a stream of 20 bytes.
fn body() -> Vec<u8> {
    let mut writer = frame::FrameWriter::new();
    let mut body = writer.alive().to_vec();
    for byte in [1, 2] {
        body.extend_from_slice(&writer.data(&mut Bytes::from(vec![byte; 10])).concat());
    }
    body.extend_from_slice(&writer.end(20));
    body
}

#[tokio::test]
async fn flipped_bit_early_end_and_further_bytes_are_errors() {
    let client = client();
    let got = async |body: Vec<u8>| {
        let to = raw_server(body).await;
        collect(read(&client, &to, 20).await.unwrap()).await
    };
    assert_eq!(got(body()).await.unwrap(), [[1; 10], [2; 10]].concat());
    let mut flipped = body();
    // In the payload of the second frame of data: three heads and one payload precede it.
    flipped[3 * 9 + 10 + 4] ^= 1;
    assert!(got(flipped).await.is_err());
    assert_eq!(client.damaged(), 1);
    for missing in [1, 17, 18, 25] {
        let mut early = body();
        early.truncate(body().len() - missing);
        assert!(got(early).await.is_err(), "{missing}");
    }
    let mut further = body();
    further.extend_from_slice(&frame::FrameWriter::new().alive());
    assert!(got(further).await.is_err());
    assert_eq!(client.damaged(), 1, "the others are no damage");
}

#[tokio::test]
async fn responses_that_are_not_of_the_protocol_are_unreachable() {
    let mut writer = frame::FrameWriter::new();
    let response = writer.response(b"[\"done\"]").unwrap();
    let data = writer.data(&mut Bytes::from_static(b"1")).concat();
    let other = |text: &[u8]| frame::FrameWriter::new().response(text).unwrap().to_vec();
    let wrong = other(b"[\"gone\"]");
    // As many responses as requests.
    let (none, two) = (other(b"[]"), other(b"[\"done\",\"done\"]"));
    let further = [&response[..], &data[..]].concat();
    for body in [wrong, none, two, further, data, vec![9; 100], Vec::new()] {
        let to = raw_server(body.clone()).await;
        let got = call(&client(), &to).await;
        assert_eq!(got, Err(PeerError::Unreachable), "{body:?}");
    }
    let to = raw_server(response.to_vec()).await;
    assert_eq!(call(&client(), &to).await, Ok(PeerResponse::Done));
    let to = raw_server(response.to_vec()).await;
    let refused = read(&client(), &to, 1).await.err();
    assert_eq!(refused, Some(PeerError::Unreachable));
}

/// A stream of pieces of 64 KiB that counts those it was asked for.
fn counted(count: Arc<AtomicU64>, total: u64) -> Service {
    let piece = Bytes::from(vec![3; 64 << 10]);
    Service::reading(move |_| {
        let (count, piece) = (Arc::clone(&count), piece.clone());
        let items = stream::iter(0..total).map(move |_| {
            count.fetch_add(1, SeqCst);
            Ok(piece.clone())
        });
        async { Ok(items.boxed()) }.boxed()
    })
}

#[tokio::test]
async fn slow_reader_slows_the_service_down() {
    const PIECES: u64 = 2048;
    let count = Arc::new(AtomicU64::new(0));
    let port = start(counted(Arc::clone(&count), PIECES)).await;
    let mut stream = read(&client(), &port.address, PIECES << 16).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    // Until the buffers of both sockets are full.
    let mut before = 0;
    while before != count.load(SeqCst) {
        before = count.load(SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(before < PIECES / 4, "{before} pieces of 64 KiB ahead");
    let rest = collect(stream).await.unwrap();
    assert_eq!((first.len() + rest.len()) as u64, PIECES << 16);
    assert_eq!(count.load(SeqCst), PIECES);
}

#[tokio::test]
async fn reader_that_stops_reading_is_cut() {
    let count = Arc::new(AtomicU64::new(0));
    let short = PortSettings {
        stall: Duration::from_millis(100),
        ..settings()
    };
    let port = start_with(counted(count, 2048), &keys(&[1]), short).await;
    let stream = read(&client(), &port.address, 2048 << 16).await.unwrap();
    // The only stream that the port may have ends.
    port.stop.send(()).unwrap();
    assert_eq!(
        port.ended.await.unwrap(),
        0,
        "the server did not cut it at its stop"
    );
    assert!(collect(stream).await.is_err());
}

#[tokio::test]
async fn node_that_falls_silent_ends_a_stream() {
    let silent = || {
        Service::reading(|_| {
            let first = stream::iter([Ok(Bytes::from_static(b"1234"))]);
            async { Ok(first.chain(stream::pending()).boxed()) }.boxed()
        })
    };
    let quiet = PortSettings {
        alive: Duration::from_secs(60),
        stall: Duration::from_millis(50),
        ..settings()
    };
    let port = start_with(silent(), &keys(&[1]), quiet).await;
    let client = client_with("test", &keys(&[1]), quiet);
    let stream = read(&client, &port.address, 9).await.unwrap();
    let error = collect(stream).await.unwrap_err().to_string();
    assert!(error.contains("no frame for too long"), "{error}");
}

#[tokio::test]
async fn client_that_leaves_stops_the_stream_of_the_service() {
    let (held, dropped) = oneshot::channel::<()>();
    let once = Mutex::new(Some(held));
    let port = start(Service::reading(move |_| {
        let held = once.lock().unwrap().take();
        let first = stream::iter([Ok(Bytes::from_static(b"1234"))]);
        let rest = stream::unfold(held, |held| async move {
            let _held = held;
            std::future::pending().await
        });
        async { Ok(first.chain(rest).boxed()) }.boxed()
    }))
    .await;
    let mut stream = read(&client(), &port.address, 9).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "1234");
    drop(stream);
    assert!(dropped.await.is_err(), "the service's stream is dropped");
}

#[tokio::test]
async fn streams_beyond_the_limit_are_busy() {
    let one = PortSettings {
        block_streams: 1,
        ..settings()
    };
    let service = Service::reading(|_| {
        let first = stream::iter([Ok(Bytes::from_static(b"1234"))]);
        async { Ok(first.chain(stream::pending()).boxed()) }.boxed()
    });
    let port = start_with(service, &keys(&[1]), one).await;
    let client = client();
    let held = read(&client, &port.address, 9).await.unwrap();
    let refused = read(&client, &port.address, 9).await.err();
    assert_eq!(refused, Some(PeerError::Busy));
    // Calls have their own limit.
    assert!(call(&client, &port.address).await.is_ok());
    drop(held);
    while let Err(error) = read(&client, &port.address, 9).await {
        assert_eq!(error, PeerError::Busy);
        tokio::task::yield_now().await;
    }
}
