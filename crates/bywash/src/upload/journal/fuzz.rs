//! Fuzzing entry points for the journal's parser.

use super::kinds::{FORMAT, Kind};
use super::state::parse;

/// Parses any bytes as a file. Parsing only its whole records again must give the same.
pub(crate) fn file(bytes: &[u8]) {
    let Ok(state) = parse(bytes) else { return };
    let whole = &bytes[..state.length];
    let again = parse(whole).expect("its whole records are a journal");
    assert_eq!(again.length, state.length);
    assert_eq!(
        (again.progress, again.whole, again.process),
        (state.progress, state.whole, state.process)
    );
}

/// Parses any bytes as the bodies of records with valid checksums. The first is the header's; each other one begins
/// with its kind and its length.
pub(crate) fn bodies(mut bytes: &[u8]) {
    let mut out = FORMAT.header();
    let mut kind = Kind::Header.code();
    loop {
        let length = bytes.split_off_first().map_or(0, |byte| usize::from(*byte));
        let body = bytes
            .split_off(..length.min(bytes.len()))
            .unwrap_or_default();
        let position = out.len() as u64;
        let appended = FORMAT.append(&mut out, position, kind, |out| out.extend_from_slice(body));
        assert!(appended, "a body of at most 255 bytes fits");
        file(&out);
        match bytes.split_off_first() {
            Some(next) => kind = u32::from(*next),
            None => return,
        }
    }
}
