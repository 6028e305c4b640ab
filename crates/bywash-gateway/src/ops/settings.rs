//! Settings of buckets and objects that do not exist here: versioning, policies and others.
//!
//! Many programs query them first. They get the response of S3 for a bucket without settings. Writing a setting is
//! NotImplemented.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::errors::{WithElements, custom};
use crate::gateway::Gateway;

/// Operations whose response is an error that the setting is absent: `name(input, output) = code, what`.
macro_rules! absent {
    ($($name:ident($input:ident, $output:ident) = $code:literal, $what:literal;)*) => {$(
        pub(crate) async fn $name(gateway: &Gateway, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
            let name = &request.input.bucket;
            gateway.bucket(name)?;
            let message = format!("The bucket {name} has no {}.", $what);
            Err(custom($code, StatusCode::NOT_FOUND, message).with([("BucketName", name)]))
        }
    )*};
}

absent! {
    encryption(GetBucketEncryptionInput, GetBucketEncryptionOutput) = "ServerSideEncryptionConfigurationNotFoundError", "encryption configuration";
    lifecycle(GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput) = "NoSuchLifecycleConfiguration", "lifecycle configuration";
    object_lock(GetObjectLockConfigurationInput, GetObjectLockConfigurationOutput) = "ObjectLockConfigurationNotFoundError", "object lock configuration";
    ownership(GetBucketOwnershipControlsInput, GetBucketOwnershipControlsOutput) = "OwnershipControlsNotFoundError", "ownership controls";
    policy(GetBucketPolicyInput, GetBucketPolicyOutput) = "NoSuchBucketPolicy", "policy";
    policy_status(GetBucketPolicyStatusInput, GetBucketPolicyStatusOutput) = "NoSuchBucketPolicy", "policy";
    public_access(GetPublicAccessBlockInput, GetPublicAccessBlockOutput) = "NoSuchPublicAccessBlockConfiguration", "public access block";
    replication(GetBucketReplicationInput, GetBucketReplicationOutput) = "ReplicationConfigurationNotFoundError", "replication configuration";
    tags(GetBucketTaggingInput, GetBucketTaggingOutput) = "NoSuchTagSet", "tags";
    website(GetBucketWebsiteInput, GetBucketWebsiteOutput) = "NoSuchWebsiteConfiguration", "website configuration";
}

/// Operations whose empty response means that nothing is set: `name(input, output)`.
macro_rules! empty {
    ($($name:ident($input:ident, $output:ident);)*) => {$(
        pub(crate) async fn $name(gateway: &Gateway, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
            gateway.bucket(&request.input.bucket)?;
            Ok(S3Response::new($output::default()))
        }
    )*};
}

empty! {
    acceleration(GetBucketAccelerateConfigurationInput, GetBucketAccelerateConfigurationOutput);
    logging(GetBucketLoggingInput, GetBucketLoggingOutput);
    notifications(GetBucketNotificationConfigurationInput, GetBucketNotificationConfigurationOutput);
    versioning(GetBucketVersioningInput, GetBucketVersioningOutput);
}

pub(crate) async fn payment(
    gateway: &Gateway,
    request: S3Request<GetBucketRequestPaymentInput>,
) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
    gateway.bucket(&request.input.bucket)?;
    Ok(S3Response::new(GetBucketRequestPaymentOutput {
        payer: Some(Payer::from_static(Payer::BUCKET_OWNER)),
    }))
}
