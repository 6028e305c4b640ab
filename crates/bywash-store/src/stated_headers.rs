//! Headers of S3 objects that `object_store` has no attribute for. They are metadata with names of ours.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, header};
use object_store::{Attribute, Attributes};

const fn reserved(name: &'static str) -> Attribute {
    Attribute::Metadata(Cow::Borrowed(name))
}

/// The header Expires. S3 stores have it as the header, others as metadata.
pub const EXPIRES: Attribute = reserved("bywash-expires");
/// How the store states that it encrypts an object: `AES256`. It belongs to that store, so no write takes it over from a read.
pub const ENCRYPTION: Attribute = reserved("bywash-encryption");
/// How an S3 store is to encrypt an object that is written.
pub const WANTED_ENCRYPTION: Attribute = reserved("bywash-wanted-encryption");

const SERVER_SIDE_ENCRYPTION: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");

/// Attributes that headers of the response to a read state, as an extension of the response.
#[derive(Debug, Clone)]
pub(super) struct StatedAttributes(pub(super) Attributes);

impl StatedAttributes {
    /// Returns the attributes that `headers` state, if any.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut stated = Attributes::new();
        for (name, attribute) in [
            (header::EXPIRES, EXPIRES),
            (SERVER_SIDE_ENCRYPTION, ENCRYPTION),
        ] {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                stated.insert(attribute, value.to_owned().into());
            }
        }
        (!stated.is_empty()).then_some(Self(stated))
    }
}

/// Returns the header by which S3 gets an attribute that is metadata elsewhere. `None` if it is metadata there too.
pub(super) fn header_of(attribute: &Attribute) -> Option<HeaderName> {
    if *attribute == EXPIRES {
        Some(header::EXPIRES)
    } else {
        (*attribute == WANTED_ENCRYPTION).then_some(SERVER_SIDE_ENCRYPTION)
    }
}
