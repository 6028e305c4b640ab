//! Protocol of resumable uploads to Azure: requests, and the outcome of responses. No I/O, no clock.
//!
//! A chunk is one block. The block's id encodes its upload, its range and its CRC32C; the store checks the MD5 on
//! arrival. So a list of blocks contains all that a takeover needs, before the commit and after it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::upload::is_hex;
use crate::digest::ContentDigest;
use crate::interface::ListedPart;
use crate::session::{Chunk, ChunkRule, StoredRange};

/// Azure's rule for blocks.
pub(super) const RULE: ChunkRule = ChunkRule {
    granule: 1,
    min: 1,
    max: 4000 << 20,
    max_chunks: Some(50_000),
    parallel: true,
};

/// The content of a block id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) id: String,
    pub(super) range: Range<u64>,
    crc32c: u32,
}

impl Block {
    /// Returns the block of a chunk of the upload `name`.
    pub(super) fn of(name: &str, chunk: &Chunk) -> Self {
        let (offset, crc32c) = (chunk.offset, chunk.crc32c);
        let text = format!("{name}{:08}{offset:016x}{crc32c:08x}", chunk.index);
        Self {
            id: BASE64_STANDARD.encode(text),
            range: chunk.range(),
            crc32c,
        }
    }

    /// Returns `None` if the block belongs to another upload.
    fn listed(name: &str, listed: &Listed) -> Option<Self> {
        let text = String::from_utf8(BASE64_STANDARD.decode(&listed.name).ok()?).ok()?;
        let rest = text.strip_prefix(name).filter(|rest| rest.len() == 32)?;
        let (_index, rest) = rest.split_at_checked(8)?;
        let (offset, crc32c) = rest.split_at_checked(16)?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        Some(Self {
            id: listed.name.clone(),
            range: offset..offset.checked_add(listed.size)?,
            crc32c: u32::from_str_radix(crc32c, 16).ok()?,
        })
    }

    pub(super) fn stored(&self) -> StoredRange {
        StoredRange {
            range: self.range.clone(),
            digest: Some(ContentDigest::Crc32c(self.crc32c)),
        }
    }
}

/// Blocks of an upload, by offset. A later block replaces an earlier one.
pub(super) type Blocks = BTreeMap<u64, Block>;

/// Returns the blocks that together are an object of `length` bytes; `None` if some are missing.
pub(super) fn covering(blocks: &Blocks, length: u64) -> Option<Vec<String>> {
    let (mut at, mut ids) = (0, Vec::new());
    while at < length {
        let block = blocks.get(&at).filter(|block| !block.range.is_empty())?;
        at = block.range.end;
        ids.push(block.id.clone());
    }
    (at == length).then_some(ids)
}

#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Size")]
    size: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Group {
    #[serde(rename = "Block", default)]
    blocks: Vec<Listed>,
}

/// A list of a blob's blocks.
#[derive(Debug, Deserialize)]
#[serde(rename = "BlockList")]
pub(super) struct BlockLists {
    #[serde(rename = "CommittedBlocks")]
    committed: Group,
    #[serde(rename = "UncommittedBlocks")]
    uncommitted: Group,
}

impl BlockLists {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        // Azure's documents begin with a byte order mark.
        quick_xml::de::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|error| error.to_string())
    }

    /// Returns the uncommitted blocks of the upload `name`.
    pub(super) fn open(&self, name: &str) -> Blocks {
        let blocks = self.uncommitted.blocks.iter();
        blocks
            .filter_map(|listed| Block::listed(name, listed))
            .map(|block| (block.range.start, block))
            .collect()
    }

    /// Returns the uncommitted blocks that are parts of an upload, by the number and tag that `part_of` reads from a block's id.
    pub(super) fn parts(&self, part_of: impl Fn(&str) -> Option<(u16, String)>) -> Vec<ListedPart> {
        let part = |listed: &Listed| {
            let (number, e_tag) = part_of(&listed.name)?;
            Some(ListedPart {
                number,
                e_tag,
                size: listed.size,
                modified: None,
            })
        };
        self.uncommitted.blocks.iter().filter_map(part).collect()
    }

    /// Returns the blob's length, if it consists of blocks of the upload `name`.
    pub(super) fn committed(&self, name: &str) -> Option<u64> {
        let mut length = 0;
        for listed in &self.committed.blocks {
            let block = Block::listed(name, listed).filter(|block| block.range.start == length)?;
            length = block.range.end;
        }
        Some(length).filter(|_| !self.committed.blocks.is_empty())
    }
}

