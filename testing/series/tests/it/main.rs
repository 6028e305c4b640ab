//! The series engine over Bywash's own stores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod churn;
mod kills;
mod over_bywash;
