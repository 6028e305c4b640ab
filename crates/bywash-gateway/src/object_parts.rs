//! The parts of an object that was uploaded in parts, kept with it: numbers, sizes and checksums.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::UploadedPart;
use object_store::{Attribute, Attributes};

use crate::digest::{Algorithm, Checksum};
use crate::limits::{MAX_PART_NUMBER, MAX_PARTS_ATTRIBUTE_BYTES};
use crate::uploads::Part;

/// Runs of consecutive parts of one size, `FIRST:SIZE*COUNT`, divided by commas.
const PARTS: Attribute = Attribute::Metadata(Cow::Borrowed("bywash-parts"));
/// Algorithm, space, base64 of the checksums of all parts.
const CHECKSUMS: Attribute = Attribute::Metadata(Cow::Borrowed("bywash-part-checksums"));

/// One part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectPart {
    pub(crate) number: u16,
    /// Its bytes in the object.
    pub(crate) range: Range<u64>,
    pub(crate) checksum: Option<Checksum>,
}

/// The parts of an object, by ascending numbers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ObjectParts(pub(crate) Vec<ObjectPart>);

impl ObjectParts {
    /// The parts of a completed upload.
    pub(crate) fn of(chosen: &[(UploadedPart, &Part)]) -> Self {
        let mut parts = Self::default();
        for (uploaded, part) in chosen {
            parts.push(uploaded.number, part.size, part.checksum.clone());
        }
        parts
    }

    fn push(&mut self, number: u16, size: u64, checksum: Option<Checksum>) {
        let start = self.0.last().map_or(0, |last| last.range.end);
        self.0.push(ObjectPart {
            number,
            range: start..start + size,
            checksum,
        });
    }

    /// Adds the parts to the attributes of their object, each attribute if it is not too long.
    pub(crate) fn keep(&self, attributes: &mut Attributes) {
        for (name, value) in [(PARTS, Some(self.runs())), (CHECKSUMS, self.checksums())] {
            if let Some(value) = value.filter(|value| value.len() <= MAX_PARTS_ATTRIBUTE_BYTES) {
                attributes.insert(name, value.into());
            }
        }
    }

    /// Copies the parts from the attributes of an object to the attributes of another with the same
    /// bytes.
    pub(crate) fn copy(from: &Attributes, to: &mut Attributes) {
        for name in [PARTS, CHECKSUMS] {
            if let Some(value) = from.get(&name) {
                to.insert(name, value.clone());
            }
        }
    }

    /// Removes the parts from attributes.
    pub(crate) fn remove(attributes: &mut Attributes) {
        attributes.remove(&PARTS);
        attributes.remove(&CHECKSUMS);
    }

    /// The parts kept with an object of `size` bytes; `None` if it has none.
    pub(crate) fn kept(attributes: &Attributes, size: u64) -> Option<Self> {
        let mut parts = Self::default();
        for run in attributes.get(&PARTS)?.split(',') {
            let (first, rest) = run.split_once(':')?;
            let (length, count) = rest.split_once('*')?;
            let (first, count): (u16, u16) = (first.parse().ok()?, count.parse().ok()?);
            let length = length.parse().ok()?;
            let last = first.checked_add(count.checked_sub(1)?)?;
            if last > MAX_PART_NUMBER || parts.0.last().is_some_and(|part| part.number >= first) {
                return None;
            }
            (first..=last).for_each(|number| parts.push(number, length, None));
        }
        // The size of another object would be a damaged side file.
        if parts.0.last()?.range.end != size {
            return None;
        }
        if let Some(value) = attributes.get(&CHECKSUMS) {
            parts.set_checksums(value);
        }
        Some(parts)
    }

    fn runs(&self) -> String {
        let mut runs: Vec<(u16, u64, u16)> = Vec::new();
        for part in &self.0 {
            let size = part.range.end - part.range.start;
            match runs.last_mut() {
                Some((first, length, count))
                    if *length == size && *first + *count == part.number =>
                {
                    *count += 1;
                }
                _ => runs.push((part.number, size, 1)),
            }
        }
        let runs: Vec<String> = runs
            .into_iter()
            .map(|(first, length, count)| format!("{first}:{length}*{count}"))
            .collect();
        runs.join(",")
    }

