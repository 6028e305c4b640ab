//! Requests that must be rejected or served exactly, one case for each past defect.

use std::time::Duration;

use bytes::Bytes;
use bywash_support::http::{self, HttpResponse};
use bywash_support::sign::{Signer, borrow, sha256_hex};

use super::raw::ask;
use super::{Case, case};
use crate::Trouble;
use crate::client::Expect;
use crate::field::{Field, body};
use crate::process::Setup;
use crate::record::{Class, End};

pub(super) const CASES: &[Case] = &[
    case!("unsigned-headers", unsigned_headers),
    case!("presigned-lifetime", presigned_lifetime),
    case!("newer-operations", newer_operations),
    case!("empty-expect", empty_expect),
    case!("host-names", host_names),
    case!("odd-requests", odd_requests),
    case!("quiet-log", quiet_log),
];

/// Max wait for a response that closes its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends a request without an HTTP client. Its response counts as a hostile one.
async fn send(
    field: &Field,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<HttpResponse> {
    let mut headers = headers.to_vec();
    let length = body.len().to_string();
    if matches!(method, "PUT" | "POST") {
        headers.push(("Content-Length", &length));
    }
    let mut request = http::head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    let reply = ask(field.address(), method, &request, PATIENCE).await.ok();
    field.record.request(Class::Past("hostile"), End::Right);
    reply
}

/// Sends a request signed with the server's key.
async fn signed(
    field: &Field,
    (method, path, query): (&str, &str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<HttpResponse> {
    let (headers, _) = Signer::default().headers(method, path, query, &sha256_hex(body), headers);
    let target = match query {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    };
    send(field, method, &target, &borrow(&headers), body).await
}

/// Records that `reply` is wrong.
fn expect(field: &Field, what: &str, reply: Option<&HttpResponse>, good: impl Fn(&HttpResponse) -> bool) {
    match reply {
        Some(reply) if good(reply) => {}
        Some(reply) => field
            .record
            .found(format!("{what}: {} {}", reply.status, reply.text())),
        None => field.record.found(format!("{what}: no response")),
    }
}

async fn serve(field: &mut Field) -> Result<(), Trouble> {
    let folder = field.bucket("data")?;
    std::fs::write(folder.join("secret"), "the secret")?;
    field.serve(Setup::default()).await?;
    Ok(())
}

/// A signature authorises only what it covers: additional S3 headers are rejected.
async fn unsigned_headers(field: &mut Field) -> Result<(), Trouble> {
    serve(field).await?;
    for (name, value) in [
        ("x-amz-copy-source", "/data/secret"),
        ("x-amz-meta-a", "b"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-acl", "public-read"),
    ] {
        let path = format!("/data/to-{name}");
        let target = Signer::default().presign("PUT", &path, 60);
        let reply = send(field, "PUT", &target, &[(name, value)], b"").await;
        let what = format!("a presigned PUT with an unsigned {name}");
        expect(field, &what, reply.as_ref(), |reply| reply.status >= 400);
        let (headers, _) = Signer::default().headers("PUT", &path, "", &sha256_hex(b""), &[]);
        let mut headers = borrow(&headers);
        headers.push((name, value));
        let reply = send(field, "PUT", &path, &headers, b"").await;
        let what = format!("a signed PUT with an unsigned {name}");
        expect(field, &what, reply.as_ref(), |reply| reply.status >= 400);
        let copied = signed(field, ("GET", &path, ""), &[], b"").await;
        expect(
            field,
            &format!("what {name} wrote"),
            copied.as_ref(),
            |reply| reply.text() != "the secret",
        );
    }
    // Signed headers are applied.
    let target = Signer::default().presign("PUT", "/data/plain", 60);
    let reply = send(field, "PUT", &target, &[], b"plain").await;
    expect(field, "a plain presigned PUT", reply.as_ref(), |reply| {
        reply.status == 200
    });
    Ok(())
}

/// Seven days is the max lifetime of a presigned address; one second more is rejected.
async fn presigned_lifetime(field: &mut Field) -> Result<(), Trouble> {
    serve(field).await?;
    let week = 7 * 24 * 3600;
    for (seconds, good) in [
        (60, true),
        (week, true),
        (week + 1, false),
        (u64::MAX, false),
    ] {
        let target = Signer::default().presign("GET", "/data/secret", seconds);
        let reply = send(field, "GET", &target, &[], b"").await;
        expect(
            field,
            &format!("a lifetime of {seconds} s"),
            reply.as_ref(),
            |reply| (reply.status == 200) == good && (good || reply.status >= 400),
        );
    }
    Ok(())
}

/// Operations newer than the server are refused, and change nothing.
async fn newer_operations(field: &mut Field) -> Result<(), Trouble> {
    serve(field).await?;
    let text = "the object";
    let written = Bytes::from_static(text.as_bytes());
    for (method, query, headers, sent) in [
        ("DELETE", "annotation=", &[][..], ""),
        ("PUT", "annotation=", &[][..], "an annotation"),
        (
            "PUT",
            "renameObject=",
            &[("x-amz-rename-source", "/data/secret")][..],
            "",
        ),
        ("PUT", "encryption=", &[][..], "<ObjectEncryption/>"),
        ("PUT", "someday=", &[][..], "what is to come"),
        ("DELETE", "someday=", &[][..], ""),
        ("POST", "someday=", &[][..], ""),
    ] {
        field.well().put("/data/key", &written).await;
        let reply = signed(
            field,
            (method, "/data/key", query),
            headers,
            sent.as_bytes(),
        )
        .await;
        let what = format!("{method} /data/key?{query}");
        expect(field, &what, reply.as_ref(), |reply| reply.status >= 400);
        field.well().get("/data/key", &written).await;
    }
    field.well().put("/empty-one", &Bytes::new()).await;
    for query in ["metadataConfiguration=", "abac=", "someday="] {
        let reply = signed(field, ("DELETE", "/empty-one", query), &[], b"").await;
        let what = format!("DELETE /empty-one?{query}");
        expect(field, &what, reply.as_ref(), |reply| reply.status >= 400);
        let there = Expect::Status(&[200]);
        field
            .well()
            .send(("HEAD", "/empty-one", ""), &[], b"", &there)
            .await;
    }
    for (path, query) in [("/data/key", "annotation="), ("/data", "abac=")] {
        let reply = signed(field, ("GET", path, query), &[], b"").await;
        let what = format!("GET {path}?{query}");
        expect(field, &what, reply.as_ref(), |reply| reply.status >= 400);
    }
    Ok(())
}

/// An empty body that asks for `100 Continue` gets it, or the connection is closed: older clients take the status for that
/// of their next request.
async fn empty_expect(field: &mut Field) -> Result<(), Trouble> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    serve(field).await?;
    let (headers, _) = Signer::default().headers("PUT", "/data/empty", "", &sha256_hex(b""), &[]);
    let mut headers = borrow(&headers);
    headers.extend([("Expect", "100-continue"), ("Content-Length", "0")]);
    let request = http::head("PUT", "/data/empty", &headers);
    let request = request.replacen("Connection: close\r\n", "", 1);
    let mut socket = tokio::net::TcpStream::connect(field.address()).await?;
    socket.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    // Until it closes, or has nothing more to send.
    let reading = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = socket.read(&mut buffer).await {
            response.extend_from_slice(&buffer[..count]);
        }
    };
    let closed = tokio::time::timeout(Duration::from_secs(3), reading)
        .await
        .is_ok();
    let text = String::from_utf8_lossy(&response).into_owned();
    let end = if text.contains(" 200 ") {
        End::Right
    } else {
        End::Failed(text.clone())
    };
    field.record.request(Class::Well, end);
    let continued = text.starts_with("HTTP/1.1 100");
    if !continued && !closed {
        field.record.found(format!(
            "neither 100 Continue nor a closed connection: {text}"
        ));
    }
    Ok(())
}

/// A host that names a bucket never makes or removes another.
async fn host_names(field: &mut Field) -> Result<(), Trouble> {
    field.bucket("data")?;
    let setup = Setup {
        anonymous: true,
        ..Setup::default()
    };
    field.serve(setup).await?;
    let address = field.address();
    let host_put = "PUT /planted HTTP/1.1\r\nHost: data.localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let status = |reply: std::io::Result<HttpResponse>| reply.map_or(0, |reply| reply.status);
    let reply = status(ask(address, "PUT", host_put.as_bytes(), PATIENCE).await);
    field.record.request(Class::Past("hostile"), End::Right);
    let made = send(field, "HEAD", "/planted", &[], b"").await;
    if made.is_some_and(|made| made.status == 200) {
        field.record.found(format!(
            "PUT /planted of host data.localhost made a bucket, with {reply}"
        ));
    }
    let unknown = "PUT /planted-too HTTP/1.1\r\nHost: data.example.org\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let reply = ask(address, "PUT", unknown.as_bytes(), PATIENCE).await.ok();
    expect(
        field,
        "a host that begins with a bucket's name",
        reply.as_ref(),
        |reply| reply.status == 400,
    );
    let gone = "DELETE /data HTTP/1.1\r\nHost: data.localhost\r\nConnection: close\r\n\r\n";
    let _ = ask(address, "DELETE", gone.as_bytes(), PATIENCE).await;
    let there = send(field, "HEAD", "/data", &[], b"").await;
    expect(
        field,
        "bucket data after DELETE /data of its host",
        there.as_ref(),
        |reply| reply.status == 200,
    );
    Ok(())
}

/// Numbers at the end of their range, no host, two hosts, NUL, names that nothing has.
async fn odd_requests(field: &mut Field) -> Result<(), Trouble> {
    serve(field).await?;
    let range = ("range", "bytes=18446744073709551615-");
    let reply = signed(field, ("GET", "/data/secret", ""), &[range], b"").await;
    expect(
        field,
        "a range from the greatest number",
        reply.as_ref(),
        |reply| reply.status == 416,
    );
    for (what, hosts) in [("no Host", ""), ("two Hosts", "Host: a\r\nHost: b\r\n")] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let reply = ask(field.address(), "GET", request.as_bytes(), PATIENCE)
            .await
            .ok();
        field.record.request(Class::Past("hostile"), End::Right);
        expect(field, what, reply.as_ref(), |reply| reply.status == 400);
    }
    let reply = signed(field, ("PUT", "/data/a%00b", ""), &[], b"x").await;
    expect(field, "a key with NUL", reply.as_ref(), |reply| {
        reply.status == 400
    });
    let list = signed(field, ("GET", "/data", "list-type=2&prefix=a%00"), &[], b"").await;
    expect(field, "NUL in a listing", list.as_ref(), |reply| {
        !reply.body.contains(&0)
            && !reply.text().contains("&#0;")
            && !reply.text().contains("&#x0;")
    });
    let query = format!(
        "GET /series/query?source=a&metric=b&sinec=1 HTTP/1.1\r\nHost: {}\r\nAuthorization: Token {}:{}\r\nConnection: close\r\n\r\n",
        field.admin(),
        bywash_support::sign::KEY,
        bywash_support::sign::SECRET
    );
    let reply = ask(field.admin(), "GET", query.as_bytes(), PATIENCE)
        .await
        .ok();
    expect(
        field,
        "an unknown parameter of /series/query",
        reply.as_ref(),
        |reply| reply.status == 400,
    );
    Ok(())
}

/// Ten thousand requests write nothing to speak of to standard error.
async fn quiet_log(field: &mut Field) -> Result<(), Trouble> {
    serve(field).await?;
    let before = field.logged();
    let (seed, count) = (field.seed, field.campaign.keys / 10 / 16);
    let small = body(seed, 1, 4096);
    field.well().put("/data/small", &small).await;
    field
        .crowd(16, |_| {
            let (mut client, small) = (field.well(), small.clone());
            async move {
                for _ in 0..count {
                    client.get("/data/small", &small).await;
                }
            }
        })
        .await;
    let written = field.logged() - before;
    field.record.figure("log KB", written >> 10);
    // A line of a warning now and then is what a log is for.
    if written > 16 << 10 {
        field.record.found(format!(
            "{written} bytes of standard error for {} requests",
            count * 16
        ));
    }
    Ok(())
}
