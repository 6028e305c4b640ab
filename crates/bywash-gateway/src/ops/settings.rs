//! Settings of buckets and objects that do not exist here: versioning, policies and others.
//!
//! Many programs query them first. They get the response of S3 for a bucket without settings. Writing a setting is
//! NotImplemented.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::encryption::{self, AES256};
use crate::errors::{WithElements, custom, not_implemented};
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
    no_encryption(GetBucketEncryptionInput, GetBucketEncryptionOutput) = "ServerSideEncryptionConfigurationNotFoundError", "encryption configuration";
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

/// The rule of a bucket on an encrypted disk, which is S3's own default.
fn encryption_rule() -> ServerSideEncryptionRule {
    let method = ServerSideEncryption::from_static(ServerSideEncryption::AES256);
    ServerSideEncryptionRule {
        apply_server_side_encryption_by_default: Some(ServerSideEncryptionByDefault {
            sse_algorithm: method,
            kms_master_key_id: None,
        }),
        bucket_key_enabled: Some(false),
    }
}

pub(crate) async fn encryption(
    gateway: &Gateway,
    request: S3Request<GetBucketEncryptionInput>,
) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
    let bucket = gateway.bucket(&request.input.bucket)?;
    if !gateway.rules.is_encrypted(&bucket) {
        return no_encryption(gateway, request).await;
    }
    Ok(S3Response::new(GetBucketEncryptionOutput {
        server_side_encryption_configuration: Some(ServerSideEncryptionConfiguration {
            rules: vec![encryption_rule()],
        }),
    }))
}

/// Takes the rule that a bucket has anyway.
pub(crate) async fn put_encryption(
    gateway: &Gateway,
    request: S3Request<PutBucketEncryptionInput>,
) -> S3Result<S3Response<PutBucketEncryptionOutput>> {
    let bucket = gateway.bucket(&request.input.bucket)?;
    let rules = &request.input.server_side_encryption_configuration.rules;
    let is_plain = |rule: &ServerSideEncryptionRule| {
        let default = rule.apply_server_side_encryption_by_default.as_ref();
        default.is_none_or(|default| {
            default.sse_algorithm.as_str() == AES256 && default.kms_master_key_id.is_none()
        }) && rule.bucket_key_enabled != Some(true)
    };
    if !gateway.rules.is_encrypted(&bucket) {
        return Err(encryption::not_encrypted(bucket.name()));
    }
    if rules.iter().all(is_plain) {
        Ok(S3Response::new(PutBucketEncryptionOutput::default()))
    } else {
        Err(not_implemented(format!(
            "Only {AES256} is supported here, without a key of a service."
        )))
    }
}

/// Removes the configuration: the default remains, which is the same.
pub(crate) async fn delete_encryption(
    gateway: &Gateway,
    request: S3Request<DeleteBucketEncryptionInput>,
) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
    gateway.bucket(&request.input.bucket)?;
    Ok(S3Response::new(DeleteBucketEncryptionOutput::default()))
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
