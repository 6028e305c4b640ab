//! The series engine over Bywash's own stores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod churn;
mod kills;
mod over_bywash;

/// The allocator of the program, so that the resident memory here is what it would be there.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
