//! An upload that takes a part: of this node's table, or of a cluster.

use std::sync::Arc;

use bywash::Bucket;
use object_store::path::Path;
use s3s::{S3Error, S3Result};

use super::cluster::{ClusterUploads, SealedUpload};
use super::{EntryReservation, Part, Upload, UploadName, UploadSlot, Uploads};
use crate::digest::Algorithm;
use crate::errors::{OperationContext, no_such_upload};

/// An upload that takes a part, with the memory for this node's entry of it.
#[derive(Debug)]
pub(crate) enum PartTarget {
    /// Of this node's table.
    Here(UploadName, Option<Algorithm>, EntryReservation),
    /// Of a cluster: this node keeps nothing.
    Cluster(Box<SealedUpload>),
}

impl PartTarget {
    /// The origin's id.
    pub(crate) fn origin_id(&self) -> &str {
        match self {
            Self::Here(name, ..) => &name.id,
            Self::Cluster(sealed) => &sealed.origin,
        }
    }

    /// The checksum algorithm that was announced at the start.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        match self {
            Self::Here(_, algorithm, _) => *algorithm,
            Self::Cluster(sealed) => sealed.upload.algorithm,
        }
    }
}

/// Admission of a new upload.
#[derive(Debug)]
pub(crate) enum Admission {
    /// To this node's table.
    Here((EntryReservation, UploadSlot)),
    /// To a cluster, whose records have a limit of their own.
    Cluster(ClusterUploads),
}

impl Uploads {
    /// Admits one more upload.
    pub(crate) async fn admit_upload(&self, doing: OperationContext<'_>) -> S3Result<Admission> {
        match &self.cluster {
            Some(cluster) => Ok(Admission::Cluster(cluster.clone())),
            None => Ok(Admission::Here(self.admit(doing).await?)),
        }
    }

    /// Keeps an upload that the origin has begun with the id `origin`, and returns the id for its client. If it cannot be kept, it is
    /// aborted at the origin.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        (bucket, path): (&Bucket, &Path),
        doing: OperationContext<'_>,
        origin: String,
        upload: Upload,
        admission: Admission,
    ) -> S3Result<String> {
        let kept = match admission {
            Admission::Cluster(cluster) => cluster.begin(bucket, doing, &origin, &upload).await,
            Admission::Here(hold) => {
                let name = UploadName::of(doing, origin.clone());
                let begun = self.begin(name, upload, hold).await;
                begun.map(|()| origin.clone())
            }
        };
        if kept.is_err()
            && let Err(left) = bucket.abort_upload(path, &origin).await
        {
            tracing::warn!(upload = origin, error = %left, "an upload that could not be kept stays at the origin");
        }
        kept
    }

    /// Returns the upload with this id, if it accepts parts.
    pub(crate) async fn target(
        &self,
        id: String,
        doing: OperationContext<'_>,
    ) -> S3Result<PartTarget> {
        let name = UploadName::of(doing, id);
        if let Some(cluster) = &self.cluster {
            return Ok(PartTarget::Cluster(Box::new(cluster.open(name)?)));
        }
        let hold = self.admit_part(&name, doing).await?;
        let algorithm = self.algorithm(&name);
        Ok(PartTarget::Here(name, algorithm, hold))
    }

    /// Returns the error of a part whose upload the origin does not know, and forgets the upload.
    pub(crate) async fn target_gone(self: &Arc<Self>, target: &PartTarget) -> S3Error {
        match target {
            PartTarget::Here(name, ..) => self.gone(name).await,
            // Its completion may be in doubt at another node, so its record stays.
            PartTarget::Cluster(sealed) => no_such_upload(&sealed.name.id),
        }
    }

    /// Records a stored part in this node's table.
    pub(crate) async fn keep_part(
        self: &Arc<Self>,
        target: PartTarget,
        number: u16,
        part: Part,
    ) -> S3Result<()> {
        match target {
            PartTarget::Here(name, _, hold) => self.add_part(&name, number, part, hold).await,
            PartTarget::Cluster(_) => Ok(()),
        }
    }
}