    fn checksums(&self) -> Option<String> {
        let algorithm = self.0.first()?.checksum.as_ref()?.algorithm;
        let mut digests = Vec::new();
        for part in &self.0 {
            let checksum = part.checksum.as_ref();
            let checksum = checksum.filter(|checksum| checksum.algorithm == algorithm)?;
            digests.extend(algorithm.decode(&checksum.value)?);
        }
        Some(format!(
            "{} {}",
            algorithm.name(),
            BASE64_STANDARD.encode(digests)
        ))
    }

    fn set_checksums(&mut self, kept: &str) {
        let decoded = kept.split_once(' ').and_then(|(name, digests)| {
            let digests = BASE64_STANDARD.decode(digests).ok()?;
            Some((Algorithm::by_name(name)?, digests))
        });
        let Some((algorithm, digests)) = decoded else {
            return;
        };
        let digests = digests.chunks_exact(algorithm.len());
        if digests.len() == self.0.len() {
            for (part, digest) in self.0.iter_mut().zip(digests) {
                part.checksum = Some(Checksum {
                    algorithm,
                    value: BASE64_STANDARD.encode(digest),
                });
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The part `number`.
    pub(crate) fn part(self, number: u16) -> Option<ObjectPart> {
        self.0.into_iter().find(|part| part.number == number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn parts(sizes: &[(u16, u64)], with: impl Fn(u16) -> Option<Checksum>) -> ObjectParts {
        let mut parts = ObjectParts::default();
        for (number, size) in sizes {
            parts.push(*number, *size, with(*number));
        }
        parts
    }

    fn crc(number: u16) -> Option<Checksum> {
        let value = BASE64_STANDARD.encode(u32::from(number).to_be_bytes());
        let algorithm = Algorithm::Crc32c;
        Some(Checksum { algorithm, value })
    }

    #[test]
    fn parts_are_kept_as_runs_with_their_checksums() {
        let sizes = [(1, 8), (2, 8), (3, 8), (5, 8), (6, 3), (9000, 3)];
        for with in [crc as fn(u16) -> Option<Checksum>, |_| None] {
            let whole = parts(&sizes, with);
            let mut attributes = Attributes::new();
            whole.keep(&mut attributes);
            let kept = ObjectParts::kept(&attributes, 38).unwrap();
            assert_eq!(kept, whole);
            assert_eq!(kept.clone().part(5).unwrap().range, 24..32);
            assert_eq!(kept.part(4), None);
            assert_eq!(ObjectParts::kept(&attributes, 39), None, "another size");
        }
        assert_eq!(parts(&sizes, crc).runs(), "1:8*3,5:8*1,6:3*1,9000:3*1");
    }

    #[test]
    fn checksums_too_long_to_keep_are_left_out_and_the_sizes_kept() {
        let sizes: Vec<_> = (1..=10_000).map(|number| (number, 5 << 20)).collect();
        let sha256 = |number: u16| {
            let digest = [number.to_be_bytes()[1]; 32];
            let value = BASE64_STANDARD.encode(digest);
            let algorithm = Algorithm::Sha256;
            Some(Checksum { algorithm, value })
        };
        let mut attributes = Attributes::new();
        let whole = parts(&sizes, sha256);
        whole.keep(&mut attributes);
        assert_eq!(attributes.len(), 1);
        let kept = ObjectParts::kept(&attributes, 10_000 * (5 << 20)).unwrap();
        assert_eq!((kept.len(), &kept.0[9].checksum), (10_000, &None));
        let mut short = Attributes::new();
        parts(&sizes, crc).keep(&mut short);
        assert_eq!(short.len(), 2, "those of a CRC fit");
    }

    #[test]
    fn damaged_attribute_is_no_list_of_parts() {
        for text in [
            "",
            "1",
            "1:5",
            "1:5*0",
            "2:5*1,1:5*1",
            "1:5*10001",
            "1:x*1",
            "9999:1*9",
        ] {
            let attributes = Attributes::from_iter([(PARTS, text.to_owned())]);
            assert_eq!(ObjectParts::kept(&attributes, 5), None, "{text}");
        }
    }
}
