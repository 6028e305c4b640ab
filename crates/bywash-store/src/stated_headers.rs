//! Headers of S3 objects that `object_store` has no attribute for. They are metadata with names of ours.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, header};
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

/// Content headers and metadata of a response whose values are not ASCII: object_store's clients fail for them. As an extension of the
/// response.
#[derive(Debug, Clone)]
pub(super) struct TextAttributes(pub(super) Attributes);

impl TextAttributes {
    /// Removes them from the headers of a response, if there are some. Bytes that are not UTF-8 count as Latin-1.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Self> {
        let contents = content_headers();
        let attribute_of = |name: &HeaderName| {
            let content = contents.iter().find(|(known, _)| known == name);
            let metadata = METADATA
                .iter()
                .find_map(|prefix| name.as_str().strip_prefix(prefix));
            let metadata = metadata.map(|name| Attribute::Metadata(name.to_owned().into()));
            content.map(|(_, attribute)| attribute.clone()).or(metadata)
        };
        let texts = headers.iter().filter(|(_, value)| value.to_str().is_err());
        let texts = texts.filter_map(|(name, value)| {
            let bytes = value.as_bytes();
            let latin = || bytes.iter().map(|byte| char::from(*byte)).collect();
            let text = std::str::from_utf8(bytes).map_or_else(|_| latin(), str::to_owned);
            Some((name.clone(), attribute_of(name)?, text))
        });
        let texts: Vec<(HeaderName, Attribute, String)> = texts.collect();
        for (name, ..) in &texts {
            headers.remove(name);
        }
        let found = texts
            .into_iter()
            .map(|(_, attribute, text)| (attribute, text));
        let found = Attributes::from_iter(found);
        (!found.is_empty()).then_some(Self(found))
    }
}

/// Headers of content and their attributes.
pub(super) fn content_headers() -> [(HeaderName, Attribute); 5] {
    [
        (header::CACHE_CONTROL, Attribute::CacheControl),
        (header::CONTENT_DISPOSITION, Attribute::ContentDisposition),
        (header::CONTENT_ENCODING, Attribute::ContentEncoding),
        (header::CONTENT_LANGUAGE, Attribute::ContentLanguage),
        (header::CONTENT_TYPE, Attribute::ContentType),
    ]
}

/// How a store names the attributes of an object that is written, in headers.
#[derive(Debug)]
pub(super) struct AttributeNames {
    /// Prefix of content headers.
    pub(super) content: &'static str,
    /// The header of the storage class.
    pub(super) class: &'static str,
    /// Prefix of metadata.
    pub(super) metadata: &'static str,
}

impl AttributeNames {
    /// Header of an attribute; `None` of one that object_store 0.14 does not have.
    pub(super) fn of(&self, attribute: &Attribute) -> Option<String> {
        match attribute {
            Attribute::StorageClass => Some(self.class.to_owned()),
            Attribute::Metadata(name) => Some(format!("{}{name}", self.metadata)),
            content => {
                let known = content_headers();
                let (name, _) = known.iter().find(|(_, known)| known == content)?;
                Some(format!("{}{name}", self.content))
            }
        }
    }

    /// Converts attributes into headers; values that are no header are left out.
    pub(super) fn headers(&self, attributes: &Attributes) -> HeaderMap {
        let headers = attributes.iter().filter_map(|(attribute, value)| {
            let name = self.of(attribute)?.parse::<HeaderName>().ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        });
        headers.collect()
    }
}

/// Prefixes of metadata among headers.
const METADATA: [&str; 2] = ["x-amz-meta-", "x-goog-meta-"];

/// Returns the header by which S3 gets an attribute that is metadata elsewhere. `None` if it is metadata there too.
pub(super) fn header_of(attribute: &Attribute) -> Option<HeaderName> {
    if *attribute == EXPIRES {
        Some(header::EXPIRES)
    } else {
        (*attribute == WANTED_ENCRYPTION).then_some(SERVER_SIDE_ENCRYPTION)
    }
}
