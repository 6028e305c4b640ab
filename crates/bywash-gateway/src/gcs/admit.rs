//! Admission of requests: all to an anonymous server, and requests without a token for public data.

use http::header::AUTHORIZATION;
use http::request::Parts;
use object_store::Attributes;

use super::endpoint::Endpoint;
use super::error::{GcsError, GcsResult};
use super::route::{Operation, Route};
use super::xml::XmlOperation;
use crate::public_access::{UnsignedAccess, is_object_public, is_public};

/// Data that a served request may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    All,
    /// Public data. `by_object`: versions with a public ACL.
    Public {
        by_object: bool,
    },
}

impl Admission {
    /// Checks the version that is read: it may be another one than was there before.
    pub(crate) fn check(self, attributes: &Attributes) -> GcsResult<()> {
        match self {
            Self::Public { by_object: true } if !is_public(attributes) => Err(GcsError::login()),
            Self::All | Self::Public { .. } => Ok(()),
        }
    }
}

/// Name in S3 of an operation that is requested without a token.
fn name_of(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::GetObject
        | Operation::ReadObject
        | Operation::Xml(XmlOperation::Get | XmlOperation::Head) => Some("GetObject"),
        Operation::ListObjects | Operation::Xml(XmlOperation::List) => Some("ListObjectsV2"),
        Operation::GetBucket | Operation::GetStorageLayout => Some("HeadBucket"),
        _ => None,
    }
}

/// Checks that a request may execute its operation.
pub(crate) async fn admit(
    endpoint: &Endpoint,
    parts: &Parts,
    route: &Route,
) -> GcsResult<Admission> {
    if endpoint.is_anonymous() {
        return Ok(Admission::All);
    }
    if parts.headers.contains_key(AUTHORIZATION) {
        return Err(GcsError::login());
    }
    let rules = endpoint.shared.rules().zip(name_of(route.operation));
    let access = rules.map(|(rules, operation)| {
        rules.unsigned_access(&endpoint.engine, operation, &route.bucket)
    });
    match access {
        Some(UnsignedAccess::Allowed) => Ok(Admission::Public { by_object: false }),
        Some(UnsignedAccess::ByObject) => {
            let object = endpoint.stored_object(&route.bucket, &route.object);
            match object {
                Ok((bucket, path)) if is_object_public(&bucket, &path).await => {
                    Ok(Admission::Public { by_object: true })
                }
                _ => Err(GcsError::login()),
            }
        }
        Some(UnsignedAccess::Denied) | None => Err(GcsError::login()),
    }
}
