//! Mapping of keys to paths: the plain path, or an encoded one in the overflow area.

use crate::limits::MAX_COMPONENT_BYTES;
use object_store::path::Path;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Prefix of every name of the store's own; such names are never objects.
pub(super) const OWN: &str = ".bywash";
/// Keys that do not fit the tree.
pub(super) const KEYS: &str = ".bywash/keys";
/// One folder per key, one file per version.
pub(super) const ATTRIBUTES: &str = ".bywash/attributes";
/// Files being written; anything here may be lost.
pub(super) const STAGING: &str = ".bywash/staging";
/// One folder per open upload.
pub(super) const UPLOADS: &str = ".bywash/uploads";

/// Bytes of the key in one chunk of an encoded name. Encoding makes at most three bytes of one, so a chunk and its
/// `+` take at most 199. A chunk never ends inside an escape, and listings can sort chunks by their decoded bytes.
const CHUNK: usize = 66;

/// `.` is escaped so that no chunk is `.` or `..`; `+` so that it can mark folders.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Suffix of a chunk folder's name. The encoding never yields it, so a folder and a file of the same chunk do not
/// collide.
const FOLDER_MARK: char = '+';

/// The two places of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// The plain path below the folder.
    Tree,
    /// Encoded, below [`KEYS`].
    Overflow,
}

impl Area {
    /// Returns the folder, relative to the root, at which pruning of empty folders stops.
    pub(super) fn base(self) -> &'static str {
        match self {
            Self::Tree => "",
            Self::Overflow => KEYS,
        }
    }
}

/// Returns the places of `key`, in the order of lookup.
///
/// Rejects invalid paths, and the empty key, which names the folder itself.
pub(super) fn places(key: &Path) -> Result<Vec<(Area, String)>, object_store::path::Error> {
    let raw = key.as_ref();
    if raw.is_empty() {
        return Err(object_store::path::Error::EmptySegment {
            path: raw.to_owned(),
        });
    }
    // Paths are checked where they are created; here they become file names, so they are checked again.
    Path::parse(raw)?;
    let overflow = (Area::Overflow, format!("{KEYS}/{}", encode(raw)));
    Ok(if fits_tree(raw) {
        vec![(Area::Tree, raw.to_owned()), overflow]
    } else {
        vec![overflow]
    })
}

/// Returns whether every component may be a file name in the tree. The file system can still reject it.
pub(super) fn fits_tree(raw: &str) -> bool {
    raw.split('/')
        .all(|part| part.len() <= MAX_COMPONENT_BYTES && !is_own(part))
}

/// Suffixes of the names of unfinished downloads: `.NAME.bywash-part`. The second one is of earlier versions.
const DOWNLOADS: [&str; 2] = [".bywash-part", ".bywash-part.state"];

/// Returns whether a name in the tree is Bywash's own, hidden from listings.
pub(super) fn is_own(component: &str) -> bool {
    component.starts_with(OWN) || is_download(component)
}

/// Returns whether a name is reserved: `.bywash`, `.bywash-..` and unfinished downloads.
pub(super) fn is_reserved(component: &str) -> bool {
    let rest = component.strip_prefix(OWN);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) || is_download(component)
}

fn is_download(component: &str) -> bool {
    component.starts_with('.') && DOWNLOADS.iter().any(|end| component.ends_with(end))
}

/// Returns the relative path of an encoded key: folders of full chunks, then the last chunk.
pub(super) fn encode(key: &str) -> String {
    let mut path = String::with_capacity(key.len() * 3);
    let mut chunks = key.as_bytes().chunks(CHUNK).peekable();
    while let Some(chunk) = chunks.next() {
        path.extend(percent_encode(chunk, ESCAPED));
        if chunks.peek().is_some() {
            path.push(FOLDER_MARK);
            path.push('/');
        }
    }
    path
}

/// One name of the overflow area, decoded.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NameChunk {
    /// Bytes of the key.
    pub(super) bytes: Vec<u8>,
    /// Whether more chunks follow, in the folder of this name. Sorts after the file: the file is the key that ends
    /// here, and each key in the folder is longer.
    pub(super) folder: bool,
}

/// Decodes a name written by [`encode`]; `None` for anything else.
pub(super) fn decode(name: &str) -> Option<NameChunk> {
    let (encoded, folder) = match name.strip_suffix(FOLDER_MARK) {
        Some(encoded) => (encoded, true),
        None => (name, false),
    };
    let bytes: Vec<u8> = percent_decode(encoded.as_bytes()).collect();
    let length_right = if folder {
        bytes.len() == CHUNK
    } else {
        (1..=CHUNK).contains(&bytes.len())
    };
    let canonical = percent_encode(&bytes, ESCAPED).to_string() == encoded;
    (length_right && canonical).then_some(NameChunk { bytes, folder })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    fn decode_path(path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let chunk = decode(part)?;
            if chunk.folder != parts.peek().is_some() {
                return None;
            }
            bytes.extend(chunk.bytes);
        }
        String::from_utf8(bytes).ok()
    }

    proptest! {
        #[test]
        fn encoding_is_reversible_and_every_name_short(key in "\\PC{1,400}") {
            let path = encode(&key);
            prop_assert!(path.split('/').all(|part| part.len() <= 200 && part != "." && part != ".."));
            prop_assert_eq!(decode_path(&path), Some(key));
        }
    }

    #[test]
    fn foreign_names_are_not_keys() {
        for name in ["", "+", "a+", "a.b", "%2e", "%ZZ", "a%", "ä"] {
            assert_eq!(decode(name), None, "{name}");
        }
    }

    #[test]
    fn own_names_are_reserved_and_similar_ones_are_not() {
        for (name, reserved) in [
            (".bywash", true),
            (".bywash-cp-x", true),
            (".bywash-folder", true),
            (".k.bywash-part", true),
            (".k.bywash-part.state", true),
            (".bywashrc", false),
            ("k.bywash-part", false),
            ("bywash", false),
            (".k", false),
        ] {
            assert_eq!(is_reserved(name), reserved, "{name}");
        }
    }

    #[test]
    fn own_names_and_long_components_do_not_fit_the_tree() {
        let areas = |raw: &str| -> Vec<Area> {
            let key = Path::parse(raw).unwrap();
            places(&key).unwrap().into_iter().map(|p| p.0).collect()
        };
        assert_eq!(areas("a/b"), [Area::Tree, Area::Overflow]);
        assert_eq!(areas("a/.bywash/b"), [Area::Overflow]);
        assert_eq!(areas(".bywash-other"), [Area::Overflow]);
        assert_eq!(areas("a/.k.bywash-part"), [Area::Overflow]);
        assert_eq!(areas(".k.bywash-part.state/b"), [Area::Overflow]);
        assert_eq!(areas("k.bywash-part"), [Area::Tree, Area::Overflow]);
        assert_eq!(areas(&format!("a/{}", "x".repeat(256))), [Area::Overflow]);
        assert!(places(&Path::ROOT).is_err());
    }
}
