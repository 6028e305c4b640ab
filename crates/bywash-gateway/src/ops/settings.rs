//! Settings of buckets and objects that do not exist here: versioning, ACLs, policies and others.
//!
//! Many programs query them first. They get the response of S3 for a bucket without settings. Writing a setting is
//! NotImplemented.

use http::StatusCode;
use object_store::ObjectStoreExt;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::buckets::owner;
use crate::errors::{OperationContext, custom, from_store};
use crate::gateway::Gateway;
use crate::keys::path_of;
use crate::meta::check_version;

/// Operations whose response is an error that the setting is absent: `name(input, output) = code, what`.
macro_rules! absent {
    ($($name:ident($input:ident, $output:ident) = $code:literal, $what:literal;)*) => {$(
        pub(crate) async fn $name(gateway: &Gateway, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
            let name = &request.input.bucket;
            gateway.bucket(name)?;
            let message = format!("The bucket {name} has no {}.", $what);
            Err(custom($code, StatusCode::NOT_FOUND, message))
        }
    )*};
}

absent! {
    cors(GetBucketCorsInput, GetBucketCorsOutput) = "NoSuchCORSConfiguration", "CORS configuration";
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

/// Holders of a key have full control, and all others none.
fn grants() -> Vec<Grant> {
    let owner = owner();
    vec![Grant {
        grantee: Some(Grantee {
            display_name: owner.display_name,
            email_address: None,
            id: owner.id,
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}

pub(crate) async fn bucket_acl(
    gateway: &Gateway,
    request: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    gateway.bucket(&request.input.bucket)?;
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
    }))
}

pub(crate) async fn object_acl(
    gateway: &Gateway,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let input = request.input;
    let doing = OperationContext::new("read the ACL of", &input.bucket, &input.key);
    check_version(input.version_id.as_deref(), &input.key)?;
    let bucket = gateway.bucket(&input.bucket)?;
    let found = bucket.head(&path_of(&input.key)?).await;
    found.map_err(|error| from_store(doing, &error))?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
        ..Default::default()
    }))
}
