//! Comparison with the object of an upload that the store does not know any more: an earlier run with the same signed addresses may have
//! completed it.

use std::collections::BTreeMap;

use bywash_store::Finished;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;

/// ETag of an object of parts, as S3 computes it: the MD5 of the MD5s of its parts, and their number.
#[derive(Debug, Default)]
pub(super) struct PartsETag {
    md5s: Md5,
    parts: u64,
}

impl PartsETag {
    /// Adds the MD5 of the next part.
    pub(super) fn add(&mut self, md5: &[u8; 16]) {
        self.md5s.update(md5);
        self.parts += 1;
    }

    /// Whether this is the ETag of an object.
    pub(super) fn matches(self, object: &Finished) -> bool {
        let digits = self.md5s.finalize();
        let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
        let known = object.e_tag.as_deref().unwrap_or_default();
        known.trim_matches('"') == format!("{digits}-{}", self.parts)
    }
}

/// A part that is compared: its MD5 and its length.
type ComparedPart = ([u8; 16], u64);

#[derive(Debug)]
enum ComparisonState {
    /// The store takes parts. `has_parts`: some are there already.
    Open { has_parts: bool },
    /// The upload has ended, and parts are compared with this object.
    Comparing(Box<Finished>, BTreeMap<u64, ComparedPart>),
    /// The upload has ended, and nothing proves that it became the object.
    Unproven,
}

/// State of an upload whose parts are compared with an object once it has ended.
#[derive(Debug)]
pub(super) struct ObjectComparison(Mutex<ComparisonState>);

impl ObjectComparison {
    pub(super) fn new() -> Self {
        Self(Mutex::new(ComparisonState::Open { has_parts: false }))
    }

    /// Records that the store has parts that cannot be compared: this run sent them, or does not send them.
    pub(super) fn note_parts(&self) {
        if let ComparisonState::Open { has_parts } = &mut *self.0.lock() {
            *has_parts = true;
        }
    }

    /// Begins the comparison with the object of an upload that has ended, unless the MD5s of earlier parts are missing: another run then
    /// compares every chunk. Returns whether it has begun.
    pub(super) fn begin(&self, object: Option<Finished>) -> bool {
        let mut state = self.0.lock();
        match (&*state, object) {
            (ComparisonState::Open { has_parts: false }, Some(object)) => {
                *state = ComparisonState::Comparing(Box::new(object), BTreeMap::new());
            }
            (ComparisonState::Open { .. }, None) => *state = ComparisonState::Unproven,
            _ => {}
        }
        matches!(*state, ComparisonState::Comparing(..))
    }

    /// Whether parts are compared, and not sent.
    pub(super) fn has_begun(&self) -> bool {
        matches!(*self.0.lock(), ComparisonState::Comparing(..))
    }

    /// Whether the upload has ended, and nothing proves that it became the object.
    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.0.lock(), ComparisonState::Unproven)
    }

    /// Adds the part `index`, counted from 0.
    pub(super) fn add(&self, index: u64, part: ComparedPart) {
        if let ComparisonState::Comparing(_, parts) = &mut *self.0.lock() {
            parts.insert(index, part);
        }
    }

    /// The object, if it is proven to consist of the parts, which have `length` bytes.
    pub(super) fn proven(&self, length: u64) -> Option<Finished> {
        let mut state = self.0.lock();
        let ComparisonState::Comparing(object, parts) = &*state else {
            return None;
        };
        let mut e_tag = PartsETag::default();
        if length == 0 {
            // An upload has at least one part.
            e_tag.add(&Md5::digest([]).into());
        }
        let mut compared = 0;
        for (expected, (index, (md5, bytes))) in parts.iter().enumerate() {
            if *index != expected as u64 {
                break;
            }
            e_tag.add(md5);
            compared += bytes;
        }
        let is_whole = compared == length && object.length == Some(length);
        if is_whole && e_tag.matches(object) {
            return Some(object.as_ref().clone());
        }
        *state = ComparisonState::Unproven;
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn md5(text: &str) -> [u8; 16] {
        Md5::digest(text).into()
    }

    fn object_of(parts: &[&str]) -> Finished {
        let mut all = Md5::new();
        parts.iter().for_each(|part| all.update(md5(part)));
        let digits: String = all
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let length = parts.iter().map(|part| part.len() as u64).sum();
        Finished {
            e_tag: Some(format!("\"{digits}-{}\"", parts.len())),
            length: Some(length),
            ..Finished::default()
        }
    }

    #[test]
    fn object_of_the_same_parts_is_proven_whatever_their_order() {
        for parts in [&["ab", "cd", "e"][..], &["a"], &[""]] {
            let comparison = ObjectComparison::new();
            let found = object_of(parts);
            assert!(comparison.begin(Some(found.clone())));
            for (index, part) in parts
                .iter()
                .enumerate()
                .rev()
                .filter(|part| !part.1.is_empty())
            {
                comparison.add(index as u64, (md5(part), part.len() as u64));
            }
            let length = found.length.unwrap();
            assert_eq!(comparison.proven(length), Some(found), "{parts:?}");
            assert!(!comparison.has_failed());
        }
    }

    #[test]
    fn other_parts_lengths_and_etags_prove_nothing() {
        let other_e_tag = Finished {
            e_tag: Some("\"1792-5\"".to_owned()),
            ..object_of(&["ab", "cd"])
        };
        for (object, parts, length) in [
            (object_of(&["ab", "cd"]), &[(0, "ab"), (1, "ce")][..], 4),
            (object_of(&["ab", "cd"]), &[(0, "abcd")], 4),
            (object_of(&["ab", "cd"]), &[(0, "ab")], 2),
            (object_of(&["ab", "cd"]), &[(0, "ab"), (2, "cd")], 4),
            (other_e_tag, &[(0, "ab"), (1, "cd")], 4),
        ] {
            let comparison = ObjectComparison::new();
            assert!(comparison.begin(Some(object)));
            for (index, part) in parts {
                comparison.add(*index, (md5(part), part.len() as u64));
            }
            assert_eq!(comparison.proven(length), None, "{parts:?}");
            assert!(comparison.has_failed(), "{parts:?}");
        }
    }

    #[test]
    fn upload_with_parts_of_this_run_is_left_to_another_run() {
        let comparison = ObjectComparison::new();
        comparison.note_parts();
        assert!(!comparison.begin(Some(object_of(&["ab"]))));
        assert!(!comparison.has_failed());
        let comparison = ObjectComparison::new();
        assert!(!comparison.begin(None) && comparison.has_failed());
    }
}
