//! Requests that must be rejected or executed exactly, one case for each past defect.

use std::time::Duration;

use bytes::Bytes;
use bywash_support::http::{self, HttpResponse};
use bywash_support::sign::{Signer, borrow, sha256_hex};

use super::raw::exchange;
use super::{Case, case};
use crate::CaseError;
use crate::client::Expect;
use crate::context::{CaseContext, body};
use crate::process::Setup;
use crate::record::{Class, Outcome};

pub(super) const CASES: &[Case] = &[
    case!("unsigned-headers", unsigned_headers),
    case!("presigned-lifetime", presigned_lifetime),
    case!("newer-operations", newer_operations),
    case!("empty-expect", empty_expect),
    case!("host-names", host_names),
    case!("odd-requests", odd_requests),
    case!("quiet-log", quiet_log),
];

/// Maximum wait for a response that closes its connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request without an HTTP client, and records it as one of a hostile client.
async fn send(
    context: &CaseContext,
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
    let response = exchange(context.address(), method, &request, RESPONSE_TIMEOUT)
        .await
        .ok();
    context
        .record
        .request(Class::Excessive("hostile"), Outcome::Correct);
    response
}

/// Sends a request signed with the server's key.
async fn signed(
    context: &CaseContext,
    (method, path, query): (&str, &str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<HttpResponse> {
    let (headers, _) = Signer::default().headers(method, path, query, &sha256_hex(body), headers);
    let target = match query {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    };
    send(context, method, &target, &borrow(&headers), body).await
}

/// Records a finding if there is no response or `good` returns `false` for it.
fn expect(
    context: &CaseContext,
    what: &str,
    response: Option<&HttpResponse>,
    good: impl Fn(&HttpResponse) -> bool,
) {
    match response {
        Some(response) if good(response) => {}
        Some(response) => {
            context
                .record
                .finding(format!("{what}: {} {}", response.status, response.text()))
        }
        None => context.record.finding(format!("{what}: no response")),
    }
}

async fn serve(context: &mut CaseContext) -> Result<(), CaseError> {
    let folder = context.bucket("data")?;
    std::fs::write(folder.join("secret"), "the secret")?;
    context.serve(Setup::default()).await?;
    Ok(())
}

/// A signature authorises only what it covers: additional S3 headers are rejected.
async fn unsigned_headers(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context).await?;
    for (name, value) in [
        ("x-amz-copy-source", "/data/secret"),
        ("x-amz-meta-a", "b"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-acl", "public-read"),
    ] {
        let path = format!("/data/to-{name}");
        let target = Signer::default().presign("PUT", &path, 60);
        let response = send(context, "PUT", &target, &[(name, value)], b"").await;
        let what = format!("a presigned PUT with an unsigned {name}");
        expect(context, &what, response.as_ref(), |response| {
            response.status >= 400
        });
        let (headers, _) = Signer::default().headers("PUT", &path, "", &sha256_hex(b""), &[]);
        let mut headers = borrow(&headers);
        headers.push((name, value));
        let response = send(context, "PUT", &path, &headers, b"").await;
        let what = format!("a signed PUT with an unsigned {name}");
        expect(context, &what, response.as_ref(), |response| {
            response.status >= 400
        });
        let copied = signed(context, ("GET", &path, ""), &[], b"").await;
        expect(
            context,
            &format!("the object written with {name}"),
            copied.as_ref(),
            |response| response.text() != "the secret",
        );
    }
    // Signed headers are applied.
    let target = Signer::default().presign("PUT", "/data/plain", 60);
    let response = send(context, "PUT", &target, &[], b"plain").await;
    expect(
        context,
        "a plain presigned PUT",
        response.as_ref(),
        |response| response.status == 200,
    );
    Ok(())
}

/// Seven days is the maximum lifetime of a presigned URL; one second more is rejected.
async fn presigned_lifetime(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context).await?;
    let week = 7 * 24 * 3600;
    for (seconds, good) in [
        (60, true),
        (week, true),
        (week + 1, false),
        (u64::MAX, false),
    ] {
        let target = Signer::default().presign("GET", "/data/secret", seconds);
        let response = send(context, "GET", &target, &[], b"").await;
        expect(
            context,
            &format!("a lifetime of {seconds} s"),
            response.as_ref(),
            |response| (response.status == 200) == good && (good || response.status >= 400),
        );
    }
    Ok(())
}

/// Operations newer than the server are rejected and change nothing.
async fn newer_operations(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context).await?;
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
        ("PUT", "someday=", &[][..], "a future operation"),
        ("DELETE", "someday=", &[][..], ""),
        ("POST", "someday=", &[][..], ""),
    ] {
        context.well_behaved().put("/data/key", &written).await;
        let response = signed(
            context,
            (method, "/data/key", query),
            headers,
            sent.as_bytes(),
        )
        .await;
        let what = format!("{method} /data/key?{query}");
        expect(context, &what, response.as_ref(), |response| {
            response.status >= 400
        });
        context.well_behaved().get("/data/key", &written).await;
    }
    context
        .well_behaved()
        .put("/empty-one", &Bytes::new())
        .await;
    for query in ["metadataConfiguration=", "abac=", "someday="] {
        let response = signed(context, ("DELETE", "/empty-one", query), &[], b"").await;
        let what = format!("DELETE /empty-one?{query}");
        expect(context, &what, response.as_ref(), |response| {
            response.status >= 400
        });
        let there = Expect::Status(&[200]);
        context
            .well_behaved()
            .send(("HEAD", "/empty-one", ""), &[], b"", &there)
            .await;
    }
    for (path, query) in [("/data/key", "annotation="), ("/data", "abac=")] {
        let response = signed(context, ("GET", path, query), &[], b"").await;
        let what = format!("GET {path}?{query}");
        expect(context, &what, response.as_ref(), |response| {
            response.status >= 400
        });
    }
    Ok(())
}

