//! An S3 store with arbitrary lists and objects, also invalid ones.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::CaseError;

/// An object of a store: its key, its length in lists, and its contents.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) size: String,
    pub(super) body: Bytes,
}

impl Entry {
    pub(super) fn new(key: &str, body: Bytes) -> Self {
        Self {
            key: key.to_owned(),
            size: body.len().to_string(),
            body,
        }
    }
}

/// ETag of every object of a store.
const TAG: &str = "\"e\"";

/// An S3 endpoint with the bucket `data` of the given objects.
pub(super) struct HostileStore {
    pub(super) url: String,
    task: JoinHandle<()>,
}

impl Drop for HostileStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Contents from which a store responds.
struct Responder {
    entries: Vec<Entry>,
    list: String,
    message: &'static str,
}

impl Responder {
    fn new(entries: Vec<Entry>, message: &'static str) -> Self {
        let contents: String = entries
            .iter()
            .map(|Entry { key, size, .. }| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                     <ETag>{TAG}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
            })
            .collect();
        let list = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>data</Name><IsTruncated>false</IsTruncated>\
             <KeyCount>{}</KeyCount>{contents}</ListBucketResult>",
            entries.len()
        );
        Self {
            entries,
            list,
            message,
        }
    }

    /// Returns the response to a request with this head. Unknown keys have the body `x`.
    fn respond(&self, head: &str) -> Vec<u8> {
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let key = path.strip_prefix("/data/").unwrap_or_default();
        let (status, body) = if query.contains("list-type=2") {
            ("200 OK", Bytes::from(self.list.clone()))
        } else if key == "refused" || head.starts_with("PUT") {
            let error = format!(
                "<Error><Code>AccessDenied</Code><Message>{}</Message></Error>",
                self.message
            );
            ("403 Forbidden", Bytes::from(error))
        } else {
            let entry = self.entries.iter().find(|entry| entry.key == key);
            let body = entry.map_or_else(|| Bytes::from_static(b"x"), |entry| entry.body.clone());
            ("200 OK", body)
        };
        let total = body.len();
        let (status, body, range) = match range_of(head).filter(|_| status == "200 OK") {
            Some((first, last)) if first < total => {
                let last = last.min(total - 1);
                let header = format!("Content-Range: bytes {first}-{last}/{total}\r\n");
                ("206 Partial Content", body.slice(first..=last), header)
            }
            _ => (status, body, String::new()),
        };
        let mut response = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}ETag: {TAG}\r\n\
             Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
            body.len()
        )
        .into_bytes();
        if !head.starts_with("HEAD") {
            response.extend_from_slice(&body);
        }
        response
    }
}

/// Parses first and last byte of the requested range.
fn range_of(head: &str) -> Option<(usize, usize)> {
    let head = head.to_ascii_lowercase();
    let (_, rest) = head.split_once("\r\nrange: bytes=")?;
    let (first, last) = rest.lines().next()?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().unwrap_or(usize::MAX)))
}

impl HostileStore {
    /// Starts a store with `message` in every error.
    pub(super) async fn start(
        entries: Vec<Entry>,
        message: &'static str,
    ) -> Result<Self, CaseError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let responder = Arc::new(Responder::new(entries, message));
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let responder = Arc::clone(&responder);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                        let head = String::from_utf8_lossy(&buffer[..count]).into_owned();
                        if socket.write_all(&responder.respond(&head)).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self { url, task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responds_with_ranges_of_its_objects_and_refuses_writes() {
        let responder = Responder::new(
            vec![Entry::new("k", Bytes::from_static(b"0123456789"))],
            "no",
        );
        let text = |head: &str| String::from_utf8_lossy(&responder.respond(head)).into_owned();
        let whole = text("GET /data/k HTTP/1.1\r\n\r\n");
        assert!(whole.starts_with("HTTP/1.1 200") && whole.ends_with("\r\n\r\n0123456789"));
        let part = text("GET /data/k HTTP/1.1\r\nRange: bytes=2-4\r\n\r\n");
        assert!(part.contains("Content-Range: bytes 2-4/10\r\n") && part.ends_with("\r\n\r\n234"));
        let head = text("HEAD /data/k HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 10\r\n") && head.ends_with("\r\n\r\n"));
        assert!(text("PUT /data/k HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403"));
        assert!(text("GET /data?list-type=2 HTTP/1.1\r\n\r\n").contains("<Key>k</Key>"));
    }
}
