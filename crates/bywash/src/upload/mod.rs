//! Uploads that survive: one writer, a session at the store, a journal on disk.
//!
//! `writer.rs` takes bytes and makes chunks of them by a plan (`plan.rs`), which wait in one buffer (`buffer.rs`, `filling.rs`);
//! `driver.rs` brings them to a session (`session.rs`, asked through `link.rs`) and ends it, `window.rs` several at once. `parts.rs` is a session over stores that only have parts.
//! `journal/` is what a process leaves behind, written by `journaled.rs`; `resume.rs` takes it over.

mod buffer;
mod checksum;
mod driver;
mod filling;
pub(crate) mod http;
pub mod journal;
mod journaled;
mod link;
mod options;
mod ordered;
mod parts;
mod plan;
mod resume;
mod session;
mod stream;
mod token;
mod window;
mod writer;

pub use journaled::Journaling;
pub use options::{UploadOptions, UploadResult};
pub(crate) use ordered::Ordered;
pub use plan::ChunkPlan;
pub use resume::Resumed;
pub use session::{
    Chunk, ChunkRule, Digest, Ending, Finished, Kept, OpenSession, SessionOptions, SessionStatus,
    SessionToken, UploadSession,
};
pub use stream::UploadWriter;
pub use token::UploadToken;
pub use writer::Upload;
