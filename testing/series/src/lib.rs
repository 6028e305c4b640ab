//! The series engine over Bywash's own stores: killed at every request, and read by other programs.

#![forbid(unsafe_code)]

mod death;
pub mod threads_model;

pub use death::Death;
