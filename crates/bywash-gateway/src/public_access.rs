//! Access of requests without a signature or token, for both endpoints.

use bywash::Bucket;
use object_store::path::Path;
use object_store::{Attribute, AttributeValue, Attributes, GetOptions, ObjectStore};

/// Attribute of an object that unsigned requests may read.
const PUBLIC: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("bywash-acl"));
/// Its value: the canned ACL of S3.
pub(crate) const PUBLIC_READ: &str = "public-read";

/// Access of an unsigned request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsignedAccess {
    Denied,
    Allowed,
    /// Allowed if the ACL of the object is public.
    ByObject,
}

/// Whether unsigned requests may read a version.
pub(crate) fn is_public(attributes: &Attributes) -> bool {
    let acl = attributes.get(&PUBLIC);
    acl.is_some_and(|acl| acl.as_ref() == PUBLIC_READ)
}

/// Sets whether unsigned requests may read a version.
pub(crate) fn set_public(attributes: &mut Attributes, public: bool) {
    if public {
        attributes.insert(PUBLIC, AttributeValue::from(PUBLIC_READ))
    } else {
        attributes.remove(&PUBLIC)
    };
}

/// Returns whether unsigned requests may read the current version of an object. An error is a no: it does not show whether the
/// object exists.
pub(crate) async fn is_object_public(bucket: &Bucket, path: &Path) -> bool {
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let found = bucket.get_opts(path, head).await;
    found.is_ok_and(|found| is_public(&found.attributes))
}