/// A request with `Expect: 100-continue` and an empty body gets a 100, or its connection is closed. Otherwise older clients
/// take a late 100 for the response to their next request.
async fn empty_expect(context: &mut CaseContext) -> Result<(), CaseError> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    serve(context).await?;
    let (headers, _) = Signer::default().headers("PUT", "/data/empty", "", &sha256_hex(b""), &[]);
    let mut headers = borrow(&headers);
    headers.extend([("Expect", "100-continue"), ("Content-Length", "0")]);
    let request = http::head("PUT", "/data/empty", &headers);
    let request = request.replacen("Connection: close\r\n", "", 1);
    let mut socket = tokio::net::TcpStream::connect(context.address()).await?;
    socket.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    // Reads until the server closes the connection or sends nothing for three seconds.
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
        Outcome::Correct
    } else {
        Outcome::Failed(text.clone())
    };
    context.record.request(Class::WellBehaved, end);
    let continued = text.starts_with("HTTP/1.1 100");
    if !continued && !closed {
        context.record.finding(format!(
            "neither 100 Continue nor a closed connection: {text}"
        ));
    }
    Ok(())
}

/// A request whose host names a bucket never creates or removes another bucket.
async fn host_names(context: &mut CaseContext) -> Result<(), CaseError> {
    context.bucket("data")?;
    let setup = Setup {
        anonymous: true,
        ..Setup::default()
    };
    context.serve(setup).await?;
    let address = context.address();
    let host_put = "PUT /planted HTTP/1.1\r\nHost: data.localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let status =
        |response: std::io::Result<HttpResponse>| response.map_or(0, |response| response.status);
    let response = status(exchange(address, "PUT", host_put.as_bytes(), RESPONSE_TIMEOUT).await);
    context
        .record
        .request(Class::Excessive("hostile"), Outcome::Correct);
    let made = send(context, "HEAD", "/planted", &[], b"").await;
    if made.is_some_and(|made| made.status == 200) {
        context.record.finding(format!(
            "PUT /planted of host data.localhost created a bucket, with {response}"
        ));
    }
    let unknown = "PUT /planted-too HTTP/1.1\r\nHost: data.example.org\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let response = exchange(address, "PUT", unknown.as_bytes(), RESPONSE_TIMEOUT)
        .await
        .ok();
    expect(
        context,
        "a host that begins with a bucket's name",
        response.as_ref(),
        |response| response.status == 400,
    );
    let gone = "DELETE /data HTTP/1.1\r\nHost: data.localhost\r\nConnection: close\r\n\r\n";
    let _ = exchange(address, "DELETE", gone.as_bytes(), RESPONSE_TIMEOUT).await;
    let there = send(context, "HEAD", "/data", &[], b"").await;
    expect(
        context,
        "bucket data after DELETE /data of its host",
        there.as_ref(),
        |response| response.status == 200,
    );
    Ok(())
}

