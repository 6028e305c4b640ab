//! Memory for programs that embed the engine.

use std::sync::Arc;

use bywash_mem::Share;

use super::Engine;
use crate::error::EngineError;
use crate::scratch::{Scratch, ScratchOptions};

impl Engine {
    /// Opens a scratch: blocks that the program writes and pins, in the engine's memory, evicted to temporary files when memory is
    /// short. Each has a folder of its own. Removes files that a killed process left in the folder. Blocks the thread for some file
    /// operations.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if the folder is in use, has foreign files or cannot be written, or if no memory is free.
    pub fn scratch(&self, options: &ScratchOptions) -> Result<Scratch, EngineError> {
        let invalid = |reason: String| EngineError::InvalidSetting {
            setting: "scratch",
            reason,
        };
        let pool = &self.shared.pool;
        let slots = options.slot_options(pool.budget().limit());
        let memory = slots.memory();
        let no_memory = || invalid(format!("{memory} bytes for its tables are not free"));
        let reserve = |bytes| pool.try_reserve(Share::Download, bytes);
        let compression = reserve(memory).ok_or_else(no_memory)?;
        let table = reserve(0).ok_or_else(no_memory)?;
        let scratch = Scratch::open(Arc::clone(&self.shared), &slots, compression, table);
        scratch.map_err(|error| invalid(error.to_string()))
    }
}
