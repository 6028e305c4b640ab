//! The bytes of a segment. All integers are little-endian.
//!
//! ```text
//! segment   | header, 1 page | batch | batch | ... | unused | footer | seal, 1 page |
//! batch     | summary, whole pages | payload of each entry, each padded to whole pages |
//! footer    | summary of the whole segment, whole pages |
//!
//! header    | magic 8 | folder id 16 | generation 8 | segment 4 | pages of a segment 4 | crc32c 4 |
//! seal      | magic 8 | generation 8 | footer's first page 4 | footer's pages 4 | crc32c 4 |
//! summary   | magic 4 | crc32c of the rest 4 | generation 8 | number 4 | pages 4 |
//!           | entries 4 | records 4 | erasures 4 | zero 4 | entry .. | record .. | erasure .. | zeros |
//! entry     | version key 16 | block 4 | length 4 | page 4 | crc32c 4 |
//! record    | version size 8 | block size 4 | length of url, key, validator 4 each | url | key | validator |
//! erasure   | version key 16 | entries before it 4 |
//! ```
//!
//! The checksum of an entry covers version key, block number, generation, page, length and payload: a block of an old
//! generation or at another place never matches.

use sha2::{Digest, Sha256};

use crate::VersionRecord;

/// Bytes of a page: the unit of places, padding and direct I/O.
pub(crate) const PAGE: usize = 4096;

const HEADER_MAGIC: &[u8; 8] = b"BYWseg\x00\x01";
const SEAL_MAGIC: &[u8; 8] = b"BYWend\x00\x01";
const SUMMARY_MAGIC: &[u8; 4] = b"BYsm";
const HEADER_BYTES: usize = 44;
const SEAL_BYTES: usize = 28;
const SUMMARY_HEAD_BYTES: usize = 40;
pub(crate) const ENTRY_BYTES: usize = 32;
const RECORD_HEAD_BYTES: usize = 24;
const ERASURE_BYTES: usize = 20;
/// Number of the summary that is a footer.
pub(crate) const FOOTER: u32 = u32::MAX;

/// Identity of one version of an object, cut into blocks of one size: 16 bytes of SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionKey(pub [u8; 16]);

impl VersionKey {
    /// Computes the key of a version. Each text stands behind its length, so no two records share an input.
    #[must_use]
    pub fn of(record: &VersionRecord) -> Self {
        let mut hash = Sha256::new();
        for text in [&record.url, &record.object, &record.validator] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(record.size.to_le_bytes());
        hash.update(record.block_size.to_le_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hash.finalize()[..16]);
        Self(key)
    }
}

/// Hash of an object's name: its origin's URL and its key. Used in memory only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHash(pub(crate) u32);

impl NameHash {
    pub(crate) fn of(url: &str, object: &str) -> Self {
        let length = (url.len() as u64).to_le_bytes();
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for part in [&length[..], url.as_bytes(), object.as_bytes()] {
            digest.update(part);
        }
        #[allow(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
        Self(digest.finalize() as u32)
    }
}

/// First page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) folder: [u8; 16],
    /// Greater than the generation of any segment begun before.
    pub(crate) generation: u64,
    pub(crate) segment: u32,
    pub(crate) pages: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(HEADER_MAGIC);
        page[8..24].copy_from_slice(&self.folder);
        page[24..32].copy_from_slice(&self.generation.to_le_bytes());
        page[32..36].copy_from_slice(&self.segment.to_le_bytes());
        page[36..40].copy_from_slice(&self.pages.to_le_bytes());
        let crc = crc32c(&page[..HEADER_BYTES - 4]);
        page[40..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Returns `None` for bytes that are no header, or a damaged one.
    pub(crate) fn decode(page: &[u8]) -> Option<Self> {
        let mut fields = Fields(page);
        if fields.take(8)? != HEADER_MAGIC {
            return None;
        }
        let header = Self {
            folder: fields.take(16)?.try_into().ok()?,
            generation: fields.u64()?,
            segment: fields.u32()?,
            pages: fields.u32()?,
        };
        (fields.u32()? == crc32c(&page[..HEADER_BYTES - 4])).then_some(header)
    }
}

/// Last page of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) generation: u64,
    pub(crate) footer: u32,
    pub(crate) footer_pages: u32,
}

impl Seal {
    pub(crate) fn encode(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(SEAL_MAGIC);
        page[8..16].copy_from_slice(&self.generation.to_le_bytes());
        page[16..20].copy_from_slice(&self.footer.to_le_bytes());
        page[20..24].copy_from_slice(&self.footer_pages.to_le_bytes());
        let crc = crc32c(&page[..SEAL_BYTES - 4]);
        page[24..SEAL_BYTES].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Returns `None` for bytes that are no seal, or a damaged one.
    pub(crate) fn decode(page: &[u8]) -> Option<Self> {
        let mut fields = Fields(page);
        if fields.take(8)? != SEAL_MAGIC {
            return None;
        }
        let seal = Self {
            generation: fields.u64()?,
            footer: fields.u32()?,
            footer_pages: fields.u32()?,
        };
        (fields.u32()? == crc32c(&page[..SEAL_BYTES - 4])).then_some(seal)
    }
}

/// A block in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) version: VersionKey,
    pub(crate) block: u32,
    /// Bytes of the payload.
    pub(crate) length: u32,
    /// First page of the payload in the segment.
    pub(crate) page: u32,
    pub(crate) crc: u32,
}

