//! The start of an upload, at the origin and here.

use std::sync::Arc;

use bywash::Bucket;
use chrono::Utc;
use object_store::path::Path;
use object_store::{Attributes, PutMultipartOptions, TagSet};
use s3s::S3Result;

use super::target::Admission;
use super::{Upload, Uploads};
use crate::digest::Algorithm;
use crate::errors::{OperationContext, from_store};
use crate::meta::mark_upload;

/// An upload to be begun.
pub(crate) struct NewUpload {
    pub(crate) attributes: Attributes,
    pub(crate) tags: TagSet,
    /// Checksum algorithm of its parts.
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether that checksum covers the whole object.
    pub(crate) full_object: bool,
}

impl Uploads {
    /// Begins an upload at the origin, and keeps it. Returns the id for its client. `admission`: from [`Self::admit_upload`].
    pub(crate) async fn create(
        self: &Arc<Self>,
        (bucket, path): (&Bucket, &Path),
        new: NewUpload,
        admission: Admission,
        doing: OperationContext<'_>,
    ) -> S3Result<String> {
        let mut attributes = new.attributes;
        let mark = Some(format!("{:032x}", rand::random::<u128>()));
        let mark = mark.filter(|mark| self.are_persistent() && mark_upload(&mut attributes, mark));
        let options = PutMultipartOptions {
            attributes,
            tags: new.tags,
            ..PutMultipartOptions::default()
        };
        let id = bucket
            .create_upload(path, options)
            .await
            .map_err(|error| from_store(doing, &error))?;
        let upload = Upload::new(Utc::now(), new.algorithm, new.full_object, mark);
        self.keep((bucket, path), doing, id, upload, admission)
            .await
    }
}
