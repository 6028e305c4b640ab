//! Kinds of blocks, by which memory is counted.

use std::ops::Range;

use bywash_mem::{BlockOptions, Keep, Priority, Tag};

use crate::versions::Version;

/// Length up to which a read at the end of an object counts as a read of a footer. Longer ones are parts of a scan.
const FOOTER_BYTES: u64 = 4 << 20;

/// Kind of a block, known when its load begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Read by a request, or ahead of it in its range.
    Data,
    /// The only block of its object.
    Small,
    /// Read by a request for the end of an object alone: the footer and index of a columnar file, the directory of an archive.
    Footer,
    /// Loaded beyond the ranges requested, because the requests were sequential.
    Readahead,
    /// Of a program that embeds the engine ([`crate::Engine::scratch`]); not of an object.
    Scratch,
    /// Of a stripe that another node of the cluster owns.
    Foreign,
}

impl BlockKind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Data,
        Self::Small,
        Self::Footer,
        Self::Readahead,
        Self::Scratch,
        Self::Foreign,
    ];

    /// Returns its name in counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Small => "small",
            Self::Footer => "footer",
            Self::Readahead => "readahead",
            Self::Scratch => "scratch",
            Self::Foreign => "foreign",
        }
    }

    /// Returns the tag that its memory is counted on.
    pub(crate) fn tag(self) -> Tag {
        Tag::new(self as u8).unwrap_or_default()
    }

    /// Returns whether a block with these options is of this kind.
    pub(crate) fn is_of(self, options: BlockOptions) -> bool {
        options.tag == self.tag()
    }

    /// Returns the options of its blocks. Readers of a columnar file read its footer before each query, so a scan does not
    /// evict it.
    pub(crate) fn options(self) -> BlockOptions {
        let priority = match self {
            Self::Footer => Priority::High,
            Self::Data | Self::Small | Self::Readahead | Self::Scratch => Priority::Normal,
            Self::Foreign => Priority::Low,
        };
        let keep = match self {
            Self::Scratch => Keep::OnlyCopy,
            _ => Keep::default(),
        };
        BlockOptions {
            keep,
            priority,
            tag: self.tag(),
        }
    }

    /// Returns the kind of the `blocks` that one read covers. `to_end`: it ends with the object.
    pub(crate) fn of_read(
        version: &Version,
        block_size: u64,
        blocks: &Range<u32>,
        to_end: bool,
    ) -> Self {
        let start = u64::from(blocks.start) * block_size;
        if version.blocks(block_size) <= 1 {
            Self::Small
        } else if to_end && start > 0 && version.meta.size.saturating_sub(start) <= FOOTER_BYTES {
            Self::Footer
        } else {
            Self::Data
        }
    }
}
