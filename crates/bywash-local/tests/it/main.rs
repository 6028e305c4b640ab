//! The local door through its client, and through sockets that speak something else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cut_clients;
mod door;
mod leases;
mod memory;
mod reads;
mod records;
mod refusals;
mod writes;