/// Numbers at the end of their range, no host, two hosts, NUL, unknown names.
async fn odd_requests(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context).await?;
    let range = ("range", "bytes=18446744073709551615-");
    let response = signed(context, ("GET", "/data/secret", ""), &[range], b"").await;
    expect(
        context,
        "a range from the maximum number",
        response.as_ref(),
        |response| response.status == 416,
    );
    for (what, hosts) in [("no Host", ""), ("two Hosts", "Host: a\r\nHost: b\r\n")] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let response = exchange(
            context.address(),
            "GET",
            request.as_bytes(),
            RESPONSE_TIMEOUT,
        )
        .await
        .ok();
        context
            .record
            .request(Class::Excessive("hostile"), Outcome::Correct);
        expect(context, what, response.as_ref(), |response| {
            response.status == 400
        });
    }
    let response = signed(context, ("PUT", "/data/a%00b", ""), &[], b"x").await;
    expect(context, "a key with NUL", response.as_ref(), |response| {
        response.status == 400
    });
    let list = signed(
        context,
        ("GET", "/data", "list-type=2&prefix=a%00"),
        &[],
        b"",
    )
    .await;
    expect(context, "NUL in a listing", list.as_ref(), |response| {
        !response.body.contains(&0)
            && !response.text().contains("&#0;")
            && !response.text().contains("&#x0;")
    });
    let query = format!(
        "GET /series/query?source=a&metric=b&sinec=1 HTTP/1.1\r\nHost: {}\r\nAuthorization: Token {}:{}\r\nConnection: close\r\n\r\n",
        context.admin(),
        bywash_support::sign::KEY,
        bywash_support::sign::SECRET
    );
    let response = exchange(context.admin(), "GET", query.as_bytes(), RESPONSE_TIMEOUT)
        .await
        .ok();
    expect(
        context,
        "an unknown parameter of /series/query",
        response.as_ref(),
        |response| response.status == 400,
    );
    Ok(())
}

/// Ten thousand requests write at most 16 KiB to standard error.
async fn quiet_log(context: &mut CaseContext) -> Result<(), CaseError> {
    serve(context).await?;
    let before = context.log_bytes();
    let (seed, count) = (context.seed, context.campaign.keys / 10 / 16);
    let small = body(seed, 1, 4096);
    context.well_behaved().put("/data/small", &small).await;
    context
        .run_concurrently(16, |_| {
            let (mut client, small) = (context.well_behaved(), small.clone());
            async move {
                for _ in 0..count {
                    client.get("/data/small", &small).await;
                }
            }
        })
        .await;
    let written = context.log_bytes() - before;
    context.record.figure("log KB", written >> 10);
    // A few warnings are permitted.
    if written > 16 << 10 {
        context.record.finding(format!(
            "{written} bytes of standard error for {} requests",
            count * 16
        ));
    }
    Ok(())
}
