//! Resumable uploads: a writer, a session at the store, and a journal on disk.
//!
//! * `writer.rs` accepts bytes and cuts them into chunks by a plan (`plan.rs`). Chunks are collected in one buffer
//!   (`frame_buffer.rs` of the engine, `part_buffer.rs`).
//! * `driver.rs` is the loop that sends them to a session of the store (`origin/session.rs`, requested through
//!   `session_client.rs`) and completes it; `window.rs` runs it for several chunks in flight.
//! * `journal/` is the record that a process leaves on disk, written by `journal_writer.rs`; `resume.rs` takes such
//!   uploads over.

mod blocking;
mod checksum;
mod comparison;
mod driver;
pub mod journal;
mod journal_writer;
mod options;
mod ordered;
mod part_buffer;
mod plan;
mod resume;
mod session_client;
mod stream;
mod token;
mod window;
mod writer;

pub use blocking::BlockingUploadWriter;
pub use options::{JournalOptions, UploadOptions, UploadResult};
pub(crate) use ordered::Ordered;
pub(crate) use plan::ChunkPlan;
pub use resume::Resumed;
pub use stream::UploadWriter;
pub use token::UploadToken;
#[cfg(any(test, fuzzing))]
pub(crate) use token::sealed_token;
pub use writer::Upload;
