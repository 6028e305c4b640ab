//! Limits of the disk tier.

/// Pieces of one write call: Linux takes 1,024.
pub(crate) const MAX_PIECES: usize = 512;
/// Bytes of a URL, an object key or a validator: S3 keys have at most 1,024, URLs seldom more than 2,048. Blocks of
/// objects with longer ones stay in memory only.
pub(crate) const MAX_TEXT_BYTES: usize = 8 << 10;
