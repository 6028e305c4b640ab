//! Names of metadata. Azure accepts only identifiers, other stores also hyphens and dots, so other characters are
//! encoded as `_x2d_`.

use object_store::{Attribute, Attributes};

/// Returns the attributes with other names of metadata.
pub(super) fn renamed(attributes: &Attributes, rename: impl Fn(&str) -> String) -> Attributes {
    let renamed = attributes.iter().map(|(attribute, value)| {
        let attribute = match attribute {
            Attribute::Metadata(name) => Attribute::Metadata(rename(name).into()),
            other => other.clone(),
        };
        (attribute, value.clone())
    });
    renamed.collect()
}

/// Encodes a name as an identifier.
pub(super) fn encoded(name: &str) -> String {
    let mut identifier = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        let mark = byte == b'_' && name[at..].starts_with("_x");
        let plain = byte == b'_' || byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit());
        if plain && !mark {
            identifier.push(char::from(byte));
        } else {
            identifier.push_str(&format!("_x{byte:02x}_"));
        }
    }
    identifier
}

/// Decodes an identifier. Identifiers of other programs stay as they are.
pub(super) fn decoded(identifier: &str) -> String {
    let (mut name, mut rest) = (Vec::with_capacity(identifier.len()), identifier);
    while let Some(at) = rest.find("_x") {
        let (before, from) = rest.split_at(at);
        name.extend_from_slice(before.as_bytes());
        let digits = from.get(2..4).filter(|_| from.get(4..5) == Some("_"));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                name.push(byte);
                rest = &from[5..];
            }
            None => {
                name.extend_from_slice(b"_x");
                rest = &from[2..];
            }
        }
    }
    name.extend_from_slice(rest.as_bytes());
    String::from_utf8(name).unwrap_or_else(|_| identifier.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_as_identifiers() {
        for name in [
            "k",
            "bywash-checksum-crc32",
            "_x2d_",
            "9lives",
            "a.b_x",
            "_",
            "mtime",
        ] {
            let identifier = encoded(name);
            let plain = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            assert!(identifier.bytes().all(plain), "{identifier}");
            assert!(!identifier.starts_with(|first: char| first.is_ascii_digit()));
            assert_eq!(decoded(&identifier), name);
        }
        assert_eq!(encoded("plain_name"), "plain_name");
        assert_eq!(decoded("_xyz_x4"), "_xyz_x4");
    }
}
