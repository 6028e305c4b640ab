//! Uploads that survive: one writer, a session at the store, a journal on disk.

#[allow(dead_code, reason = "the sessions of the stores come next")]
pub(crate) mod http;
pub mod journal;
mod session;

pub use session::{
    Chunk, ChunkRule, Digest, Ending, Finished, Kept, SessionOptions, SessionStatus, SessionToken,
    UploadSession,
};
