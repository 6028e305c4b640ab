//! Azure Blob Storage, as far as uploads by blocks go: Put Block, Get Block List, Put Block List, and whole blobs.
//!
//! A block is kept whole or not at all, and a commit drops the blocks it does not name. Signatures are not checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;

use super::objects::{Dialect, Objects, allowed, failure};
use super::{Asked, Protocol, Reply, ServerFault};

const DIALECT: Dialect = Dialect {
    metadata_prefix: "x-ms-meta-",
    copy_source: "x-ms-copy-source",
    version: "x-ms-version-id",
};

/// The store. Give it to [`super::Server::start`], and keep it to look at its objects.
#[derive(Debug, Default)]
pub struct Azure {
    objects: Objects,
    blobs: Mutex<BTreeMap<(String, String), Blob>>,
}

/// A blob's blocks by id, in order for those it shows.
#[derive(Debug, Default)]
struct Blob {
    committed: Vec<(String, Bytes)>,
    open: BTreeMap<String, Bytes>,
}

impl Blob {
    fn find(&self, id: &str) -> Option<Bytes> {
        let committed = || self.committed.iter().find(|(known, _)| known == id);
        let open = self.open.get(id);
        open.or_else(|| Some(&committed()?.1)).cloned()
    }
}

fn refusal(status: u16, code: &str) -> Reply {
    failure(status, code).with("x-ms-error-code", code)
}

impl Azure {
    /// An empty store.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Its objects. Blobs of the container `c` of the account `a` are in the bucket `a`, under `c/`.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Drops all blocks that no blob shows, as the store does after a week.
    pub fn drop_open_blocks(&self) {
        for blob in self.blobs.lock().values_mut() {
            blob.open.clear();
        }
    }

    fn put_block(asked: &Asked, blob: &mut Blob) -> Reply {
        let Some(id) = asked.query("blockid").filter(|_| asked.complete) else {
            return refusal(400, "InvalidInput");
        };
        let uneven = blob.open.keys().any(|known| known.len() != id.len());
        if uneven || BASE64_STANDARD.decode(id).is_ok_and(|id| id.len() > 64) {
            return refusal(400, "InvalidBlobOrBlock");
        }
        let md5 = BASE64_STANDARD.encode(Md5::digest(&asked.body));
        if asked.header("content-md5").is_some_and(|told| told != md5) {
            return refusal(400, "Md5Mismatch");
        }
        blob.open.insert(id.to_owned(), asked.body.clone());
        Reply::status(201).with("content-md5", &md5)
    }

    fn list(blob: &Blob, e_tag: Option<&str>) -> Reply {
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
        let open: String = blob.open.iter().map(block).collect();
        let reply = Reply::status(200).body(format!(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList><CommittedBlocks>{committed}</CommittedBlocks>\
             <UncommittedBlocks>{open}</UncommittedBlocks></BlockList>"
        ));
        match e_tag {
            Some(e_tag) => reply.with("etag", e_tag),
            None => reply,
        }
    }

    fn commit(&self, asked: &Asked, name: &(String, String), blob: &mut Blob) -> Reply {
        if !asked.complete {
            return refusal(400, "InvalidInput");
        }
        let text = String::from_utf8_lossy(&asked.body);
        let ids = text.split("<Latest>").skip(1);
        let named: Option<Vec<_>> = ids
            .filter_map(|rest| Some(rest.split_once("</Latest>")?.0.to_owned()))
            .map(|id| Some((id.clone(), blob.find(&id)?)))
            .collect();
        let Some(named) = named else {
            return refusal(400, "InvalidBlockList");
        };
        let bytes: Vec<u8> = named.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        let mut headers = BTreeMap::new();
        for (header, value) in &asked.headers {
            let kept = header.as_str().strip_prefix("x-ms-blob-");
            let kept = kept
                .or_else(|| Some(header.as_str()).filter(|name| name.starts_with("x-ms-meta-")));
            if let (Some(kept), Ok(value)) = (kept, value.to_str()) {
                headers.insert(kept.to_owned(), value.to_owned());
            }
        }
        let put = self
            .objects
            .put(&name.0, &name.1, bytes.into(), headers, |current| {
                allowed(asked, current)
            });
        let Some(stored) = put else {
            let create = asked.header("if-none-match").is_some();
            return match create {
                true => refusal(409, "BlobAlreadyExists"),
                false => refusal(412, "ConditionNotMet"),
            };
        };
        blob.committed = named;
        blob.open.clear();
        Reply::status(201).with("etag", &stored.e_tag)
    }
}

impl Protocol for Azure {
    fn answer(&self, asked: &Asked) -> Reply {
        let name = asked.bucket_and_key();
        let mut blobs = self.blobs.lock();
        let stored = self.objects.get(&name.0, &name.1);
        let Some(comp) = asked.query("comp") else {
            if asked.method == Method::PUT || asked.method == Method::DELETE {
                blobs.remove(&name);
            }
            let mut reply = self.objects.answer(asked, DIALECT);
            if asked.method == Method::PUT && reply.status == 200 {
                reply.status = Reply::status(201).status;
            }
            return reply;
        };
        let blob = blobs.entry(name.clone()).or_default();
        match asked.fault {
            Some(ServerFault::Forget) => blob.open.clear(),
            Some(ServerFault::Lose(_)) => {
                blob.open.pop_last();
            }
            _ => {}
        }
        match (&asked.method, comp) {
            (&Method::PUT, "block") => Self::put_block(asked, blob),
            (&Method::PUT, "blocklist") => self.commit(asked, &name, blob),
            (&Method::GET, "blocklist") if stored.is_none() && blob.open.is_empty() => {
                refusal(404, "BlobNotFound")
            }
            (&Method::GET, "blocklist") => {
                Self::list(blob, stored.as_ref().map(|stored| &*stored.e_tag))
            }
            _ => refusal(400, "UnsupportedQueryParameter"),
        }
    }
}
