//! Requests that must not be served.

use super::*;
use crate::limits::MAX_CALL_BYTES;

const DROP: &str = r#"[{"drop":{"bucket":"b","paths":["k"]}}]"#;
const BLOCK: &str =
    r#"{"bucket":"b","path":"a/b","e_tag":"1","size":9,"start":0,"end":9,"peek":false}"#;

#[tokio::test]
async fn another_cluster_key_is_foreign_and_a_second_one_is_accepted() {
    let port = start(Service::new()).await;
    let foreign = client_with("test", &keys(&[2]), settings());
    assert_eq!(call(&foreign, &port.address).await, Err(PeerError::Foreign));
    // This client accepts the server, which does not accept it.
    let half = client_with("test", &keys(&[2, 1]), settings());
    let refused = call(&half, &port.address).await;
    // The alert may be lost with the connection.
    let expected = [Err(PeerError::Foreign), Err(PeerError::Unreachable)];
    assert!(expected.contains(&refused), "{refused:?}");
    assert_eq!(port.service.executed(), 0);
    let second = client_with("test", &keys(&[1, 2]), settings());
    assert_eq!(call(&second, &port.address).await, Ok(PeerResponse::Done));
}

#[tokio::test]
async fn keys_are_replaced_without_an_interruption() {
    // All have the old key; then both, the old one in use; then both, the new one in use; then the new one.
    let steps: [&[u8]; 4] = [&[1], &[1, 2], &[2, 1], &[2]];
    for pair in steps.windows(2) {
        for (server, from) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (server, from) = (keys(pair[server]), keys(pair[from]));
            let port = start_with(Service::new(), &server, settings()).await;
            let client = client_with("test", &from, settings());
            assert_eq!(
                call(&client, &port.address).await,
                Ok(PeerResponse::Done),
                "{pair:?}"
            );
        }
    }
}

#[tokio::test]
async fn client_without_a_key_and_plain_http_reach_nothing() {
    let port = start(Service::new()).await;
    let mut plain = TcpStream::connect(&port.address.address).await.unwrap();
    let request = raw_request("/v1/call", DROP, ("", ""));
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let _ = plain.read_to_end(&mut response).await;
    assert!(!String::from_utf8_lossy(&response).contains("HTTP"));

    let (verifier, provider) = tls::verifier(&keys(&[1])).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let socket = TcpStream::connect(&port.address.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("node").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    // In TLS 1.3 a client may have ended its handshake when the server refuses it.
    let refused = match connector.connect(name, socket).await {
        Err(_) => true,
        Ok(mut stream) => {
            let _ = stream.write_all(request.as_bytes()).await;
            let mut response = Vec::new();
            let read = stream.read_to_end(&mut response).await;
            read.is_err() && response.is_empty()
        }
    };
    assert!(refused);
    assert_eq!(port.service.executed(), 0);
}

#[tokio::test]
async fn server_that_is_no_node_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = address(listener.local_addr().unwrap().port());
    // It accepts and is silent: the connect limit holds for the handshake too.
    let short = PortSettings {
        connect: Duration::from_millis(50),
        ..settings()
    };
    let client = client_with("test", &keys(&[1]), short);
    assert_eq!(call(&client, &to).await, Err(PeerError::Unreachable));
    // It speaks HTTP without TLS.
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        }
    });
    assert_eq!(
        call(&self::client(), &to).await,
        Err(PeerError::Unreachable)
    );
    let nowhere = PeerAddress {
        address: "no host".to_owned(),
        ..to
    };
    assert_eq!(
        call(&self::client(), &nowhere).await,
        Err(PeerError::Unreachable)
    );
}

