//! Dispatch of S3 operations: one line each, implemented in [`crate::ops`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bywash::origin::odd_keys::is_odd;
use bywash::{Bucket, Engine};
use http::Uri;
use http::header::{HOST, HeaderMap};
use object_store::path::Path;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::bucket_rules::AllRules;
use crate::config::ETagStyle;
use crate::errors::{OperationContext, no_such_bucket};
use crate::keys::{path_of, stored_path};
use crate::meta::text;
use crate::sent::SentHead;
use crate::uploads::Uploads;

/// Serves the buckets of an engine. A cheap handle.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) engine: Engine,
    pub(crate) region: Arc<str>,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) rules: Arc<AllRules>,
    pub(crate) etag: ETagStyle,
    /// Whether it is served by TLS.
    pub(crate) tls: bool,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    pub(crate) fn bucket(&self, name: &str) -> S3Result<Bucket> {
        self.engine.bucket(name).ok_or_else(|| no_such_bucket(name))
    }

    /// The URL of a request, as its client addressed this endpoint; its path if it named no host.
    pub(crate) fn url(&self, uri: &Uri, headers: &HeaderMap) -> String {
        let path = uri.path();
        match text(headers, HOST.as_str()) {
            Some(host) if self.tls => format!("https://{host}{path}"),
            Some(host) => format!("http://{host}{path}"),
            None => path.to_owned(),
        }
    }

    /// Whether the MD5 of an object written to a bucket becomes its ETag; other origins have ETags
    /// of their own.
    pub(crate) fn wants_md5(&self, bucket: &Bucket) -> bool {
        self.etag == ETagStyle::Md5 && bucket.takes_late_attributes()
    }

    /// Resolves bucket and path of an object to be written.
    pub(crate) fn target(&self, doing: OperationContext<'_>) -> S3Result<(Bucket, Path)> {
        Ok((self.bucket(doing.bucket)?, path_of(doing.key)?))
    }

    /// Resolves bucket and path of an object that must exist.
    pub(crate) fn existing(&self, doing: OperationContext<'_>) -> S3Result<(Bucket, Path)> {
        let bucket = self.bucket(doing.bucket)?;
        let path = stored_path(&bucket, doing.key)?;
        if is_odd(&path) {
            // The clients of origins read and delete such objects, and no more.
            return Ok((bucket, path_of(doing.key)?));
        }
        Ok((bucket, path))
    }
}

/// Maps each operation of the trait to its function. The trait returns NotImplemented for all others.
macro_rules! operations {
    ($($name:ident($input:ident) -> $output:ident = $module:ident::$function:ident;)*) => {
        #[async_trait]
        impl S3 for Gateway {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                let mut request = request;
                SentHead::restore(&mut request);
                let context = crate::ops::context(&request)?;
                context.note_operation(stringify!($name));
                let result = crate::ops::$module::$function(self, request).await;
                result.inspect_err(|error| context.note_elements(error))
            })*
        }
    };
}

operations! {
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list;
    create_bucket(CreateBucketInput) -> CreateBucketOutput = buckets::create;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = buckets::delete;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = buckets::location;
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput = settings::acceleration;
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::get_bucket;
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = cors::get;
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::put_bucket;
    put_bucket_cors(PutBucketCorsInput) -> PutBucketCorsOutput = cors::put;
    delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = cors::delete;
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::put_object;
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput = settings::encryption;
    delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput = settings::delete_encryption;
    put_bucket_encryption(PutBucketEncryptionInput) -> PutBucketEncryptionOutput = settings::put_encryption;
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput = settings::lifecycle;
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = settings::logging;
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput) -> GetBucketNotificationConfigurationOutput = settings::notifications;
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput = settings::ownership;
    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = settings::policy;
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = settings::policy_status;
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput = settings::replication;
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput = settings::payment;
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = settings::tags;
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = settings::versioning;
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = settings::website;
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::get_object;
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput = settings::object_lock;
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = settings::public_access;
    get_object(GetObjectInput) -> GetObjectOutput = read::get;
    head_object(HeadObjectInput) -> HeadObjectOutput = read::head;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = attributes::get;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete;
    put_object(PutObjectInput) -> PutObjectOutput = write::put;
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::object;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = copy::part;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many;
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list::versions;
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create;
    upload_part(UploadPartInput) -> UploadPartOutput = multipart::upload;
    list_parts(ListPartsInput) -> ListPartsOutput = upload_lists::parts;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = upload_lists::uploads;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = multipart::complete;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort;
}
