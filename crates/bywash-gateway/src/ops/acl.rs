//! ACLs of buckets and objects: `private` and `public-read`, by their names or as the grants that these stand for.

use http::HeaderMap;
use object_store::Attributes;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::buckets::{OWNER, owner};
use super::tagging::Rewritten;
use crate::errors::{OperationContext, WithElements, fault, from_store};
use crate::gateway::Gateway;
use crate::keys::stored_path;
use crate::meta::{check_version, text};
use crate::public_access::{PUBLIC_READ, is_public, set_public};
use crate::routes::Query;

/// The group of all users in a grant, with a signature or without.
const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";

fn unsupported(acl: &str) -> S3Error {
    let message = format!(
        "The ACL {acl} is not supported here; use private or public-read, or leave it out."
    );
    fault(S3ErrorCode::AccessControlListNotSupported, message)
}

/// Returns whether the headers of a write make its object or bucket public; `None` if they say nothing.
pub(crate) fn public_by_headers(headers: &HeaderMap) -> S3Result<Option<bool>> {
    match text(headers, "x-amz-acl") {
        None => Ok(None),
        // Both only grant the owner full control, which always applies.
        Some("private" | "bucket-owner-full-control") => Ok(Some(false)),
        Some(PUBLIC_READ) => Ok(Some(true)),
        Some(other) => Err(unsupported(other)),
    }
}

/// Returns whether grants make an object or a bucket public.
fn public_by_grants(policy: &AccessControlPolicy) -> S3Result<bool> {
    let mut public = false;
    for grant in policy.grants.iter().flatten() {
        let permission = grant.permission.as_ref().map(Permission::as_str);
        let grantee = grant.grantee.as_ref();
        let id = grantee.and_then(|grantee| grantee.id.as_deref());
        let group = grantee.and_then(|grantee| grantee.uri.as_deref());
        match (permission, id, group) {
            (Some(Permission::FULL_CONTROL), Some(OWNER), None) => {}
            (Some(Permission::READ), None, Some(ALL_USERS)) => public = true,
            _ => return Err(unsupported("with other grants")),
        }
    }
    Ok(public)
}

fn public_by_request(headers: &HeaderMap, policy: Option<&AccessControlPolicy>) -> S3Result<bool> {
    match (public_by_headers(headers)?, policy) {
        (Some(public), _) => Ok(public),
        (None, Some(policy)) => public_by_grants(policy),
        (None, None) => {
            let message = "The request has neither x-amz-acl nor an access control policy.";
            let error = fault(S3ErrorCode::MissingSecurityHeader, message);
            Err(error.with([("MissingHeaderName", "x-amz-acl")]))
        }
    }
}

/// Sets the ACL among the attributes of an object of a bucket.
pub(crate) fn keep(
    bucket: &bywash::Bucket,
    public: bool,
    attributes: &mut Attributes,
) -> S3Result<()> {
    if public && !bucket.takes_late_attributes() {
        return Err(unsupported("public-read of objects at this origin"));
    }
    set_public(attributes, public);
    Ok(())
}

/// Holders of a key have full control; others may read if `public`.
fn grants(public: bool) -> Vec<Grant> {
    let owner = owner();
    let own = Grant {
        grantee: Some(Grantee {
            display_name: owner.display_name,
            email_address: None,
            id: owner.id,
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    };
    let all = Grant {
        grantee: Some(Grantee {
            display_name: None,
            email_address: None,
            id: None,
            type_: Type::from_static(Type::GROUP),
            uri: Some(ALL_USERS.to_owned()),
        }),
        permission: Some(Permission::from_static(Permission::READ)),
    };
    let all = public.then_some(all);
    std::iter::once(own).chain(all).collect()
}

pub(crate) async fn get_bucket(
    gateway: &Gateway,
    request: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    let name = &request.input.bucket;
    gateway.bucket(name)?;
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(grants(gateway.rules.read_of(name).await?.public_read)),
        owner: Some(owner()),
    }))
}

pub(crate) async fn put_bucket(
    gateway: &Gateway,
    request: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let S3Request { input, headers, .. } = request;
    gateway.bucket(&input.bucket)?;
    let public = public_by_request(&headers, input.access_control_policy.as_ref())?;
    set_bucket(gateway, &input.bucket, public).await?;
    Ok(S3Response::new(PutBucketAclOutput {}))
}

/// Sets the ACL of a bucket.
pub(super) async fn set_bucket(gateway: &Gateway, name: &str, public: bool) -> S3Result<()> {
    let set = gateway
        .rules
        .change(name, move |rules| rules.public_read = public);
    set.await
}

pub(crate) async fn get_object(
    gateway: &Gateway,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let S3Request { input, uri, .. } = request;
    let doing = OperationContext::new("read the ACL of", &input.bucket, &input.key);
    check_version(Query::new(&uri).first("versionId"), &input.key)?;
    let bucket = gateway.bucket(&input.bucket)?;
    let head = object_store::GetOptions {
        head: true,
        ..object_store::GetOptions::default()
    };
    let path = stored_path(&bucket, &input.key)?;
    let found = object_store::ObjectStore::get_opts(&bucket, &path, head).await;
    let found = found.map_err(|error| from_store(doing, &error))?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(grants(is_public(&found.attributes))),
        owner: Some(owner()),
        ..Default::default()
    }))
}

pub(crate) async fn put_object(
    gateway: &Gateway,
    request: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let doing = OperationContext::new("set the ACL of", &input.bucket, &input.key);
    let public = public_by_request(&headers, input.access_control_policy.as_ref())?;
    let object = Rewritten::new(gateway, doing, Query::new(&uri).first("versionId"))?;
    let is_set = is_public(&object.get(true).await?.attributes) == public;
    if !is_set {
        object
            .replace(|bucket, attributes| keep(bucket, public, attributes))
            .await?;
    }
    Ok(S3Response::new(PutObjectAclOutput::default()))
}
