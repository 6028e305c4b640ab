//! One segment: the newest is written, all are read.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use crate::Block;
use crate::format::{Entry, Erasure, FOOTER, Header, PAGE, Seal, Summary, VersionKey, pages_of};
use crate::index::Place;
use crate::limits::MAX_FAILED_READS;
use crate::storage::{Pages, SegmentFile};
use crate::sync::{AtomicU32, Counted, Ordering};

/// A segment as its readers hold it. Used again only when no reader holds it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) generation: u64,
    pub(crate) file: Arc<dyn SegmentFile>,
    failed_reads: AtomicU32,
}

/// Outcome of a read.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// The bytes are those written.
    Exact,
    /// The bytes are others.
    Mismatch,
    /// The file could not be read.
    Failed(io::Error),
}

impl Segment {
    pub(crate) fn new(number: u32, generation: u64, file: Arc<dyn SegmentFile>) -> Self {
        Self {
            number,
            generation,
            file,
            failed_reads: AtomicU32::new(0),
        }
    }

    /// Counts a failed read; returns whether it was the last one allowed.
    pub(crate) fn count_failed_read(&self) -> bool {
        self.failed_reads.fetch_add(1, Ordering::Relaxed) + 1 == MAX_FAILED_READS
    }

    /// Makes this the next segment to be used again: it has no blocks.
    pub(crate) fn give_up(&self) {
        self.failed_reads.store(MAX_FAILED_READS, Ordering::Relaxed);
    }

    /// Whether the segment has no blocks, or cannot be read.
    pub(crate) fn is_given_up(&self) -> bool {
        self.failed_reads.load(Ordering::Relaxed) >= MAX_FAILED_READS
    }

    /// Reads a block into `buffer`, which is whole pages and at least as long as the block.
    pub(crate) fn read(
        &self,
        version: VersionKey,
        block: u32,
        place: Place,
        buffer: &mut [u8],
    ) -> ReadOutcome {
        let pages = pages_of(place.length as usize) as usize * PAGE;
        let Some(buffer) = buffer.get_mut(..pages) else {
            return ReadOutcome::Failed(io::Error::from(io::ErrorKind::InvalidInput));
        };
        if let Err(error) = self.file.read(buffer, place.page) {
            return ReadOutcome::Failed(error);
        }
        let entry = Entry {
            version,
            block,
            length: place.length,
            page: place.page,
            crc: place.crc,
        };
        let crc = entry.checksum(self.generation, &buffer[..place.length as usize]);
        match crc == place.crc || planted!("disk-crc-not-compared") {
            true => ReadOutcome::Exact,
            false => ReadOutcome::Mismatch,
        }
    }
}

/// Pieces of a batch for one vectored write. Whole pages of aligned payloads are written from where they are; the
/// others are copied.
#[derive(Default)]
struct Pieces<'a> {
    pieces: Vec<Piece<'a>>,
}

enum Piece<'a> {
    InPlace(&'a [u8]),
    Copied(Pages),
}

impl<'a> Pieces<'a> {
    fn push(&mut self, bytes: &'a [u8]) {
        let aligned = bytes.as_ptr().align_offset(PAGE) == 0;
        let (pages, rest) = bytes.split_at(if aligned {
            bytes.len() / PAGE * PAGE
        } else {
            0
        });
        if !pages.is_empty() {
            self.pieces.push(Piece::InPlace(pages));
        }
        if !rest.is_empty() {
            self.pieces.push(Piece::Copied(Pages::copy_of(rest)));
        }
    }

    fn as_slices(&self) -> Vec<&[u8]> {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::InPlace(bytes) => *bytes,
            Piece::Copied(pages) => pages.as_ref(),
        });
        pieces.collect()
    }
}

/// The newest segment, open for appends.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    pub(crate) segment: Counted<Segment>,
    pages: u32,
    next_page: u32,
    next_batch: u32,
    /// Content of the footer.
    footer: Summary,
    /// Versions whose record is in the footer.
    recorded: HashSet<VersionKey>,
}

