//! Contents of the segments of a folder, read from their footers. Payloads are not read: each read
//! checks its own.

use std::io;
use std::thread::{self, ScopedJoinHandle};

use crate::format::{Entry, FOOTER, Header, PAGE, Seal, Summary};
use crate::segment::Segment;
use crate::storage::{Pages, SegmentFile, Storage};
use crate::sync::Counted;

/// Threads that read many segments: one read waits for the disk at a time, several keep it busy.
const THREADS: usize = 4;
/// Segments whose contents are in memory at once.
pub(crate) const SEGMENTS_AT_ONCE: usize = 16;

/// The files of a folder.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Segments of this folder, oldest first.
    pub(crate) segments: Vec<Counted<Segment>>,
    /// Numbers of files that are none, or of another size.
    pub(crate) unusable: Vec<u32>,
    /// Numbers of files that the system did not open or read, and one of its errors: they may be segments.
    pub(crate) unread: Vec<u32>,
    pub(crate) error: Option<io::Error>,
}

/// Opens all segments of this folder.
pub(crate) fn segments(storage: &dyn Storage, folder: [u8; 16], pages: u32) -> io::Result<Found> {
    let numbers = storage.list()?;
    let opened = in_threads(&numbers, |&number| open(storage, folder, pages, number));
    let mut found = Found::default();
    for (number, opened) in numbers.into_iter().zip(opened) {
        match opened {
            Ok(Some(segment)) => found.segments.push(Counted::new(segment)),
            Ok(None) => found.unusable.push(number),
            Err(error) => {
                found.unread.push(number);
                found.error = Some(error);
            }
        }
    }
    found.segments.sort_by_key(|segment| segment.generation);
    Ok(found)
}

/// Calls `run` for each item, and returns the results in their order.
fn in_threads<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let run_all = |items: &[T]| -> Vec<R> { items.iter().map(&run).collect() };
    if items.len() < 2 * THREADS {
        return run_all(items);
    }
    thread::scope(|scope| {
        let run_all = &run_all;
        let parts = items.chunks(items.len().div_ceil(THREADS));
        let threads: Vec<_> = parts
            .map(|items| scope.spawn(move || run_all(items)))
            .collect();
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("it does not panic");
        threads.into_iter().flat_map(join).collect()
    })
}

fn open(
    storage: &dyn Storage,
    folder: [u8; 16],
    pages: u32,
    number: u32,
) -> io::Result<Option<Segment>> {
    let (file, length) = storage.open(number)?;
    if length != u64::from(pages) * PAGE as u64 {
        return Ok(None);
    }
    let header = Header::decode(read(&*file, 0, 1)?.as_ref());
    let header = header.filter(|header| {
        // The next segment has the generation after.
        (header.folder, header.segment, header.pages) == (folder, number, pages)
            && header.generation < u64::MAX
    });
    Ok(header.map(|header| Segment::new(number, header.generation, file)))
}

/// Reads the contents of each segment: its footer alone, or the summaries of its batches.
pub(crate) fn contents_of(
    segments: &[Counted<Segment>],
    pages: u32,
) -> Vec<io::Result<Vec<Summary>>> {
    in_threads(segments, |segment| contents(segment, pages))
}

/// Reads the contents of one segment.
pub(crate) fn contents(segment: &Segment, pages: u32) -> io::Result<Vec<Summary>> {
    let (file, generation) = (&*segment.file, segment.generation);
    match footer(file, generation, pages)? {
        Some(footer) => Ok(vec![footer]),
        None => batches(file, generation, pages),
    }
}

/// Reads the footer of a sealed segment.
fn footer(file: &dyn SegmentFile, generation: u64, pages: u32) -> io::Result<Option<Summary>> {
    let seal = Seal::decode(read(file, pages - 1, 1)?.as_ref());
    let seal = seal.filter(|seal| seal.generation == generation);
    // The seal's checksum proves that these numbers were written, not that they lie in the segment.
    let range = seal.filter(|seal| within(seal.footer, seal.footer_pages, pages));
    let Some(seal) = range else {
        return Ok(None);
    };
    let bytes = read(file, seal.footer, seal.footer_pages)?;
    let footer = Summary::decode(bytes.as_ref());
    Ok(footer.filter(|footer| {
        (footer.generation, footer.number) == (generation, FOOTER)
            && footer
                .entries
                .iter()
                .all(|entry| placed(entry, 1, seal.footer))
    }))
}

/// Reads batch after batch of a segment without seal, up to the first that was not written whole.
fn batches(file: &dyn SegmentFile, generation: u64, pages: u32) -> io::Result<Vec<Summary>> {
    let (mut page, mut summaries) = (1, Vec::new());
    while page < pages - 1 {
        let first = read(file, page, 1)?;
        let Some(length) = Summary::pages_in(first.as_ref(), pages - 1 - page) else {
            break;
        };
        let bytes = read(file, page, length)?;
        let Some(summary) = Summary::decode(bytes.as_ref()) else {
            break;
        };
        let any = planted!("disk-batch-of-an-older-generation");
        let generation = if any { summary.generation } else { generation };
        let expected = (generation, summaries.len());
        let payload = page + length;
        let valid = (summary.generation, summary.number as usize) == expected
            && summary
                .entries
                .iter()
                .all(|entry| placed(entry, payload, pages - 1));
        if !valid {
            break;
        }
        page = summary
            .entries
            .iter()
            .map(Entry::end)
            .max()
            .unwrap_or(payload);
        summaries.push(summary);
    }
    Ok(summaries)
}

/// Whether a payload is between two pages.
fn placed(entry: &Entry, first: u32, end: u32) -> bool {
    entry.length > 0 && entry.page >= first && entry.end() <= end
}

fn within(first: u32, count: u32, pages: u32) -> bool {
    first > 0 && count > 0 && first.checked_add(count).is_some_and(|end| end < pages)
}

fn read(file: &dyn SegmentFile, page: u32, count: u32) -> io::Result<Pages> {
    let mut pages = Pages::zeroed(count);
    file.read(pages.as_mut(), page)?;
    Ok(pages)
}
