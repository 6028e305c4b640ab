//! The part of Azure Blob Storage that uploads need: Put Block, Get Block List, Put Block List, and whole blobs.
//!
//! A block is stored completely or not at all, and a commit drops blocks that it does not list. Signatures are not checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;

use super::objects::{Dialect, Objects, error_response, preconditions_hold};
use super::{HttpRequest, HttpResponse, Protocol, ServerFault};

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-ms-meta-",
    copy_source: "x-ms-copy-source",
    version: "x-ms-version-id",
};

/// The store. Pass it to [`super::Server::start`], and keep a reference to inspect its objects.
#[derive(Debug, Default)]
pub struct Azure {
    objects: Objects,
    blobs: Mutex<BTreeMap<(String, String), Blob>>,
}

/// Blocks of a blob by id: committed ones in order, and uncommitted ones.
#[derive(Debug, Default)]
struct Blob {
    committed: Vec<(String, Bytes)>,
    uncommitted: BTreeMap<String, Bytes>,
}

impl Blob {
    fn find(&self, id: &str) -> Option<Bytes> {
        let committed = || self.committed.iter().find(|(known, _)| known == id);
        let uncommitted = self.uncommitted.get(id);
        uncommitted.or_else(|| Some(&committed()?.1)).cloned()
    }
}

fn azure_error(status: u16, code: &str) -> HttpResponse {
    error_response(status, code).with("x-ms-error-code", code)
}

impl Azure {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the objects. Blobs of container `c` of account `a` are in bucket `a`, under `c/`.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Drops all uncommitted blocks, as the store does after a week.
    pub fn drop_uncommitted_blocks(&self) {
        for blob in self.blobs.lock().values_mut() {
            blob.uncommitted.clear();
        }
    }

    fn put_block(request: &HttpRequest, blob: &mut Blob) -> HttpResponse {
        let Some(id) = request.query("blockid").filter(|_| request.complete) else {
            return azure_error(400, "InvalidInput");
        };
        let uneven = blob.uncommitted.keys().any(|known| known.len() != id.len());
        if uneven || BASE64_STANDARD.decode(id).is_ok_and(|id| id.len() > 64) {
            return azure_error(400, "InvalidBlobOrBlock");
        }
        let md5 = BASE64_STANDARD.encode(Md5::digest(&request.body));
        if request
            .header("content-md5")
            .is_some_and(|value| value != md5)
        {
            return azure_error(400, "Md5Mismatch");
        }
        blob.uncommitted.insert(id.to_owned(), request.body.clone());
        HttpResponse::status(201).with("content-md5", &md5)
    }

    fn list(blob: &Blob, e_tag: Option<&str>) -> HttpResponse {
        let block = |(name, bytes): (&String, &Bytes)| {
            format!(
                "<Block><Name>{name}</Name><Size>{}</Size></Block>",
                bytes.len()
            )
        };
        let committed: String = blob
            .committed
            .iter()
            .map(|(id, bytes)| block((id, bytes)))
            .collect();
        let uncommitted: String = blob.uncommitted.iter().map(block).collect();
        let response = HttpResponse::status(200).body(format!(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList><CommittedBlocks>{committed}</CommittedBlocks>\
             <UncommittedBlocks>{uncommitted}</UncommittedBlocks></BlockList>"
        ));
        match e_tag {
            Some(e_tag) => response.with("etag", e_tag),
            None => response,
        }
    }

    fn commit(
        &self,
        request: &HttpRequest,
        name: &(String, String),
        blob: &mut Blob,
    ) -> HttpResponse {
        if !request.complete {
            return azure_error(400, "InvalidInput");
        }
        let text = String::from_utf8_lossy(&request.body);
        let ids = text.split("<Latest>").skip(1);
        let named: Option<Vec<_>> = ids
            .filter_map(|rest| Some(rest.split_once("</Latest>")?.0.to_owned()))
            .map(|id| Some((id.clone(), blob.find(&id)?)))
            .collect();
        let Some(named) = named else {
            return azure_error(400, "InvalidBlockList");
        };
        let bytes: Vec<u8> = named.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        let mut headers = BTreeMap::new();
        for (header, value) in &request.headers {
            let content = header.as_str().strip_prefix("x-ms-blob-");
            let metadata = || Some(header.as_str()).filter(|name| name.starts_with("x-ms-meta-"));
            if let (Some(name), Ok(value)) = (content.or_else(metadata), value.to_str()) {
                headers.insert(name.to_owned(), value.to_owned());
            }
        }
        let put = self
            .objects
            .put(&name.0, &name.1, bytes.into(), headers, |current| {
                preconditions_hold(request, current)
            });
        let Some(stored) = put else {
            let create = request.header("if-none-match").is_some();
            return match create {
                true => azure_error(409, "BlobAlreadyExists"),
                false => azure_error(412, "ConditionNotMet"),
            };
        };
        blob.committed = named;
        blob.uncommitted.clear();
        HttpResponse::status(201).with("etag", &stored.e_tag)
    }
}

impl Protocol for Azure {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let name = request.bucket_and_key();
        let mut blobs = self.blobs.lock();
        let stored = self.objects.get(&name.0, &name.1);
        let Some(comp) = request.query("comp") else {
            if request.method == Method::PUT || request.method == Method::DELETE {
                blobs.remove(&name);
            }
            let mut response = self.objects.respond(request, DIALECT);
            if request.method == Method::PUT && response.status == 200 {
                response.status = HttpResponse::status(201).status;
            }
            return response;
        };
        let blob = blobs.entry(name.clone()).or_default();
        match request.fault {
            Some(ServerFault::ForgetUpload) => blob.uncommitted.clear(),
            Some(ServerFault::LoseBytes(_)) => {
                blob.uncommitted.pop_last();
            }
            _ => {}
        }
        match (&request.method, comp) {
            (&Method::PUT, "block") => Self::put_block(request, blob),
            (&Method::PUT, "blocklist") => self.commit(request, &name, blob),
            (&Method::GET, "blocklist") if stored.is_none() && blob.uncommitted.is_empty() => {
                azure_error(404, "BlobNotFound")
            }
            (&Method::GET, "blocklist") => {
                Self::list(blob, stored.as_ref().map(|stored| &*stored.e_tag))
            }
            _ => azure_error(400, "UnsupportedQueryParameter"),
        }
    }
}