impl SegmentWriter {
    /// Begins a segment of `pages` pages: its former contents are void.
    pub(crate) fn begin(
        segment: Counted<Segment>,
        folder: [u8; 16],
        pages: u32,
    ) -> io::Result<Self> {
        let header = Header {
            folder,
            generation: segment.generation,
            segment: segment.number,
            pages,
        };
        segment
            .file
            .write(&[Pages::copy_of(&header.encode()).as_ref()], 0)?;
        Ok(Self {
            footer: Summary {
                generation: segment.generation,
                number: FOOTER,
                ..Summary::default()
            },
            segment,
            pages,
            next_page: 1,
            next_batch: 0,
            recorded: HashSet::new(),
        })
    }

    /// Appends blocks and erasures. Returns the place of each block, or `None` if they do not fit: seal this segment, and append
    /// them to the next one.
    pub(crate) fn append(
        &mut self,
        blocks: &[Block<'_>],
        erased: &[VersionKey],
    ) -> io::Result<Option<Vec<Place>>> {
        let mut batch = self.batch(blocks, erased);
        let first_payload = self.next_page + batch.pages();
        let mut page = first_payload;
        for (entry, block) in batch.entries.iter_mut().zip(blocks) {
            entry.page = page;
            entry.crc = entry.checksum(batch.generation, block.bytes);
            page = entry.end();
        }
        let footer = self.footer_with(&batch);
        // The last page is the seal.
        if u64::from(page) + u64::from(footer.pages()) + 1 > u64::from(self.pages) {
            return Ok(None);
        }
        let summary = batch.encode();
        let mut pieces = Pieces::default();
        pieces.push(&summary);
        for block in blocks {
            pieces.push(block.bytes);
        }
        self.segment
            .file
            .write(&pieces.as_slices(), self.next_page)?;
        let places = batch
            .entries
            .iter()
            .map(|entry| Place::of(self.segment.number, entry))
            .collect();
        self.recorded
            .extend(batch.records.iter().map(VersionKey::of));
        self.footer = footer;
        self.next_page = page;
        self.next_batch += 1;
        Ok(Some(places))
    }

    /// Summary of the batch, its entries without places.
    fn batch(&self, blocks: &[Block<'_>], erased: &[VersionKey]) -> Summary {
        let mut new = HashSet::new();
        let records = blocks
            .iter()
            .filter(|block| !self.recorded.contains(&block.version) && new.insert(block.version))
            .map(|block| block.record.clone())
            .collect();
        Summary {
            generation: self.segment.generation,
            number: self.next_batch,
            entries: blocks
                .iter()
                .map(|block| Entry {
                    version: block.version,
                    block: block.number,
                    length: u32::try_from(block.bytes.len()).expect("a block fits a segment"),
                    page: 0,
                    crc: 0,
                })
                .collect(),
            records,
            // An erasure precedes the blocks that are written with it.
            erasures: erased
                .iter()
                .map(|&version| Erasure {
                    version,
                    position: 0,
                })
                .collect(),
        }
    }

    fn footer_with(&self, batch: &Summary) -> Summary {
        let mut footer = self.footer.clone();
        let position = u32::try_from(footer.entries.len()).expect("fewer than 2^32 pages");
        let erasures = batch.erasures.iter();
        footer.erasures.extend(erasures.map(|erasure| Erasure {
            position,
            ..*erasure
        }));
        footer.entries.extend_from_slice(&batch.entries);
        footer.records.extend_from_slice(&batch.records);
        footer
    }

    /// Whether no batch was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.next_batch == 0
    }

    /// Pages for further batches.
    pub(crate) fn free_pages(&self) -> u32 {
        (self.pages - self.next_page).saturating_sub(self.footer.pages() + 1)
    }

    /// Bytes written so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        u64::from(self.next_page) * PAGE as u64
    }

    /// Bytes of footer and seal.
    pub(crate) fn footer_bytes(&self) -> u64 {
        u64::from(self.footer.pages() + 1) * PAGE as u64
    }

    /// Writes footer and seal, and returns when all of the segment is on disk.
    pub(crate) fn seal(self) -> io::Result<()> {
        let footer = Pages::copy_of(&self.footer.encode());
        self.segment
            .file
            .write(&[footer.as_ref()], self.next_page)?;
        let seal = Seal {
            generation: self.segment.generation,
            footer: self.next_page,
            footer_pages: self.footer.pages(),
        };
        self.segment
            .file
            .write(&[Pages::copy_of(&seal.encode()).as_ref()], self.pages - 1)?;
        self.segment.file.sync()
    }
}
