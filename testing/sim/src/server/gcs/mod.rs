//! Google Cloud Storage, as far as uploads and their clients go: resumable sessions of the JSON API (`session.rs`), whole
//! objects and multipart uploads by the XML API that object_store speaks, and metadata and media by the JSON API.

mod session;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::objects::{Dialect, Objects, Stored, failure};
use super::request::decode;
use super::s3::S3;
use super::{Asked, Protocol, Reply};

use session::Session;

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-goog-meta-",
    copy_source: "x-goog-copy-source",
    version: "x-goog-generation",
};
const UPLOAD: &str = "/upload/storage/v1/b/";
const JSON: &str = "/storage/v1/b/";

/// The store. Give it to [`super::Server::start`], and keep it to look at its objects.
#[derive(Debug)]
pub struct Gcs {
    objects: Arc<Objects>,
    /// Multipart uploads, which follow S3's protocol.
    multipart: S3,
    sessions: Mutex<HashMap<String, Session>>,
    token: Mutex<Option<String>>,
}

impl Gcs {
    /// An empty store that asks for no credentials.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let objects = Arc::default();
        Arc::new(Self {
            multipart: S3::of(&objects, DIALECT),
            objects,
            sessions: Mutex::default(),
            token: Mutex::default(),
        })
    }

    /// Multipart uploads that were started and neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.multipart.open_uploads()
    }

    /// From now on a session is only opened for this bearer token.
    pub fn demand_token(&self, token: &str) {
        *self.token.lock() = Some(token.to_owned());
    }

    /// Its objects.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Sessions that were opened and neither finished, cancelled nor forgotten.
    #[must_use]
    pub fn open_sessions(&self) -> usize {
        let sessions = self.sessions.lock();
        sessions
            .values()
            .filter(|session| session.is_open())
            .count()
    }

    /// Forgets all sessions, as a store does after a week.
    pub fn forget_sessions(&self) {
        for session in self.sessions.lock().values_mut() {
            session.forget();
        }
    }

    fn json(&self, asked: &Asked, rest: &str) -> Reply {
        let Some((bucket, rest)) = rest.split_once("/o") else {
            return refusal(404, "notFound");
        };
        let (bucket, key) = (decode(bucket), decode(rest.trim_start_matches('/')));
        if key.is_empty() {
            let prefix = asked.query("prefix").unwrap_or_default();
            let keys = self.objects.keys(&bucket);
            let found = keys.iter().filter(|key| key.starts_with(prefix));
            let items: Vec<Value> = found
                .filter_map(|key| Some(resource(&bucket, key, &self.objects.get(&bucket, key)?)))
                .collect();
            return body(&json!({"kind": "storage#objects", "items": items}));
        }
        match (&asked.method, self.objects.get(&bucket, &key)) {
            (_, None) => refusal(404, "notFound"),
            (&Method::GET, Some(stored)) if asked.query("alt") == Some("media") => {
                Reply::status(200).body(stored.bytes)
            }
            (&Method::GET, Some(stored)) => body(&resource(&bucket, &key, &stored)),
            (&Method::DELETE, Some(_)) => {
                self.objects.delete(&bucket, &key);
                Reply::status(204)
            }
            _ => refusal(405, "methodNotAllowed"),
        }
    }

    fn authorised(&self, asked: &Asked) -> bool {
        let token = self.token.lock();
        token.as_ref().is_none_or(|token| {
            asked.header("authorization") == Some(format!("Bearer {token}").as_str())
        })
    }
}

impl Protocol for Gcs {
    fn answer(&self, asked: &Asked) -> Reply {
        let signed_start =
            asked.method == Method::POST && asked.header("x-goog-resumable").is_some();
        if signed_start {
            return self.start_signed(asked);
        }
        if let Some(rest) = asked.path.strip_prefix(UPLOAD) {
            return match asked.query("upload_id") {
                Some(id) => self.in_session(asked, id),
                None if !self.authorised(asked) => refusal(401, "authError"),
                None => self.start(asked, rest),
            };
        }
        if let Some(rest) = asked.path.strip_prefix(JSON) {
            return self.json(asked, rest);
        }
        if asked.query("upload_id").is_some() {
            return failure(404, "NoSuchUpload");
        }
        self.multipart.answer(asked)
    }
}

fn body(value: &Value) -> Reply {
    Reply::status(200)
        .with("content-type", "application/json; charset=UTF-8")
        .body(value.to_string())
}

/// An error as the JSON API words it.
fn refusal(status: u16, reason: &str) -> Reply {
    let error =
        json!({"error": {"code": status, "message": reason, "errors": [{"reason": reason}]}});
    let mut reply = body(&error);
    reply.status = Reply::status(status).status;
    reply
}

fn base64_text(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(bytes)
}

fn crc_text(crc32c: u32) -> String {
    base64_text(&crc32c.to_be_bytes())
}

/// An object as the JSON API shows it: numbers of 64 bits are text.
fn resource(bucket: &str, key: &str, stored: &Stored) -> Value {
    let metadata: BTreeMap<&str, &str> = stored
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("x-goog-meta-")?, value.as_str())))
        .collect();
    let mut resource = json!({
        "kind": "storage#object",
        "bucket": bucket,
        "name": key,
        "generation": stored.generation.to_string(),
        "metageneration": "1",
        "size": stored.bytes.len().to_string(),
        "crc32c": crc_text(stored.crc32c),
        "md5Hash": base64_text(&stored.md5),
        // Another one than reads by the XML API see.
        "etag": base64_text(&stored.generation.to_be_bytes()),
        "updated": stored.updated.to_rfc3339(),
        "metadata": metadata,
    });
    for (header, field) in session::CONTENT_FIELDS {
        if let Some(value) = stored.headers.get(header) {
            resource[field] = json!(value);
        }
    }
    resource
}

#[cfg(test)]
mod tests;
