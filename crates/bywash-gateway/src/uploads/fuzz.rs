//! Properties of upload files that fuzzers check.

use super::record::{FORMAT, read};

/// Any bytes as a file. The valid records alone decode to the same content.
pub(crate) fn file(bytes: &[u8]) {
    if let Ok(content) = read(bytes) {
        let again = read(&bytes[..content.whole]).expect("its whole records are a file");
        assert_eq!((again.whole, again.name), (content.whole, content.name));
        assert_eq!(again.upload.parts, content.upload.parts);
    }
}

/// Any lines as bodies of records with valid checksums: each begins with its kind.
pub(crate) fn bodies(bytes: &[u8]) {
    let mut out = FORMAT.header();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((kind, body)) = line.split_first() else {
            continue;
        };
        let position = out.len() as u64;
        let kind = u32::from(*kind);
        if !FORMAT.append(&mut out, position, kind, |out| out.extend_from_slice(body)) {
            return;
        }
    }
    file(&out);
}
