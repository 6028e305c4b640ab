//! Tests on real folders with processes that are killed.

mod kills;
