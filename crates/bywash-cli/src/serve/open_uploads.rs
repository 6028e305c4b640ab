//! The uploads that are open, for the page.

use std::path::Path;

use bywash::upload::journal::ListedUpload;
use bywash_console::OpenUpload;

use super::data_dir::MULTIPART;
use crate::target;

/// Those of S3 clients and those of `bywash cp`, as the data folder `dir` has them; those begun last are the first. What cannot be read is told in the log. Blocks.
pub(super) fn open_uploads(dir: &Path) -> Vec<OpenUpload> {
    let clients = bywash_gateway::open_uploads(&dir.join(MULTIPART)).unwrap_or_else(|error| {
        tracing::warn!(%error, "the open multipart uploads cannot be told");
        Vec::new()
    });
    let clients = clients.into_iter().map(|open| OpenUpload {
        target: format!("{}/{}", open.bucket, open.key),
        began: Some(open.initiated),
        bytes: open.bytes,
        length: None,
        note: match open.parts {
            1 => "S3 client, 1 part".to_owned(),
            parts => format!("S3 client, {parts} parts"),
        },
    });
    let copies = target::journal(dir).list().unwrap_or_else(|error| {
        tracing::warn!(%error, "the open copies cannot be told");
        Vec::new()
    });
    let mut uploads: Vec<_> = clients.chain(copies.into_iter().filter_map(copy)).collect();
    uploads.sort_by_key(|upload| std::cmp::Reverse(upload.began));
    uploads
}

/// A copy whose file can be read.
fn copy(listed: ListedUpload) -> Option<OpenUpload> {
    let content = listed.content.ok()?;
    Some(OpenUpload {
        target: content.header.url,
        began: Some(content.header.started),
        bytes: content.progress.bytes(),
        length: content.header.options.length,
        note: if listed.alive {
            format!("bywash cp, process {}", content.process)
        } else {
            "nobody; see bywash uploads".to_owned()
        },
    })
}