#[tokio::test]
async fn another_cluster_etcd_or_registration_is_refused() {
    let port = start(Service::new()).await;
    let other = client_with("other", &keys(&[1]), settings());
    assert_eq!(call(&other, &port.address).await, Err(PeerError::Foreign));

    // Either end may not know etcd yet.
    let client = client();
    port.identity.set_etcd(Some(7));
    assert!(call(&client, &port.address).await.is_ok());
    client.identity().set_etcd(Some(8));
    assert_eq!(call(&client, &port.address).await, Err(PeerError::Foreign));
    port.identity.set_etcd(None);
    assert!(call(&client, &port.address).await.is_ok());
    port.identity.set_etcd(Some(8));
    assert!(call(&client, &port.address).await.is_ok());

    let executed = port.service.executed();
    let earlier = PeerAddress {
        boot: Boot(10),
        ..port.address.clone()
    };
    assert_eq!(call(&client, &earlier).await, Err(PeerError::Unreachable));
    assert_eq!(
        read(&client, &earlier, 9).await.err(),
        Some(PeerError::Unreachable)
    );
    let node = PeerAddress {
        node: NodeId(3),
        ..port.address.clone()
    };
    assert_eq!(call(&client, &node).await, Err(PeerError::Foreign));
    assert_eq!(port.service.executed(), executed);
    // The word of an earlier process is asked for by its registration.
    let word = PeerRequest::Released(Boot(10));
    let got = client.call(&earlier, vec![word.clone()], &|| ()).await;
    assert_eq!(got, Ok(vec![PeerResponse::Done]));
    // No other request may be in the same message.
    let got = client
        .call(&earlier, vec![word, drop_request()], &|| ())
        .await;
    assert_eq!(got, Err(PeerError::Unreachable));
}

#[tokio::test]
async fn heads_and_bodies_that_are_not_of_the_protocol_are_refused() {
    let port = start(Service::new()).await;
    let status = async |path: &str, body: &str, change: (&str, &str)| {
        let response = raw_exchange(&port, raw_request(path, body, change).as_bytes()).await;
        response.split(' ').nth(1).map(str::to_owned)
    };
    let padded = |length| DROP.to_owned() + &" ".repeat(length - DROP.len());
    let long = padded(MAX_CALL_BYTES + 1);
    for (path, body, change, expected) in [
        ("/v1/call", DROP, ("protocol: 2", "protocol: 1"), "426"),
        ("/v1/call", DROP, ("bywash-protocol: 2\r\n", ""), "426"),
        ("/v1/call", DROP, ("cluster: test", "cluster: prod"), "421"),
        ("/v1/call", DROP, ("bywash-cluster: test\r\n", ""), "421"),
        ("/v1/call", DROP, ("000b", "000c"), "409"),
        ("/v1/blocks", BLOCK, ("000b", "000c"), "409"),
        ("/v1/call", DROP, ("0001/", "0003/"), "421"),
        ("/v1/call", DROP, ("0002/", "2/"), "400"),
        ("/v1/call", DROP, ("000b", "b"), "400"),
        ("/v1/call", DROP, ("host: node", "bywash-etcd: 7"), "400"),
        ("/v1/call", "{}", ("", ""), "400"),
        ("/v1/call", "[]", ("", ""), "400"),
        ("/v1/call", BLOCK, ("", ""), "400"),
        ("/v1/blocks", DROP, ("", ""), "400"),
        ("/v1/other", DROP, ("", ""), "404"),
        ("/v1/call", DROP, ("POST", "PUT"), "404"),
        ("/v1/call", &long, ("", ""), "413"),
    ] {
        let got = status(path, body, change).await;
        assert_eq!(got.as_deref(), Some(expected), "{path} {change:?}");
    }
    assert_eq!(port.service.executed(), 0);
    // The same without a change is served.
    let got = status("/v1/call", DROP, ("", "")).await;
    assert_eq!(got.as_deref(), Some("200"));
    let exact = padded(MAX_CALL_BYTES);
    assert_eq!(
        status("/v1/call", &exact, ("", "")).await.as_deref(),
        Some("200")
    );
    assert_eq!(port.service.executed(), 2);
}

#[tokio::test]
async fn body_that_never_ends_is_refused_at_its_limit() {
    let short = PortSettings {
        body: Duration::from_millis(20),
        ..settings()
    };
    let port = start_with(Service::new(), &keys(&[1]), short).await;
    let whole = raw_request("/v1/call", DROP, ("", ""));
    let response = raw_exchange(&port, &whole.as_bytes()[..whole.len() - 1]).await;
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    assert_eq!(port.service.executed(), 0);
}
