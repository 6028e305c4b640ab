//! Digests of objects: of their content, as stores state them, and as protocols write them.

mod content;
#[cfg(feature = "network")]
mod stated;
mod text;

pub use content::{ContentDigest, RunningDigest, read_range};
#[cfg(feature = "network")]
pub(crate) use stated::{stated_by_put, stated_digest};
pub(crate) use text::{
    crc32c_of_base64, crc32c_to_base64, e_tag_of_md5, google_hash, hex, md5_of_e_tag,
    pieces_crc32c, pieces_md5,
};