/// Parses a token: the name of the upload, and the blocks that its process knew.
pub(super) fn parse_token(token: &str) -> Option<(&str, Blocks)> {
    let mut lines = token.split('\n');
    let name = lines.next()?.strip_prefix("blocks ");
    let name = name.filter(|name| is_hex(name))?;
    let blocks = lines.map(|line| {
        let (id, size) = line.split_once(' ')?;
        let listed = Listed {
            name: id.to_owned(),
            size: size.parse().ok()?,
        };
        let block = Block::listed(name, &listed)?;
        Some((block.range.start, block))
    });
    Some((name, blocks.collect::<Option<_>>()?))
}

/// Returns the token of the upload `name`: a line for the upload, and one for each of its blocks, of use to a process that
/// may write and not list.
pub(super) fn token_of(name: &str, blocks: &Blocks) -> String {
    let mut token = format!("blocks {name}");
    for block in blocks.values() {
        let size = block.range.end - block.range.start;
        let _ = write!(token, "\n{} {size}", block.id);
    }
    token
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bytes::Bytes;

    use super::*;

    const NAME: &str = "0123456789abcdef";

    fn chunk(index: u64, offset: u64, bytes: &'static [u8]) -> Chunk {
        Chunk {
            index,
            offset,
            pieces: vec![Bytes::from_static(bytes)],
            crc32c: 0xE306_9283,
        }
    }

    fn list(committed: &[(&str, u64)], open: &[(&str, u64)]) -> BlockLists {
        let group = |blocks: &[(&str, u64)]| {
            let block = |(name, size): &(&str, u64)| {
                format!("<Block><Name>{name}</Name><Size>{size}</Size></Block>")
            };
            blocks.iter().map(block).collect::<String>()
        };
        let text = format!(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList><CommittedBlocks>{}</CommittedBlocks>\
             <UncommittedBlocks>{}</UncommittedBlocks></BlockList>",
            group(committed),
            group(open)
        );
        BlockLists::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn block_list_contains_range_and_checksum_of_each_block() {
        let (first, third) = (chunk(0, 0, b"12345"), chunk(2, 10, b"xyz"));
        let (one, three) = (Block::of(NAME, &first), Block::of(NAME, &third));
        assert_eq!(
            one.id.len(),
            64,
            "Azure takes 64 bytes before base64, all of one length"
        );
        assert_eq!(one.id.len(), three.id.len());
        assert_eq!(
            one,
            Block::of(NAME, &first),
            "the same bytes have the same id"
        );
        let foreign = Block::of("fedcba9876543210", &first);
        let lists = list(
            &[],
            &[(&three.id, 3), (&foreign.id, 5), (&one.id, 5), ("AAAA", 1)],
        );
        let stored: Vec<_> = lists.open(NAME).values().map(Block::stored).collect();
        let digest = Some(ContentDigest::Crc32c(0xE306_9283));
        assert_eq!(
            stored,
            [
                StoredRange {
                    range: 0..5,
                    digest
                },
                StoredRange {
                    range: 10..13,
                    digest
                }
            ]
        );
        assert_eq!(lists.committed(NAME), None);
        assert!(BlockLists::parse(b"<html></html>").is_err());
    }

    #[test]
    fn commit_lists_the_blocks_of_the_whole_object() {
        let blocks =
            [chunk(0, 0, b"12345"), chunk(1, 5, b"678")].map(|chunk| Block::of(NAME, &chunk));
        let ids = blocks.clone().map(|block| block.id);
        let all: Blocks = blocks
            .clone()
            .map(|block| (block.range.start, block))
            .into();
        assert_eq!(covering(&all, 8).unwrap(), ids);
        assert_eq!(covering(&all, 5).unwrap(), ids[..1]);
        assert_eq!(covering(&all, 0).unwrap(), [""; 0]);
        assert_eq!((covering(&all, 7), covering(&all, 9)), (None, None));
        let lists = list(&[(&ids[0], 5), (&ids[1], 3)], &[]);
        assert_eq!(lists.committed(NAME), Some(8));
        assert_eq!(lists.committed("fedcba9876543210"), None);
        assert_eq!(list(&[(&ids[1], 3)], &[]).committed(NAME), None);
    }

    #[test]
    fn token_contains_its_upload_and_the_known_blocks() {
        let blocks =
            [chunk(0, 0, b"12345"), chunk(1, 5, b"678")].map(|chunk| Block::of(NAME, &chunk));
        let blocks: Blocks = blocks.map(|block| (block.range.start, block)).into();
        for known in [Blocks::new(), blocks] {
            let token = token_of(NAME, &known);
            assert_eq!(parse_token(&token), Some((NAME, known)));
        }
        let foreign = Block::of("fedcba9876543210", &chunk(0, 0, b"12345"));
        let foreign = format!("blocks {NAME}\n{} 5", foreign.id);
        for bad in ["", "blocks ", "blocks xyz", "md5 id", &foreign] {
            assert_eq!(parse_token(bad), None, "{bad}");
        }
    }
}