impl Entry {
    /// Computes the checksum of a block at this place.
    pub(crate) fn checksum(&self, generation: u64, payload: &[u8]) -> u32 {
        let mut place = [0; 36];
        place[..16].copy_from_slice(&self.version.0);
        place[16..20].copy_from_slice(&self.block.to_le_bytes());
        place[20..28].copy_from_slice(&generation.to_le_bytes());
        place[28..32].copy_from_slice(&self.page.to_le_bytes());
        place[32..].copy_from_slice(&self.length.to_le_bytes());
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&place);
        digest.update(payload);
        #[allow(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
        {
            digest.finalize() as u32
        }
    }

    /// Page after the payload.
    pub(crate) fn end(&self) -> u32 {
        self.page.saturating_add(pages_of(self.length as usize))
    }
}

/// All blocks of a version that earlier entries have are erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Erasure {
    pub(crate) version: VersionKey,
    /// Number of entries of this summary that precede the erasure.
    pub(crate) position: u32,
}

/// Contents of a batch, or of a whole segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) generation: u64,
    /// Number of the batch from 0; [`FOOTER`] for the summary of a segment.
    pub(crate) number: u32,
    pub(crate) entries: Vec<Entry>,
    /// Versions of the entries, as far as no earlier batch of the segment has them.
    pub(crate) records: Vec<VersionRecord>,
    pub(crate) erasures: Vec<Erasure>,
}

impl Summary {
    /// Number of pages that [`Self::encode`] writes.
    pub(crate) fn pages(&self) -> u32 {
        let records: usize = self.records.iter().map(record_bytes).sum();
        let entries = self.entries.len() * ENTRY_BYTES + self.erasures.len() * ERASURE_BYTES;
        pages_of(SUMMARY_HEAD_BYTES + entries + records)
    }

    /// Returns whole pages.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let pages = self.pages();
        let mut bytes = Vec::with_capacity(pages as usize * PAGE);
        bytes.extend_from_slice(SUMMARY_MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        let counts = [
            self.number,
            pages,
            count(self.entries.len()),
            count(self.records.len()),
            count(self.erasures.len()),
            0,
        ];
        for number in counts {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.version.0);
            for number in [entry.block, entry.length, entry.page, entry.crc] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        for record in &self.records {
            bytes.extend_from_slice(&record.size.to_le_bytes());
            bytes.extend_from_slice(&record.block_size.to_le_bytes());
            let texts = [&record.url, &record.object, &record.validator];
            for text in texts {
                bytes.extend_from_slice(&count(text.len()).to_le_bytes());
            }
            for text in texts {
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        for erasure in &self.erasures {
            bytes.extend_from_slice(&erasure.version.0);
            bytes.extend_from_slice(&erasure.position.to_le_bytes());
        }
        bytes.resize(pages as usize * PAGE, 0);
        let crc = crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Number of pages of a summary by its first page, at most `max`.
    pub(crate) fn pages_in(first_page: &[u8], max: u32) -> Option<u32> {
        let mut fields = Fields(first_page);
        if fields.take(4)? != SUMMARY_MAGIC {
            return None;
        }
        fields.take(16)?;
        fields.u32().filter(|pages| (1..=max).contains(pages))
    }

    /// Returns `None` for bytes that are no summary, or a damaged one. `bytes` are as many pages as the summary has.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.take(4)? != SUMMARY_MAGIC
            || (fields.u32()? != crc32c(bytes.get(8..)?)) & !planted!("disk-summary-not-compared")
        {
            return None;
        }
        let (generation, number) = (fields.u64()?, fields.u32()?);
        if fields.u32()? as usize != bytes.len() / PAGE {
            return None;
        }
        let [entries, records, erasures, _] =
            [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        let mut summary = Self {
            generation,
            number,
            ..Self::default()
        };
        // Nothing is reserved by a count alone: each item must be there first.
        for _ in 0..entries {
            summary.entries.push(fields.entry()?);
        }
        for _ in 0..records {
            summary.records.push(fields.record()?);
        }
        for _ in 0..erasures {
            summary.erasures.push(Erasure {
                version: fields.version()?,
                position: fields.u32()?,
            });
        }
        Some(summary)
    }
}

fn record_bytes(record: &VersionRecord) -> usize {
    RECORD_HEAD_BYTES + record.url.len() + record.object.len() + record.validator.len()
}

/// Fields that are read one after another; `None` when the bytes end.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn version(&mut self) -> Option<VersionKey> {
        Some(VersionKey(self.take(16)?.try_into().ok()?))
    }

    fn entry(&mut self) -> Option<Entry> {
        Some(Entry {
            version: self.version()?,
            block: self.u32()?,
            length: self.u32()?,
            page: self.u32()?,
            crc: self.u32()?,
        })
    }

    fn record(&mut self) -> Option<VersionRecord> {
        let (size, block_size) = (self.u64()?, self.u32()?);
        let lengths = [self.u32()?, self.u32()?, self.u32()?];
        let mut text = |length: u32| {
            let bytes = self.take(length as usize)?;
            String::from_utf8(bytes.to_vec()).ok()
        };
        Some(VersionRecord {
            url: text(lengths[0])?,
            object: text(lengths[1])?,
            validator: text(lengths[2])?,
            size,
            block_size,
        })
    }
}

fn count(items: usize) -> u32 {
    u32::try_from(items).expect("a segment has fewer than 2^32 bytes")
}

/// Number of pages for `bytes`.
pub(crate) fn pages_of(bytes: usize) -> u32 {
    count(bytes.div_ceil(PAGE))
}

pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
    {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests;
