//! Kinds of a journal's [records](crate::records).

use crate::records::RecordFormat;

pub(super) const FORMAT: RecordFormat = RecordFormat {
    magic: *b"BYWASHUP",
    version: 1,
    // More than any header or list of chunks needs.
    max_len: 16 << 20,
};

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Header,
    Acknowledged,
    Finishing,
    Taken,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self::Header,
        Self::Acknowledged,
        Self::Finishing,
        Self::Taken,
    ];

    pub(super) fn code(self) -> u32 {
        match self {
            Self::Header => 1,
            Self::Acknowledged => 2,
            Self::Finishing => 3,
            Self::Taken => 4,
        }
    }

    pub(super) fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// Reads numbers from the front of a body.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (four, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*four))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (eight, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*eight))
    }
}
