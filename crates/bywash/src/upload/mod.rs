//! Uploads that survive: one writer, a session at the store, a journal on disk.

mod session;

pub use session::{
    Chunk, ChunkRule, Digest, Ending, Finished, Kept, SessionOptions, SessionStatus, SessionToken,
    UploadSession,
};
